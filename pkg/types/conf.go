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

// explain describes err, which json.Unmarshal of data into out returned: it names the key
// whose value is wrong, and what is expected there, in the words of JSON.
func explain(err error, data []byte, out any) error {
	key := ""
	if json.Valid(data) {
		refused := topValue(data, out).firstRefused()
		err = refused.decode()
		key = refused.path()
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

// kindName says in JSON's words what a Go type takes.
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
	}
	return "a number (" + t.String() + ")"
}
