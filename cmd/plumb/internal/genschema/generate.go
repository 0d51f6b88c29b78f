package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

const (
	dialect = "https://json-schema.org/draft/2020-12/schema"
	baseURL = "https://github.com/plumb-cni/plumb/raw/main/cmd/plumb/internal/schema/"
)

// generate returns the content of each schema file, from the pages in the directories of the plugins.
func generate(plugins string) (map[string][]byte, error) {
	pages, err := readPages(plugins)
	if err != nil {
		return nil, err
	}
	ipams := map[string]*schema.Schema{}
	var ipamCapabilities []string
	for name, p := range pages {
		if p.ipam {
			ipams["ipam-"+name] = p.ipamSchema()
			ipamCapabilities = append(ipamCapabilities, p.ownCapabilities()...)
		}
	}
	all := map[string]*schema.Schema{}
	for name, p := range pages {
		if all[name], err = p.schema(ipamCapabilities); err != nil {
			return nil, err
		}
		if ipam := all[name].Properties["ipam"]; ipam != nil && !p.ipam {
			for _, def := range slices.Sorted(maps.Keys(ipams)) { // apply the schema of the IPAM plugin
				ipam.AllOf = append(ipam.AllOf, ifType(strings.TrimPrefix(def, "ipam-"), "#/$defs/"+def))
			}
		}
	}
	all[schema.ConfList] = list(all, pages)
	texts := map[string][]byte{}
	for name, s := range all {
		s.Dialect, s.ID = dialect, baseURL+name+schema.Suffix
		if s.Defs == nil {
			s.Defs = map[string]*schema.Schema{}
		}
		maps.Copy(s.Defs, ipams)
		if texts[name+schema.Suffix], err = encode(s); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

func encode(s *schema.Schema) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(s)
	return text.Bytes(), err
}

// readPages reads the page of each plugin. It reads host-local's page first, because others refer to it.
func readPages(plugins string) (map[string]*page, error) {
	found, err := filepath.Glob(filepath.Join(plugins, "*", "README.md"))
	if err != nil {
		return nil, err
	}
	first := filepath.Join(plugins, "host-local", "README.md")
	if !slices.Contains(found, first) {
		return nil, fmt.Errorf("find the pages of the plugins: %s is missing", first)
	}
	pages := map[string]*page{}
	var problems []error
	for _, file := range append([]string{first}, found...) {
		name := filepath.Base(filepath.Dir(file))
		p, err := readPage(file, name, pages)
		problems = append(problems, err)
		pages[name] = p
	}
	return pages, errors.Join(problems...)
}

// open lists the paths of the objects that may contain keys of other programs.
var open = []string{"args", "args.cni", "runtimeConfig", "ipam.datastore"}

// object returns the schema of an object without keys, to which insert adds keys. The parameter who is the plugin that
// reads the object. Unless the path is open, the schema warns about other keys.
func object(who, path string) *schema.Schema {
	s := &schema.Schema{Type: "object", Properties: map[string]*schema.Schema{}}
	if !slices.Contains(open, path) {
		s.Additional = unknown(who)
	}
	return s
}

// unknown returns the schema of unknown keys, which accepts them with a warning, like the plugins.
func unknown(who string) *schema.Schema {
	return &schema.Schema{Warning: who + ` does not know this key. It is ignored or, if "strict" is true, an error.`}
}

// insert adds a key and the missing objects of its path to the schema in, which describes the object at the path at.
func insert(in *schema.Schema, k key, who, at string) error {
	name := k.path[0]
	if name == "[]" {
		if in.Items == nil {
			return fmt.Errorf("key %v of %s: %q is not a list", k.path, who, at)
		}
		return insert(in.Items, key{k.path[1:], k.schema, k.required}, who, at+"[]")
	}
	if in.Properties == nil {
		in.Properties = map[string]*schema.Schema{}
		if !slices.Contains(open, at) {
			in.Additional = unknown(who)
		}
	}
	if len(k.path) == 1 {
		in.Properties[name] = withCommon(name, k.schema)
		if k.required {
			in.Required = append(in.Required, name)
		}
		return nil
	}
	path := strings.TrimPrefix(at+"."+name, ".")
	if in.Properties[name] == nil {
		in.Properties[name] = object(who, path)
	}
	return insert(in.Properties[name], key{k.path[1:], k.schema, k.required}, who, path)
}

// withCommon returns the schema of a key. For ipam and dns, this is the common schema with the description of s.
func withCommon(name string, s *schema.Schema) *schema.Schema {
	if name != "ipam" && name != "dns" {
		return s
	}
	c := common(name)
	c.Description = s.Description
	return c
}

// ownCapabilities returns the names of a plugin's capabilities, which are the keys of runtimeConfig.
func (p *page) ownCapabilities() (names []string) {
	for _, k := range p.keys {
		if len(k.path) == 2 && k.path[0] == "runtimeConfig" {
			names = append(names, k.path[1])
		}
	}
	return names
}

// capabilities returns the schema of the key capabilities. It includes the capabilities of all IPAM plugins, because the IPAM
// plugin gets the same configuration.
func (p *page) capabilities(ipamCapabilities []string) *schema.Schema {
	s := common("capabilities")
	s.Properties = map[string]*schema.Schema{}
	for _, name := range append(p.ownCapabilities(), ipamCapabilities...) {
		s.Properties[name] = &schema.Schema{Type: "boolean", Description: "the runtime passes runtimeConfig." + name}
	}
	s.Additional = &schema.Schema{Type: "boolean", Warning: p.name + " does not support this capability. The runtime passes nothing for it."}
	return s
}

// schema returns the schema of the plugin's configuration. ipamCapabilities lists the capabilities of the IPAM plugins.
func (p *page) schema(ipamCapabilities []string) (*schema.Schema, error) {
	s := object(p.name, "")
	s.Title = "Configuration of the CNI plugin " + p.name
	s.Required = []string{"type"}
	for _, name := range skel.SharedKeys() {
		if s.Properties[name] = common(name); s.Properties[name] == nil {
			return nil, fmt.Errorf("key %q: all plugins read it, but genschema does not describe it", name)
		}
	}
	if !p.ipam {
		s.Properties["type"] = &schema.Schema{Type: "string", Const: p.name, Description: "the name of the plugin"}
		s.Properties["capabilities"] = p.capabilities(ipamCapabilities)
	}
	for _, k := range p.keys {
		shared := k.path[0] == "args" || k.path[0] == "runtimeConfig"
		if p.ipam && !shared {
			continue
		}
		if err := insert(s, k, p.name, ""); err != nil {
			return nil, err
		}
	}
	if p.ipam {
		s.Required = append(s.Required, "ipam")
		s.Properties["ipam"] = &schema.Schema{Ref: "#/$defs/ipam-" + p.name}
		s.Title = "Configuration of an interface plugin with the IPAM plugin " + p.name
		s.Additional = nil
	}
	return s, nil
}

// ipamSchema returns the schema of the object ipam for an IPAM plugin.
func (p *page) ipamSchema() *schema.Schema {
	s := object(p.name, "ipam")
	for _, k := range p.keys {
		if k.path[0] == "args" || k.path[0] == "runtimeConfig" {
			continue
		}
		_ = insert(s, k, p.name, "ipam") // schema reports the same error
	}
	s.Properties["type"] = &schema.Schema{Type: "string", Const: p.name, Description: "the name of the IPAM plugin"}
	return s
}

// files contains common.json with the schemas of the keys that plugins share, and of the keys of lists.
//
//go:embed common.json
var files embed.FS

// common returns the schema of a key of common.json, or nil.
func common(name string) *schema.Schema {
	text, err := files.ReadFile("common.json")
	var all map[string]*schema.Schema
	if err = errors.Join(err, json.Unmarshal(text, &all)); err != nil {
		panic(err)
	}
	switch s := all[name]; name {
	case "cniVersion":
		s.Enum = types.VersionsSince(types.V010)
	case "dns":
		s.Additional = unknown(name)
	}
	return all[name]
}

// ifType returns a schema that applies the schema at ref to objects with this type.
func ifType(name, ref string) *schema.Schema {
	return &schema.Schema{
		If:   &schema.Schema{Properties: map[string]*schema.Schema{"type": {Const: name}}, Required: []string{"type"}},
		Then: &schema.Schema{Ref: ref},
	}
}

func list(plugins map[string]*schema.Schema, pages map[string]*page) *schema.Schema {
	s := object("a list of plugins", "")
	s.Title = "CNI network configuration list"
	s.Description = "The content of a file *.conflist"
	s.Required = []string{"name"}
	for _, name := range strings.Fields("$schema args cniVersion cniVersions name disableCheck disableGC loadOnlyInlinedPlugins plugins") {
		s.Properties[name] = common(name)
	}
	item := s.Properties["plugins"].Items
	item.Properties = map[string]*schema.Schema{"type": common("type")}
	s.Defs = map[string]*schema.Schema{}
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		if pages[name] != nil && !pages[name].ipam {
			plugin := *plugins[name]
			s.Defs[name] = &plugin
			item.AllOf = append(item.AllOf, ifType(name, "#/$defs/"+name))
		}
	}
	return s
}
