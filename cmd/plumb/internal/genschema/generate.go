package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
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
	var ofIPAM []string
	for name, p := range pages {
		if p.ipam {
			ipams["ipam-"+name] = p.ipamSchema()
			ofIPAM = append(ofIPAM, p.ownCapabilities()...)
		}
	}
	all := map[string]*schema.Schema{}
	for name, p := range pages {
		if all[name], err = p.schema(ofIPAM); err != nil {
			return nil, err
		}
	}
	all[schema.ConfList] = list(all, pages)
	files := map[string][]byte{}
	for name, s := range all {
		s.Dialect, s.ID = dialect, baseURL+name+schema.Suffix
		if s.Defs == nil {
			s.Defs = map[string]*schema.Schema{}
		}
		maps.Copy(s.Defs, ipams)
		if files[name+schema.Suffix], err = encode(s); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// encode returns the text of a schema file.
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

// object returns the schema of an object without keys, to which insert adds keys. who is the plugin that reads the object.
// Unless the path is open, the schema warns about other keys.
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

// insert adds a key, and the missing objects of its path, to the schema of the object at the path at.
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
func (p *page) capabilities(ofIPAM []string) *schema.Schema {
	s := common("capabilities")
	s.Properties = map[string]*schema.Schema{}
	for _, name := range append(p.ownCapabilities(), ofIPAM...) {
		s.Properties[name] = &schema.Schema{Type: "boolean", Description: "the runtime passes runtimeConfig." + name}
	}
	s.Additional = &schema.Schema{Type: "boolean", Warning: p.name + " has no such capability, so that it gets nothing for it."}
	return s
}

// schema returns the schema of the plugin's configuration. ofIPAM lists the capabilities of the IPAM plugins.
func (p *page) schema(ofIPAM []string) (*schema.Schema, error) {
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
		s.Properties["capabilities"] = p.capabilities(ofIPAM)
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

// common returns the schema of a key that all plugins share, or nil.
func common(name string) *schema.Schema {
	text := func(typ, description string) *schema.Schema {
		return &schema.Schema{Type: typ, Description: description}
	}
	list := func(description string) *schema.Schema {
		return &schema.Schema{Type: "array", Items: &schema.Schema{Type: "string"}, Description: description}
	}
	switch name {
	case "$schema":
		return text("string", "the schema of this file, for editors. Plugins and runtimes ignore it")
	case "cniVersion":
		s := text("string", "the version of the specification")
		s.Enum = types.VersionsSince(types.V010)
		return s
	case "cniVersions":
		return list("versions of the specification, of which the runtime uses the newest that it knows")
	case "name":
		return text("string", "the name of the network, unique on the host: letters, digits, '.', '_' and '-'")
	case "type":
		s := text("string", "the name of the plugin: an executable in CNI_PATH")
		s.MinLength = 1
		return s
	case "capabilities":
		s := text("object", "what the runtime may pass in runtimeConfig, such as \"portMappings\": true")
		s.Additional = &schema.Schema{Type: "boolean"}
		return s
	case "ipam":
		return ipam()
	case "dns":
		s := object("dns", "dns")
		s.Properties = map[string]*schema.Schema{
			"nameservers": list("addresses of name servers"), "domain": text("string", "the local domain"),
			"search": list("domains for short names"), "options": list("options of resolv.conf(5)"),
		}
		s.Description = "DNS of the result"
		return s
	case "args", "runtimeConfig":
		s := object("", name)
		s.Description = map[string]string{"args": "arguments for all plugins", "runtimeConfig": "what the runtime passes for the capabilities. A file need not have it"}[name]
		return s
	case "prevResult":
		return text("object", "the result of the plugin before this one. The runtime sets it")
	case "strict":
		return text("boolean", "plumb: an unknown key is an error")
	case "disableCheck":
		return boolOrText("the runtime does not call CHECK")
	case "disableGC":
		return boolOrText("the runtime does not call GC")
	case "cni.dev/valid-attachments", "cni.dev/attachments":
		return text("array", "the attachments that GC keeps. The runtime sets it")
	}
	return nil
}

// boolOrText returns the schema of a key that libcni reads from a boolean or a string.
func boolOrText(description string) *schema.Schema {
	return &schema.Schema{Description: description, AnyOf: []*schema.Schema{{Type: "boolean"}, {Enum: []string{"true", "false"}}}}
}

// ipam returns the schema of the key ipam. For each IPAM plugin's type, it applies the schema of that plugin.
func ipam() *schema.Schema {
	s := &schema.Schema{Type: "object", Description: "the IPAM plugin and its configuration", Properties: map[string]*schema.Schema{
		"type": {Type: "string", Description: "the name of the IPAM plugin: an executable in CNI_PATH"},
	}}
	for _, name := range ipamPlugins {
		s.AllOf = append(s.AllOf, ifType(name, "#/$defs/ipam-"+name))
	}
	return s
}

// ipamPlugins lists the IPAM plugins. A test compares it with the pages.
var ipamPlugins = []string{"cluster-local", "dhcp", "host-local", "static"}

// ifType returns a schema that applies the schema at ref to objects with this type.
func ifType(name, ref string) *schema.Schema {
	return &schema.Schema{
		If:   &schema.Schema{Properties: map[string]*schema.Schema{"type": {Const: name}}, Required: []string{"type"}},
		Then: &schema.Schema{Ref: ref},
	}
}

// list returns the schema of a configuration list.
func list(plugins map[string]*schema.Schema, pages map[string]*page) *schema.Schema {
	s := object("a list of plugins", "")
	s.Title = "CNI network configuration list"
	s.Description = "The content of a file *.conflist"
	s.Required = []string{"name"}
	for _, name := range []string{"$schema", "args", "cniVersion", "cniVersions", "name", "disableCheck", "disableGC"} {
		s.Properties[name] = common(name)
	}
	s.Properties["loadOnlyInlinedPlugins"] = boolOrText("true: the runtime does not read more plugins from the directory with the name of the network")
	item := &schema.Schema{Type: "object", Required: []string{"type"}, Properties: map[string]*schema.Schema{"type": common("type")}}
	s.Defs = map[string]*schema.Schema{}
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		if pages[name] != nil && !pages[name].ipam {
			plugin := *plugins[name]
			s.Defs[name] = &plugin
			item.AllOf = append(item.AllOf, ifType(name, "#/$defs/"+name))
		}
	}
	s.Properties["plugins"] = &schema.Schema{Type: "array", MinItems: 1, Items: item, Description: "the plugins, which ADD calls in this order, and DEL in the reverse order"}
	return s
}
