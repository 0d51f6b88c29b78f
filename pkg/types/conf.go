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

// Conf contains the keys that every plugin reads (SPEC 1.1.0, section 1). They match in any case, because containerd writes
// some with capitals.
type Conf struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	IPAM       IPAM            `json:"ipam"`
	DNS        DNS             `json:"dns"`
	PrevResult json.RawMessage `json:"prevResult"`
	Strict     bool            `json:"strict"`
	// Plugins is a key of a list of configurations (conflist), not of a configuration.
	Plugins json.RawMessage `json:"plugins"`
}

// DelConf contains the keys that DEL needs.
type DelConf struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	PrevResult json.RawMessage `json:"prevResult"`
}

// IPAMConf contains only the key ipam.
type IPAMConf struct {
	IPAM IPAM `json:"ipam"`
}

// GCConf contains the keys that only GC reads, so that an invalid value in them does not fail other verbs.
type GCConf struct {
	// Valid lists the attachments of this network that GC must keep. Runtimes with libcni 1.1.0 set ValidOld instead, which was
	// the first name of the key in the specification (containernetworking/cni#1101).
	Valid    ValidAttachments `json:"cni.dev/valid-attachments"`
	ValidOld ValidAttachments `json:"cni.dev/attachments"`
}

// IPAM contains the key of ipam that an interface plugin reads. If Type is empty, the network has no addresses.
type IPAM struct {
	Type string `json:"type"`
}

// A ValidAttachment is an attachment that GC must keep.
type ValidAttachment struct {
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifname"`
}

// ValidAttachments is nil if the configuration lacks the key, and empty if GC must keep no attachment.
type ValidAttachments []ValidAttachment

// UnmarshalJSON implements json.Unmarshaler. It reads null as an empty list, because libcni writes an empty list as null.
func (v *ValidAttachments) UnmarshalJSON(data []byte) error {
	var list []ValidAttachment
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	for i, a := range list {
		if a.ContainerID == "" || a.IfName == "" {
			return fmt.Errorf("entry [%d]: containerID or ifname is missing; nothing is collected", i)
		}
	}
	*v = append(ValidAttachments{}, list...)
	return nil
}

// An Attachment is one interface of one container in one network. Each object that a plugin creates on the host belongs to one
// attachment. In JSON, it is part of files that plugins keep from ADD to DEL.
type Attachment struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifName,omitempty"`
}

func (a Attachment) String() string { return a.Network + "/" + a.ContainerID + "/" + a.IfName }

// ParseAttachment parses the text that String returns. ok is false for a text of fewer or more than three parts.
func ParseAttachment(s string) (a Attachment, ok bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return Attachment{}, false
	}
	return Attachment{Network: parts[0], ContainerID: parts[1], IfName: parts[2]}, true
}

// A Set is a set of attachments.
type Set map[Attachment]bool

// Decode decodes a JSON object into conf. If an object contains a key and the same key with other upper-case letters, Decode
// uses the key whose spelling is exact, as the reference plugins do. The error names each invalid key. Its code is CodeDecode if data is not JSON or a
// value is of the wrong JSON type, and CodeConfig if the Go type of a value does not accept the text.
func Decode(data []byte, conf any) error {
	if string(bytes.TrimSpace(data)) == "null" {
		return Errorf(CodeDecode, "decode configuration: want an object, got null") // json.Unmarshal accepts it
	}
	if hasTwoSpellings(data) && json.Valid(data) {
		data = topValue(data, conf).exact()
	}
	err := json.Unmarshal(data, conf)
	if err == nil {
		return nil
	}
	err = explain(err, data, conf, "decode configuration: ")
	var wrongType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	if errors.As(err, &wrongType) || errors.As(err, &syntax) {
		return Coded(CodeDecode, err)
	}
	return Coded(CodeConfig, err)
}

// explain describes err, which json.Unmarshal of data into out returned, in the words of JSON. It names all invalid
// values, although encoding/json reports only one of them. whole is the beginning of an error of the whole value.
func explain(err error, data []byte, out any, whole string) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("%sbyte %d: %w", whole, syntax.Offset, err)
	}
	var problems []error
	for _, v := range topValue(data, out).invalidValues() {
		problem := v.decode()
		var wrongType *json.UnmarshalTypeError
		if errors.As(problem, &wrongType) {
			p := Problem{Object: v.path(), Kind: ProblemWrongType, Want: kindName(wrongType.Type), Got: wrongType.Value}
			problem = p.Errorf("%w", typeError{wrongType})
		}
		at := whole
		if v.parent != nil {
			at = v.path() + ": "
		}
		problems = append(problems, fmt.Errorf("%s%w", at, problem))
	}
	return errors.Join(problems...)
}

// A typeError is an UnmarshalTypeError with a text that names JSON types, not Go types.
type typeError struct{ *json.UnmarshalTypeError }

func (e typeError) Error() string { return fmt.Sprintf("want %s, got %s", kindName(e.Type), e.Value) }

func (e typeError) Unwrap() error { return e.UnmarshalTypeError }

// kindName returns the JSON type that is decoded into a Go type.
func kindName(t reflect.Type) string {
	t = withoutPointer(t)
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
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "an integer of at least 0"
	}
	return "a number (" + t.String() + ")"
}
