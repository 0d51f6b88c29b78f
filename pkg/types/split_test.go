package types

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
)

// FuzzSplit: what is JSON is taken apart as encoding/json does it, and what is none ends.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{
		` { "a" : 1 , "b":[1, {"c":"}"}],"d":"\"x\\", "e\u0041":{ } ,"n": null,"":-1.5e+7,"a":"again","z":true } `,
		"[1,\t\"]\",{\"a\":[[]]},[ ] ,null\n, true]\r\n", `{}`, `[]`, `[ ]`, `"{"`, `5`, `null`, ``,
		`{`, `{"a`, `{"a":`, `{"a"}`, `{"a":1`, `{"a":,`, `["\`, `[1,`, `[}`, `[,`, "{\"\xff\xff\":\"\xff\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		object, list := members(data), items(data)
		if !json.Valid(data) {
			return
		}
		var wantObject map[string]json.RawMessage
		_ = json.Unmarshal(data, &wantObject) // a list is not taken for one, nor the other way
		got := map[string]json.RawMessage{}
		for _, m := range object {
			got[m.key] = m.value
		}
		if !maps.EqualFunc(got, wantObject, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
			t.Errorf("members of %s: %s, want %s", data, got, wantObject)
		}
		var wantList []json.RawMessage
		_ = json.Unmarshal(data, &wantList)
		if !slices.EqualFunc(list, wantList, func(a []byte, b json.RawMessage) bool { return string(a) == string(b) }) {
			t.Errorf("items of %s: %s, want %s", data, list, wantList)
		}
	})
}
