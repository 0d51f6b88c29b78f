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
	// Plugins is in a list of configurations, and in no configuration of one plugin.
	Plugins json.RawMessage `json:"plugins"`
}

// GCConf is what GC reads besides. The other verbs do not: they must not fail by it.
type GCConf struct {
	// Valid lists the attachments of this network that live on. Runtimes with libcni
	// 1.1.0 say it under ValidOld, which is what the specification called it at first
	// (containernetworking/cni#1101).
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
	key := ""
	if json.Valid(data) {
		key = make(schema).culprit(whole(data, out)).path()
	}
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

// culprit is the innermost part that its variable refuses.
func (s schema) culprit(p *part) *part {
	inner, _ := s.parts(p)
	for i := range inner {
		if json.Unmarshal(inner[i].data, reflect.New(inner[i].t).Interface()) != nil {
			return s.culprit(&inner[i])
		}
	}
	return p
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
	Nested bool   // not at the top of the configuration
	key    string
	known  []string
}

// Likely is the known key that was probably meant; empty: none is near. To find it costs
// more than to find the unknown one.
func (u UnknownKey) Likely() string { return nearest(u.key, u.known) }

func (u UnknownKey) String() string {
	s := fmt.Sprintf("unknown key %q with value %s", u.Path, u.Value)
	if likely := u.Likely(); likely != "" {
		s += fmt.Sprintf("; did you mean %q?", likely)
	}
	return s
}

// Unknown lists the keys of the object data, which Decode took, that neither conf (a
// pointer to a struct with json tags) nor shared names, sorted. It looks into nested
// objects and lists of objects where conf has structs for them.
func Unknown(data []byte, conf any, shared ...string) []UnknownKey {
	found := make(schema).unknown(whole(data, conf), shared)
	slices.SortStableFunc(found, func(a, b UnknownKey) int { return strings.Compare(a.Path, b.Path) })
	return slices.CompactFunc(found, func(a, b UnknownKey) bool { return a.Path == b.Path })
}

func (s schema) unknown(p *part, shared []string) []UnknownKey {
	var found []UnknownKey
	inner, others := s.parts(p)
	for i := range inner {
		found = append(found, s.unknown(&inner[i], nil)...)
	}
	var known []string
	for _, m := range others {
		if slices.ContainsFunc(shared, func(k string) bool { return strings.EqualFold(k, m.key) }) {
			continue
		}
		if known == nil {
			known = slices.Clone(shared)
			for _, f := range s.fields(p.t) {
				known = append(known, f.name)
			}
		}
		u := part{in: p, key: m.key}
		found = append(found, UnknownKey{Path: u.path(), Value: string(m.value), Nested: p.in != nil, key: m.key, known: known})
	}
	return found
}

// A part is a value within a configuration, and the Go type that takes it.
type part struct {
	in    *part  // nil: it is the whole
	key   string // in an object
	index int    // in a list
	data  []byte
	t     reflect.Type // no pointer
}

func whole(data []byte, conf any) *part { return &part{data: data, t: pointedTo(reflect.TypeOf(conf))} }

func pointedTo(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// path is how people write where the part is: "ranges[0].subnet".
func (p *part) path() string {
	switch {
	case p.in == nil:
		return ""
	case p.in.t.Kind() == reflect.Slice:
		return fmt.Sprintf("%s[%d]", p.in.path(), p.index)
	case p.in.in == nil:
		return p.key
	}
	return p.in.path() + "." + p.key
}

// A schema keeps the fields of the structs that were met so far.
type schema map[reflect.Type][]field

func (s schema) fields(t reflect.Type) []field {
	known, ok := s[t]
	if !ok {
		known = fieldsOf(t)
		s[t] = known
	}
	return known
}

// parts lists the values within p that a variable of its type has room for, and the
// members of an object that a struct has no field for.
func (s schema) parts(p *part) (inner []part, others []member) {
	switch p.t.Kind() {
	case reflect.Slice:
		if p.t.Elem().Kind() == reflect.Uint8 {
			return nil, nil
		}
		for i, data := range items(p.data) {
			inner = append(inner, part{in: p, index: i, data: data, t: pointedTo(p.t.Elem())})
		}
	case reflect.Map:
		for _, m := range members(p.data) {
			inner = append(inner, part{in: p, key: m.key, data: m.value, t: pointedTo(p.t.Elem())})
		}
	case reflect.Struct:
		fields := s.fields(p.t)
		if len(fields) == 0 {
			return nil, nil
		}
		for _, m := range members(p.data) {
			i := slices.IndexFunc(fields, func(f field) bool { return strings.EqualFold(f.name, m.key) })
			if i < 0 {
				others = append(others, m)
				continue
			}
			inner = append(inner, part{in: p, key: m.key, data: m.value, t: pointedTo(fields[i].t)})
		}
	}
	return inner, others
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
