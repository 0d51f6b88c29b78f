package schema

import (
	"encoding/json"
	"testing"
)

// FuzzParse checks that Parse accepts exactly the valid JSON texts, that the line of each value exists, and
// that Find finds the values that Repeated returns.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"name": "n", "plugins": [{"type": "bridge", "mtu": "1500", "ipam": {"type": "host-local", "ranges": [[{}]]}}]}`,
		"{\n\"a\": 1,\n\"A\": [null, true, 1e999, \"\"]}", "[", "{", "nul", `{"a": 1} x`, "", `"\ud800"`, "\n\n{\"x\",}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := Parse(text)
		if (err == nil) != json.Valid(text) {
			t.Fatalf("want valid %v as from json.Valid, got the error %v", json.Valid(text), err)
		}
		if err != nil {
			return
		}
		lines := 1
		for _, b := range text {
			if b == '\n' {
				lines++
			}
		}
		var walk func(v *Value)
		walk = func(v *Value) {
			if v.Line < 1 || v.Line > lines {
				t.Fatalf("%s: want a line from 1 to %d, got %d", v.Path, lines, v.Line)
			}
			for _, inner := range v.inner {
				walk(inner)
			}
		}
		walk(v)
		for _, repeated := range v.Repeated() {
			if v.Find(repeated.Path) == nil {
				t.Fatalf("%s: Find returns nil", repeated.Path)
			}
		}
	})
}

func TestParseNamesTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"{\n\"a\": 1\n\"b\": 2}": "line 3: invalid character '\"' after object key:value pair",
		"{\"a\": \"x,\n}":        "line 1: invalid character '\\n' in string literal",
		"":                       "line 1: unexpected end of JSON input",
		"{}\n{}":                 "line 2: invalid character '{' after top-level value",
	} {
		if _, err := Parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: want the error %s, got %v", text, want, err)
		}
	}
}
