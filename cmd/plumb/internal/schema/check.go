package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
)

// A Kind is the kind of a problem.
type Kind string

// The kinds of problems.
const (
	UnknownKey  Kind = "unknown-key"
	RepeatedKey Kind = "repeated-key"
	MissingKey  Kind = "missing-key"
	WrongType   Kind = "wrong-type"
	WrongValue  Kind = "wrong-value"
	// IgnoredValue is a value that the plugin ignores, with a warning.
	IgnoredValue Kind = "ignored-value"
)

// A Problem is one place of a configuration that does not match its schema.
type Problem struct {
	Kind Kind
	Path string // "plugins[0].ipam.rangeStrat"
	Line int
	Key  string // the last part of Path; empty: an item of a list
	Text string // what is wrong
	// Want is the text that was probably meant, as JSON, and Have the text to be replaced by it. Both are empty if
	// that is unknown.
	Want, Have string
}

// Check compares a JSON value with the schema of a name (see Names). Keys match in any case, and null is a missing
// key, as for the plugins. It returns the problems in the order of the text.
func Check(name string, v *Value) ([]Problem, error) {
	s, err := load(name)
	if err != nil {
		return nil, err
	}
	c := checker{defs: s.Defs}
	c.value(s, v)
	var found []Problem
	for _, p := range c.found {
		if !slices.Contains(found, p) { // two schemas, that of all plugins and that of one, can find the same
			found = append(found, p)
		}
	}
	slices.SortStableFunc(found, func(a, b Problem) int { return a.Line - b.Line })
	return found, nil
}

type checker struct {
	defs  map[string]*Schema
	found []Problem
}

func (c *checker) add(kind Kind, v *Value, format string, args ...any) *Problem {
	c.found = append(c.found, Problem{Kind: kind, Path: v.Path, Line: v.Line, Key: v.Key, Text: fmt.Sprintf(format, args...)})
	return &c.found[len(c.found)-1]
}

// value compares a value with a schema.
func (c *checker) value(s *Schema, v *Value) {
	if s == nil || v.kind == "null" {
		return
	}
	if s.Ref != "" {
		c.value(c.defs[strings.TrimPrefix(s.Ref, "#/$defs/")], v)
		return
	}
	if !c.anyOf(s, v) || !c.scalar(s, v) {
		return
	}
	for _, item := range v.Items() {
		c.value(s.Items, item)
	}
	if v.kind == "object" {
		c.object(s, v)
	}
	for _, branch := range s.AllOf {
		if branch.Then != nil && v.Get("type").Text() == branch.If.Properties["type"].Const {
			c.value(branch.Then, v)
		}
	}
}

// anyOf reports whether a value matches one of the alternatives of a schema, or the schema has none.
func (c *checker) anyOf(s *Schema, v *Value) bool {
	i := slices.IndexFunc(s.AnyOf, func(one *Schema) bool { return c.matches(one, v) })
	switch {
	case len(s.AnyOf) == 0:
		return true
	case i < 0:
		c.add(WrongType, v, "have %s, which is none of the possible values", v.describe())
		return false
	case s.AnyOf[i].Warning != "":
		p := c.add(IgnoredValue, v, "%q is ignored: want %s", v.Text(), alternatives(s.AnyOf[0].Enum))
		p.suggest(v, s.AnyOf[0].Enum)
	}
	return true
}

// suggest sets what was probably meant by a text.
func (p *Problem) suggest(v *Value, enum []string) {
	if likely := types.Nearest(v.Text(), enum); likely != "" {
		p.Have, p.Want = strconv.Quote(v.Text()), strconv.Quote(likely)
	}
}

// matches reports whether a value matches a schema.
func (c *checker) matches(s *Schema, v *Value) bool {
	alone := checker{defs: c.defs}
	alone.value(s, v)
	return alone.found == nil && (s.Enum == nil || v.kind == "string")
}

// scalar compares the type and the limits of a value, and reports whether the type is right.
func (c *checker) scalar(s *Schema, v *Value) bool {
	if !v.hasType(s.Type) {
		p := c.add(WrongType, v, "want %s, have %s", typeNames[s.Type], v.describe())
		p.Have, p.Want = v.corrected(s.Type)
		return false
	}
	text := v.Text()
	switch {
	case s.Const != "" && text != s.Const:
		c.add(WrongValue, v, "want %q, have %q", s.Const, text)
	case len(s.Enum) > 0 && v.kind == "string" && !slices.Contains(s.Enum, text):
		c.add(WrongValue, v, "want %s, have %q", alternatives(s.Enum), text).suggest(v, s.Enum)
	case v.kind == "string" && len(text) < s.MinLength:
		c.add(WrongValue, v, "want a text that is not empty")
	case v.kind == "array" && len(v.inner) < s.MinItems:
		c.add(WrongValue, v, "the list is empty")
	}
	if n, ok := v.scalar.(json.Number); ok {
		i, err := n.Int64()
		if err == nil && (s.Minimum != nil && i < *s.Minimum || s.Maximum != nil && i > *s.Maximum) {
			c.add(WrongValue, v, "%d is not in the range from %s", i, limits(s))
		}
	}
	return true
}

// limits returns the limits of an integer as a text.
func limits(s *Schema) string {
	if s.Maximum == nil {
		return fmt.Sprintf("%d on", *s.Minimum)
	}
	return fmt.Sprintf("%d to %d", *s.Minimum, *s.Maximum)
}

// alternatives returns the values of an enum as a text.
func alternatives(enum []string) string {
	var quoted []string
	for _, e := range enum {
		if e != "" {
			quoted = append(quoted, strconv.Quote(e))
		}
	}
	return strings.Join(quoted, " or ")
}

// object compares the members of an object with a schema.
func (c *checker) object(s *Schema, v *Value) {
	known := slices.Sorted(maps.Keys(s.Properties))
	seen, meant := map[string]bool{}, map[string]bool{}
	for _, m := range v.inner {
		i := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, m.Key) })
		switch {
		case i < 0 && s.Additional == nil:
		case i < 0 && s.Additional.Warning == "":
			c.value(s.Additional, m)
		case i < 0:
			if likely := c.unknown(v, known, m); likely != "" {
				meant[likely] = true
			}
		case seen[known[i]]:
			c.add(RepeatedKey, m, "the key occurs twice; only the last one counts")
		default:
			seen[known[i]] = true
			c.value(s.Properties[known[i]], v.Get(m.Key)) // of several, the last one
		}
	}
	for _, key := range s.Required {
		if !seen[key] && !meant[key] {
			c.add(MissingKey, v, "the key %q is missing", key)
		}
	}
}

// unknown adds the unknown key m of an object. It returns the key that was probably meant, or "".
func (c *checker) unknown(object *Value, known []string, m *Value) string {
	likely := types.Nearest(m.Key, known)
	switch {
	case likely == "":
		c.add(UnknownKey, m, "unknown key")
		return ""
	case object.Get(likely) != nil:
		c.add(UnknownKey, m, "unknown key; %s, which was probably meant, is there already", likely)
		return ""
	}
	p := c.add(UnknownKey, m, "unknown key; %s was probably meant", likely)
	p.Have, p.Want = strconv.Quote(m.Key), strconv.Quote(likely)
	return likely
}

var typeNames = map[string]string{
	"object": "an object", "array": "a list", "string": "a string", "integer": "an integer", "number": "a number", "boolean": "true or false", "null": "null",
}

// hasType reports whether a value has a type of JSON Schema; empty: any.
func (v *Value) hasType(want string) bool {
	if want != "integer" {
		return want == "" || v.kind == want
	}
	n, ok := v.scalar.(json.Number)
	_, err := n.Int64()
	return ok && err == nil
}

// describe returns the type of a value, and the value if it is short.
func (v *Value) describe() string {
	if v.scalar == nil {
		return typeNames[v.kind]
	}
	return v.Literal()
}

// corrected returns the text of a string whose content has the wanted type, and that content.
func (v *Value) corrected(want string) (have, content string) {
	text, ok := v.scalar.(string)
	var inner any
	if !ok || json.Unmarshal([]byte(text), &inner) != nil {
		return "", ""
	}
	if other, err := Parse([]byte(text)); err != nil || !other.hasType(want) || other.scalar == nil {
		return "", ""
	}
	return strconv.Quote(text), text
}
