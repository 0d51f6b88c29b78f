package types

import (
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
	// Valid lists the attachments of this network that live on (GC only).
	Valid []ValidAttachment `json:"cni.dev/valid-attachments"`
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
	err := json.Unmarshal(data, conf)
	if err == nil && string(trimSpace(data)) == "null" {
		return Errorf(CodeDecode, "decode configuration: want a JSON object, have null")
	}
	if err == nil {
		return nil
	}
	var shape *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &shape) && shape.Field != "":
		return Errorf(CodeDecode, "decode configuration: key %q wants %s, has %s", shape.Field, kindName(shape.Type), shape.Value)
	case errors.As(err, &shape):
		return Errorf(CodeDecode, "decode configuration: want a JSON object, have %s", shape.Value)
	case errors.As(err, &syntax):
		return Errorf(CodeDecode, "decode configuration: byte %d: %w", syntax.Offset, err)
	case strings.Contains(err.Error(), "unexpected end of JSON input"):
		return Errorf(CodeDecode, "decode configuration: %w", err)
	}
	return Errorf(CodeConfig, "invalid configuration: %w", err)
}

func trimSpace(data []byte) []byte { return []byte(strings.TrimSpace(string(data))) }

// kindName says in JSON's words what a Go type takes.
func kindName(t reflect.Type) string {
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
	switch t.Kind() {
	case reflect.Slice:
		return unknownInList(path, data, t.Elem())
	case reflect.Struct:
		return unknownInObject(path, data, t, shared)
	}
	return nil
}

func unknownInList(path string, data json.RawMessage, element reflect.Type) []UnknownKey {
	var items []json.RawMessage
	if json.Unmarshal(data, &items) != nil {
		return nil
	}
	var found []UnknownKey
	for i, item := range items {
		found = append(found, unknown(fmt.Sprintf("%s[%d]", path, i), item, element, nil)...)
	}
	return found
}

func unknownInObject(path string, data json.RawMessage, t reflect.Type, shared []string) []UnknownKey {
	var object map[string]json.RawMessage
	if json.Unmarshal(data, &object) != nil {
		return nil
	}
	known := slices.Clone(shared)
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		known = append(known, name)
		fields[strings.ToLower(name)] = t.Field(i).Type
	}
	if len(fields) == 0 {
		return nil
	}
	var found []UnknownKey
	for key, value := range object {
		full := strings.TrimPrefix(path+"."+key, ".")
		if field, ok := fields[strings.ToLower(key)]; ok {
			found = append(found, unknown(full, value, field, nil)...)
		} else if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) }) {
			found = append(found, UnknownKey{Path: full, Value: string(value), Likely: nearest(key, known)})
		}
	}
	return found
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
