// Package schema has the JSON Schemas of the plugins' configurations and of lists of them (draft 2020-12).
// It parses configurations with the lines of their values. The program genschema makes the schemas from the key tables of the
// plugins' pages.
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

// ConfList is the name of the schema of a list of configurations, the content of a file *.conflist.
const ConfList = "conflist"

// Suffix ends the names of the files.
const Suffix = ".schema.json"

// A Schema has the keywords of JSON Schema that the schemas use.
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
	// Additional describes keys that are not in Properties. If it has a Warning, they are unknown keys.
	Additional *Schema            `json:"additionalProperties,omitempty"`
	AllOf      []*Schema          `json:"allOf,omitempty"`
	If         *Schema            `json:"if,omitempty"`
	Then       *Schema            `json:"then,omitempty"`
	Defs       map[string]*Schema `json:"$defs,omitempty"`
	// Warning is the text that editors with the JSON language service of VS Code show at a value that matches the
	// schema, because nobody uses the value. Validators ignore the keyword.
	Warning string `json:"deprecationMessage,omitempty"`
}

// Names returns the names of all schemas, sorted: the plugins, and ConfList.
func Names() []string {
	entries, _ := files.ReadDir(".") // an embedded directory can always be read
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
		return nil, fmt.Errorf("no schema of %q; the schemas are: %s", name, strings.Join(Names(), ", "))
	}
	return text, nil
}

// Capabilities returns the names of the capabilities of a plugin, sorted, or nil if there is no schema of it.
func Capabilities(plugin string) []string {
	text, err := Text(plugin)
	if err != nil {
		return nil
	}
	s := new(Schema)
	_ = json.Unmarshal(text, s) // genschema has written it
	if c := s.Properties["capabilities"]; c != nil {
		return slices.Sorted(maps.Keys(c.Properties))
	}
	return nil
}
