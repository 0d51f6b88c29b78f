// Package schema contains the JSON Schemas (draft 2020-12) of the plugins' configurations and of configuration lists, which the
// program genschema generates from the key tables of the plugins' pages. It also parses configurations with the lines of
// their values.
package schema

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:generate go run ../genschema

//go:embed *.schema.json
var files embed.FS

// ConfList is the name of the schema of a configuration list, the content of a file *.conflist.
const ConfList = "conflist"

// Suffix is the end of the schemas' file names.
const Suffix = ".schema.json"

// A Schema contains the keywords of JSON Schema that plumb's schemas use.
type Schema struct {
	Dialect     string             `json:"$schema,omitempty"`
	ID          string             `json:"$id,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Ref         string             `json:"$ref,omitempty"`
	Type        string             `json:"type,omitempty"`
	Const       string             `json:"const,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	AnyOf       []*Schema          `json:"anyOf,omitempty"`
	Minimum     *int64             `json:"minimum,omitempty"`
	Maximum     *int64             `json:"maximum,omitempty"`
	MinLength   int                `json:"minLength,omitempty"`
	MinItems    int                `json:"minItems,omitempty"`
	Default     any                `json:"default,omitempty"`
	Items       *Schema            `json:"items,omitempty"`
	Properties  map[string]*Schema `json:"properties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	// Additional describes keys that are not in Properties. With a Warning, they are unknown keys.
	Additional *Schema            `json:"additionalProperties,omitempty"`
	AllOf      []*Schema          `json:"allOf,omitempty"`
	If         *Schema            `json:"if,omitempty"`
	Then       *Schema            `json:"then,omitempty"`
	Defs       map[string]*Schema `json:"$defs,omitempty"`
	// Warning is the text that editors with VS Code's JSON language service show for a value that matches the schema.
	// Validators ignore the keyword.
	Warning string `json:"deprecationMessage,omitempty"`
}

// Names returns the sorted names of all schemas, which are the plugins and ConfList.
func Names() []string {
	entries, _ := files.ReadDir(".") // reading an embedded directory does not fail
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), Suffix))
	}
	slices.Sort(names)
	return names
}

// Text returns the text of a schema.
func Text(name string) ([]byte, error) {
	text, err := files.ReadFile(name + Suffix)
	if err != nil {
		return nil, fmt.Errorf("no schema %q; the schemas are %s", name, strings.Join(Names(), ", "))
	}
	return text, nil
}

// IsIPAMKey reports whether the key is one of the IPAM plugin's keys in ipam.
func IsIPAMKey(ipamPlugin, key string) bool {
	ipam := read(ipamPlugin).Defs["ipam-"+ipamPlugin]
	return ipam != nil && ipam.Properties[key] != nil
}

// read returns the schema with this name, or an empty one if there is none.
func read(name string) *Schema {
	s := new(Schema)
	if text, err := Text(name); err == nil {
		_ = json.Unmarshal(text, s) // genschema writes valid JSON
	}
	return s
}

// Capabilities returns the sorted names of a plugin's capabilities, or nil if the plugin has no schema.
func Capabilities(plugin string) []string {
	if c := read(plugin).Properties["capabilities"]; c != nil {
		return slices.Sorted(maps.Keys(c.Properties))
	}
	return nil
}
