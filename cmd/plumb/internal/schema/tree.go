package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Value is one value of a JSON text, with its path and line.
type Value struct {
	Path   string // for example "plugins[0].ipam"; empty for the whole text
	Key    string // the key of a member of an object
	Line   int    // of the key or, without a key, of the value; the first line is 1
	scalar any    // nil, bool, string or json.Number
	kind   string // "object", "array", "string", "number", "boolean" or "null"
	inner  []*Value
}

// Parse parses a JSON text. An error begins with the line.
func Parse(text []byte) (*Value, error) {
	p := &parser{text: text, d: json.NewDecoder(bytes.NewReader(text))}
	if !json.Valid(text) {
		err := json.Unmarshal(text, new(any))
		line := 1
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			line = p.line(syntax.Offset - 1)
		}
		return nil, fmt.Errorf("line %d: %w", line, err)
	}
	p.d.UseNumber()
	return p.value("", "")
}

type parser struct {
	text []byte
	d    *json.Decoder
}

// line returns the line of an offset in the text.
func (p *parser) line(offset int64) int {
	return 1 + bytes.Count(p.text[:min(max(int(offset), 0), len(p.text))], []byte("\n"))
}

// value reads the next value, which gets this key and path.
func (p *parser) value(key, path string) (*Value, error) {
	token, err := p.d.Token()
	if err != nil {
		return nil, err
	}
	v := &Value{Path: path, Key: key, Line: p.line(p.d.InputOffset()), scalar: token}
	switch t := token.(type) {
	case nil:
		v.kind = "null"
	case bool:
		v.kind = "boolean"
	case string:
		v.kind = "string"
	case json.Number:
		v.kind = "number"
	case json.Delim:
		v.kind, v.scalar = "object", nil
		if t == '[' {
			v.kind = "array"
		}
		return v, p.children(v)
	}
	return v, nil
}

// children reads the members of an object or the items of an array, and the closing delimiter.
func (p *parser) children(v *Value) error {
	for p.d.More() {
		inner, err := p.child(v)
		if err != nil {
			return err
		}
		v.inner = append(v.inner, inner)
	}
	_, err := p.d.Token()
	return err
}

func (p *parser) child(v *Value) (*Value, error) {
	if v.kind == "array" {
		return p.value("", fmt.Sprintf("%s[%d]", v.Path, len(v.inner)))
	}
	token, err := p.d.Token()
	if err != nil {
		return nil, err
	}
	key, _ := token.(string) // the decoder rejects keys of another type
	line := p.line(p.d.InputOffset())
	inner, err := p.value(key, strings.TrimPrefix(v.Path+"."+key, "."))
	if inner != nil {
		inner.Line = line
	}
	return inner, err
}

// Get returns the member of an object whose key equals key in any case, or nil. Like encoding/json, it returns the last one of
// several.
func (v *Value) Get(key string) *Value {
	var found *Value
	if v == nil || v.kind != "object" {
		return nil
	}
	for _, m := range v.inner {
		if strings.EqualFold(m.Key, key) {
			found = m
		}
	}
	return found
}

// Text returns the content of a string, or "" for another value.
func (v *Value) Text() string {
	if v == nil {
		return ""
	}
	s, _ := v.scalar.(string)
	return s
}

// Kind returns "object", "array", "string", "number", "boolean" or "null".
func (v *Value) Kind() string { return v.kind }

// Members returns the members of an object.
func (v *Value) Members() []*Value {
	if v == nil || v.kind != "object" {
		return nil
	}
	return v.inner
}

// PathOf returns the path of a value, or "" for nil.
func (v *Value) PathOf() string {
	if v == nil {
		return ""
	}
	return v.Path
}

// Find returns the value within v whose path equals path in any case, or nil.
func (v *Value) Find(path string) *Value {
	for _, m := range v.inner {
		if found := m.Find(path); found != nil {
			return found
		}
	}
	if strings.EqualFold(v.Path, path) {
		return v
	}
	return nil
}

// Repeated returns the members whose key occurs earlier in the same object.
func (v *Value) Repeated() (all []*Value) {
	for i, m := range v.inner {
		all = append(all, m.Repeated()...)
		same := func(o *Value) bool { return strings.EqualFold(o.Key, m.Key) }
		if v.kind == "object" && slices.ContainsFunc(v.inner[:i], same) {
			all = append(all, m)
		}
	}
	return all
}
