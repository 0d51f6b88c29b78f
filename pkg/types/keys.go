package types

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// An UnknownKey is a key of a configuration that no plugin reads.
type UnknownKey struct {
	Path   string   // the place of the key, for example "ipam.rangeStrat"
	Value  string   // the JSON text of the value
	Nested bool     // the key is in an object within the configuration
	name   string   // the last part of Path
	known  []string // the keys that are read from the same object
}

// Likely returns the known key that was probably meant, or "" if none is similar.
func (u UnknownKey) Likely() string {
	likely := Nearest(u.name, u.known)
	if strings.EqualFold(likely, u.name) { // the object contains the known key as well
		return ""
	}
	return likely
}

// String returns a warning with the key, its value, and the known key that was probably meant.
func (u UnknownKey) String() string {
	s := fmt.Sprintf("%s: unknown key with value %s", u.Path, u.Value)
	if likely := u.Likely(); likely != "" {
		s += fmt.Sprintf("; did you mean %q?", likely)
	}
	return s
}

// Unknown returns the keys of a configuration that are neither read into conf, a pointer to a struct with json tags, nor
// listed in shared, sorted by path. It looks into nested objects and lists that are structs in conf, except values of a wrong
// type. Keys match in any case, as encoding/json matches them, unless the object also contains the exact key.
func Unknown(data []byte, conf any, shared ...string) []UnknownKey {
	found := topValue(data, conf).unknownKeys(shared)
	slices.SortFunc(found, func(a, b UnknownKey) int { return strings.Compare(a.Path, b.Path) })
	return found
}

// CheckNotTwice returns an error with CodeConfig if a JSON object contains one of the keys twice, in any case, or if keys is
// empty and the object contains any key twice. encoding/json would use the last of the two.
func CheckNotTwice(data []byte, keys ...string) error {
	d, seen := json.NewDecoder(bytes.NewReader(data)), map[string]bool{}
	if _, err := d.Token(); err != nil {
		return Errorf(CodeDecode, "decode configuration: %w", err)
	}
	for d.More() {
		token, err := d.Token()
		if err == nil {
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return Errorf(CodeDecode, "decode configuration: %w", err)
		}
		key := fmt.Sprint(token)
		if len(keys) > 0 {
			key = strings.ToLower(key)
		}
		if seen[key] && (len(keys) == 0 || slices.Contains(keys, key)) {
			return Errorf(CodeConfig, "%s: the key occurs twice; delete one of the two", key)
		}
		seen[key] = true
	}
	return nil
}

// A value is one JSON value of a configuration.
type value struct {
	parent *value // the enclosing value, or nil if v is the whole configuration
	key    string // key of the value, if the parent is an object
	index  int    // index of the value, if the parent is a list
	data   json.RawMessage
	typ    reflect.Type // type into which encoding/json decodes the value, without pointers, or nil if nothing reads the value
}

func topValue(data []byte, out any) *value {
	return &value{data: data, typ: withoutPointer(reflect.TypeOf(out))}
}

func withoutPointer(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// path returns the place of v in the configuration, for example "ranges[0].subnet".
func (v *value) path() string {
	switch {
	case v.parent == nil:
		return ""
	case v.parent.typ.Kind() == reflect.Slice:
		return fmt.Sprintf("%s[%d]", v.parent.path(), v.index)
	case v.parent.parent == nil:
		return v.key
	}
	return v.parent.path() + "." + v.key
}

func (v *value) decode() error { return json.Unmarshal(v.data, reflect.New(v.typ).Interface()) }

// invalidValues returns the innermost values within v that encoding/json cannot decode, sorted by path. It returns v
// itself if the values within v are valid.
func (v *value) invalidValues() []*value {
	if v.typ == nil || v.decode() == nil {
		return nil
	}
	var found []*value
	for _, inner := range v.children() {
		found = append(found, inner.invalidValues()...)
	}
	if found == nil {
		return []*value{v}
	}
	return found
}

func (v *value) unknownKeys(shared []string) []UnknownKey {
	var found []UnknownKey
	for _, inner := range v.children() {
		switch {
		case inner.typ != nil:
			found = append(found, inner.unknownKeys(nil)...)
		case !containsKey(shared, inner.key):
			known := slices.Clone(shared)
			for _, f := range fieldsOf(v.typ) {
				known = append(known, f.name)
			}
			found = append(found, UnknownKey{inner.path(), string(inner.data), v.parent != nil, inner.key, known})
		}
	}
	return found
}

func containsKey(keys []string, key string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { return strings.EqualFold(k, key) })
}

// children returns the items of a list, or the members of an object, sorted by key. It returns nil if the type of v is neither
// a list nor an object with named members.
func (v *value) children() []*value {
	switch v.typ.Kind() {
	case reflect.Slice:
		return v.items()
	case reflect.Map:
		elem := withoutPointer(v.typ.Elem())
		return v.members(func(string, map[string]json.RawMessage) reflect.Type { return elem })
	case reflect.Struct:
		fields := fieldsOf(v.typ)
		if len(fields) == 0 && decodesItself(v.typ) { // as netip.Addr does
			return nil
		}
		return v.members(func(key string, all map[string]json.RawMessage) reflect.Type {
			i := slices.IndexFunc(fields, func(f field) bool { return strings.EqualFold(f.name, key) })
			if i < 0 || fields[i].name != key && all[fields[i].name] != nil {
				return nil
			}
			return withoutPointer(fields[i].typ)
		})
	}
	return nil
}

func (v *value) items() []*value {
	var list []json.RawMessage
	if json.Unmarshal(v.data, &list) != nil { // text, which a []byte accepts, or a wrong value
		return nil
	}
	var all []*value
	for i, data := range list {
		all = append(all, &value{parent: v, index: i, data: data, typ: withoutPointer(v.typ.Elem())})
	}
	return all
}

// members returns the members of an object. typeOf returns the type of the member with the key; all contains all members.
func (v *value) members(typeOf func(key string, all map[string]json.RawMessage) reflect.Type) []*value {
	var object map[string]json.RawMessage
	if json.Unmarshal(v.data, &object) != nil {
		return nil
	}
	var all []*value
	for _, key := range slices.Sorted(maps.Keys(object)) {
		all = append(all, &value{parent: v, key: key, data: object[key], typ: typeOf(key, object)})
	}
	return all
}

// decodesItself reports whether encoding/json calls a method of the type to decode it.
func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// exact returns the data of v without the members that nothing reads. These include a key that differs only in case from
// a known key of the same object. encoding/json would use the last of the two. Programs in Go write such keys, because they
// encode fields for their own use, for example "Address" beside "address" in a configuration of static.
func (v *value) exact() json.RawMessage {
	if v.typ == nil || decodesItself(v.typ) {
		return v.data
	}
	children := v.children()
	if children == nil {
		return v.data
	}
	list, object := []json.RawMessage{}, map[string]json.RawMessage{}
	for _, inner := range children {
		if inner.typ != nil {
			text := inner.exact()
			list = append(list, text)
			object[inner.key] = text
		}
	}
	var text []byte
	if v.typ.Kind() == reflect.Slice {
		text, _ = json.Marshal(list) // succeeds, because encoding/json decoded the parts
	} else {
		text, _ = json.Marshal(object)
	}
	return text
}

// hasTwoSpellings reports whether data may contain an object with two keys that differ only in case. It takes a few
// microseconds, and exact ten times as long.
func hasTwoSpellings(data []byte) bool {
	spellings := map[string]string{}
	for {
		_, rest, found := bytes.Cut(data, []byte{'"'})
		if !found {
			return false
		}
		end := 0
		for end < len(rest) && rest[end] != '"' {
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(rest) {
			return false
		}
		key := string(rest[:end])
		data = bytes.TrimLeft(rest[end+1:], " \t\r\n")
		if len(data) == 0 || data[0] != ':' {
			continue
		}
		folded := strings.ToLower(key)
		if other, seen := spellings[folded]; seen && other != key {
			return true
		}
		spellings[folded] = key
	}
}

type field struct {
	name string
	typ  reflect.Type
}

// fieldsOf returns the fields of a struct that encoding/json fills by name, including the fields of embedded structs.
func fieldsOf(t reflect.Type) (fields []field) {
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if embedded := f.Anonymous && name == ""; !embedded && name != "-" && f.IsExported() {
			fields = append(fields, field{cmp.Or(name, f.Name), f.Type})
		}
	}
	return fields
}

// Nearest returns the known key that differs from key by at most two edits, or by one if key is shorter than five bytes.
func Nearest(key string, known []string) string {
	best, limit := "", 3
	if len(key) < 5 {
		limit = 2
	}
	for _, k := range known {
		if d := editDistance(strings.ToLower(key), strings.ToLower(k)); d < limit {
			best, limit = k, d
		}
	}
	return best
}

// editDistance returns the Levenshtein distance of two short texts.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
