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
	Path  string     // for example "plugins[0].ipam"; empty for the whole text
	Key   string     // the key of a member of an object
	Line  int        // the line of the key or, without a key, of the value; the first line is 1
	token json.Token // the delimiter that begins an object or a list, or the scalar
	inner []*Value
}

// A SyntaxError is an error in a line of a JSON text.
type SyntaxError struct {
	Line int
	// Before is the line before it that ends without the comma that is probably missing, or 0.
	Before int
	Err    error
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Parse parses a JSON text. An error is a *SyntaxError.
func Parse(text []byte) (*Value, error) {
	p := &parser{text: text, d: json.NewDecoder(bytes.NewReader(text))}
	if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
		found := &SyntaxError{Line: 1, Err: err}
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			found.Line = p.line(syntax.Offset - 1)
			end := len(bytes.TrimRight(text[:max(syntax.Offset-1, 0)], " \t\r\n")) // of the value before the error
			if before := p.line(int64(end)); before < found.Line && strings.Contains(err.Error(), " after ") {
				found.Before = before
			}
		}
		return nil, found
	}
	p.d.UseNumber()
	return p.value("", ""), nil
}

// A parser reads a valid JSON text, so that no call of the decoder fails.
type parser struct {
	text []byte
	d    *json.Decoder
}

func (p *parser) line(offset int64) int {
	return 1 + bytes.Count(p.text[:min(max(int(offset), 0), len(p.text))], []byte("\n"))
}

// value reads the next value and gives it this key and path.
func (p *parser) value(key, path string) *Value {
	token, _ := p.d.Token()
	v := &Value{Path: path, Key: key, Line: p.line(p.d.InputOffset()), token: token}
	if _, nested := token.(json.Delim); !nested {
		return v
	}
	for p.d.More() {
		v.inner = append(v.inner, p.child(v))
	}
	_, _ = p.d.Token() // the closing delimiter
	return v
}

// child reads the next member of an object or item of a list.
func (p *parser) child(v *Value) *Value {
	if !v.IsObject() {
		return p.value("", fmt.Sprintf("%s[%d]", v.Path, len(v.inner)))
	}
	token, _ := p.d.Token()
	key, line := token.(string), p.line(p.d.InputOffset())
	inner := p.value(key, strings.TrimPrefix(v.Path+"."+key, "."))
	inner.Line = line
	return inner
}

// IsObject reports whether the value is an object. It is false for nil.
func (v *Value) IsObject() bool { return v != nil && v.token == json.Delim('{') }

// Members returns the members of an object.
func (v *Value) Members() []*Value {
	if !v.IsObject() {
		return nil
	}
	return v.inner
}

// Get returns the member of an object with this key, regardless of case, or nil. Like encoding/json, it prefers the
// last match.
func (v *Value) Get(key string) (found *Value) {
	for _, m := range v.Members() {
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
	s, _ := v.token.(string)
	return s
}

// Find returns the value within v with this path, regardless of case, or nil.
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

// Repeated returns the members whose key occurs earlier in the same object. A key in another spelling is not the same key,
// because plugins prefer the exact spelling.
func (v *Value) Repeated() (all []*Value) {
	for i, m := range v.inner {
		all = append(all, m.Repeated()...)
		same := func(o *Value) bool { return o.Key == m.Key }
		if v.IsObject() && slices.ContainsFunc(v.inner[:i], same) {
			all = append(all, m)
		}
	}
	return all
}
