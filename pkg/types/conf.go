package types

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Conf is the part of a network configuration that every plugin reads (SPEC,
// section 1). Keys match in any case: containerd capitalises some.
type Conf struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	IPAM       IPAM            `json:"ipam"`
	DNS        DNS             `json:"dns"`
	PrevResult json.RawMessage `json:"prevResult"`
	Strict     bool            `json:"strict"`
	// Valid lists the attachments of this network that live on (GC only). Runtimes
	// with libcni 1.1.0 say it under ValidOld, which is what the specification
	// called it at first (containernetworking/cni issue 1101).
	Valid    ValidAttachments `json:"cni.dev/valid-attachments"`
	ValidOld ValidAttachments `json:"cni.dev/attachments"`
}

// IPAM is what an interface plugin knows of its IPAM configuration.
type IPAM struct {
	Type string `json:"type"`
}

// A ValidAttachment is how GC names an attachment that lives on.
type ValidAttachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// ValidAttachments is nil when the configuration says nothing, and empty when it
// says that nothing lives on.
type ValidAttachments []ValidAttachment

// UnmarshalJSON takes null for an empty list: libcni writes it for one.
func (v *ValidAttachments) UnmarshalJSON(data []byte) error {
	var list []ValidAttachment
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	for _, a := range list {
		if a.ContainerID == "" || a.IfName == "" {
			return fmt.Errorf("an entry of cni.dev/valid-attachments without containerID or ifname: what it keeps cannot be told, so nothing is collected")
		}
	}
	*v = append(ValidAttachments{}, list...)
	return nil
}

// An Attachment is one interface of one container in one network: the identity
// under which a plugin owns things on the node.
type Attachment struct {
	Network     string
	ContainerID string
	IfName      string
}

func (a Attachment) String() string { return a.Network + "/" + a.ContainerID + "/" + a.IfName }

// ParseAttachment reads what String printed. None of the three may hold a slash.
func ParseAttachment(s string) (a Attachment, ok bool) {
	part := strings.Split(s, "/")
	if len(part) != 3 || slices.Contains(part, "") {
		return Attachment{}, false
	}
	return Attachment{Network: part[0], ContainerID: part[1], IfName: part[2]}, true
}

// A Set is the set of attachments that GC is to keep.
type Set map[Attachment]bool

// Decode reads a JSON object into conf. What is not JSON, or not of the right
// shape, has CodeDecode; a value that its type refuses has CodeConfig. The text
// names the key.
func Decode(data []byte, conf any) error {
	if string(bytes.TrimSpace(data)) == "null" {
		return Errorf(CodeDecode, "decode configuration: want an object, have null")
	}
	err := json.Unmarshal(data, conf)
	var shape *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &shape), errors.As(err, &syntax):
		return Errorf(CodeDecode, "decode configuration: %w", explain(err, data, conf))
	}
	return Errorf(CodeConfig, "invalid configuration: %w", explain(err, data, conf))
}

// explain says in JSON's words, and with the key, what json.Unmarshal of data into
// out disliked.
func explain(err error, data []byte, out any) error {
	key := culprit("", data, reflect.TypeOf(out))
	if key != "" {
		key = fmt.Sprintf("key %q: ", key)
	}
	var shape *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &shape):
		return fmt.Errorf("%swant %s, have %s", key, kindName(shape.Type), shape.Value)
	case errors.As(err, &syntax):
		return fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	return fmt.Errorf("%s%w", key, err)
}

// culprit is the path of the value in data that a variable of type t refuses; empty:
// data itself.
func culprit(path string, data json.RawMessage, t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for _, p := range parts(path, data, t) {
		if json.Unmarshal(p.data, reflect.New(p.t).Interface()) != nil {
			return culprit(p.path, p.data, p.t)
		}
	}
	return path
}

// kindName says in JSON's words what a Go type takes.
func kindName(t reflect.Type) string {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a number (" + t.String() + ")"
}

// An UnknownKey is a key of a configuration that nothing reads.
type UnknownKey struct {
	Path   string // "ipam.rangeStrat"
	Value  string // as written
	Likely string // the known key that was probably meant; empty: none is near
	Nested bool   // not at the top of the configuration
}

func (u UnknownKey) String() string {
	s := fmt.Sprintf("unknown key %q with value %s", u.Path, u.Value)
	if u.Likely != "" {
		s += fmt.Sprintf("; did you mean %q?", u.Likely)
	}
	return s
}

// Unknown lists the keys of the object data that neither conf (a pointer to a
// struct with json tags) nor shared names, sorted. It looks into nested objects
// and lists of objects where conf has structs for them.
func Unknown(data []byte, conf any, shared ...string) []UnknownKey {
	found := unknown("", data, reflect.TypeOf(conf), shared)
	slices.SortFunc(found, func(a, b UnknownKey) int { return strings.Compare(a.Path, b.Path) })
	return found
}

func unknown(path string, data json.RawMessage, t reflect.Type, shared []string) []UnknownKey {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var found []UnknownKey
	for _, p := range parts(path, data, t) {
		found = append(found, unknown(p.path, p.data, p.t, nil)...)
	}
	fields := fieldsOf(t)
	var object map[string]json.RawMessage
	if len(fields) == 0 || json.Unmarshal(data, &object) != nil {
		return found
	}
	known := slices.Clone(shared)
	for _, f := range fields {
		known = append(known, f.name)
	}
	for key, value := range object {
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) }) {
			found = append(found, UnknownKey{Path: join(path, key), Value: string(value), Likely: nearest(key, known), Nested: path != ""})
		}
	}
	return found
}

// A part is a value within a JSON object or list, and the Go type that takes it.
type part struct {
	path string
	data json.RawMessage
	t    reflect.Type
}

// parts lists the values within data that a variable of type t has room for.
func parts(path string, data json.RawMessage, t reflect.Type) []part {
	var found []part
	switch t.Kind() {
	case reflect.Slice:
		var items []json.RawMessage
		if t.Elem().Kind() == reflect.Uint8 || json.Unmarshal(data, &items) != nil {
			return nil
		}
		for i, item := range items {
			found = append(found, part{fmt.Sprintf("%s[%d]", path, i), item, t.Elem()})
		}
	case reflect.Map:
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil {
			return nil
		}
		for key, value := range object {
			found = append(found, part{join(path, key), value, t.Elem()})
		}
	case reflect.Struct:
		var object map[string]json.RawMessage
		fields := fieldsOf(t)
		if len(fields) == 0 || json.Unmarshal(data, &object) != nil {
			return nil
		}
		for key, value := range object {
			if i := slices.IndexFunc(fields, func(f field) bool { return strings.EqualFold(f.name, key) }); i >= 0 {
				found = append(found, part{join(path, key), value, fields[i].t})
			}
		}
	}
	return found
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

type field struct {
	name string
	t    reflect.Type
}

// fieldsOf lists the fields of a struct that encoding/json fills by name, those of
// embedded structs among them.
func fieldsOf(t reflect.Type) []field {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "":
			fields = append(fields, fieldsOf(f.Type)...)
		case name != "":
			fields = append(fields, field{name, f.Type})
		case f.IsExported():
			fields = append(fields, field{f.Name, f.Type})
		}
	}
	return fields
}

// nearest is the known key within two edits of key, or one for short keys.
func nearest(key string, known []string) string {
	best, least := "", 3
	if len(key) < 5 {
		least = 2
	}
	for _, k := range known {
		if d := edits(strings.ToLower(key), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// edits is the Levenshtein distance of two short texts.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := corner
			if a[i] != b[j] {
				cost++
			}
			corner = row[j+1]
			row[j+1] = min(cost, row[j]+1, corner+1)
		}
	}
	return row[len(b)]
}
