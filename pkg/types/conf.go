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

// Conf has the keys of a network configuration that every plugin reads (SPEC 1.1.0,
// section 1). Keys match in any case, because containerd writes some with capitals.
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

// GCConf has the keys that only GC reads. A mistake in them must not fail other verbs.
type GCConf struct {
	// Valid has the attachments of this network that GC must keep. Runtimes with libcni 1.1.0
	// set ValidOld instead, which was the first name of the key in the specification
	// (containernetworking/cni#1101).
	Valid    ValidAttachments `json:"cni.dev/valid-attachments"`
	ValidOld ValidAttachments `json:"cni.dev/attachments"`
}

// IPAM has the keys of the IPAM configuration that an interface plugin reads.
type IPAM struct {
	Type string `json:"type"`
}

// A ValidAttachment is an attachment that GC must keep.
type ValidAttachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// ValidAttachments is nil if the configuration does not have the key, and empty if GC must
// keep no attachment.
type ValidAttachments []ValidAttachment

// UnmarshalJSON reads null as an empty list, because libcni writes an empty list so.
func (v *ValidAttachments) UnmarshalJSON(data []byte) error {
	var list []ValidAttachment
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	for _, a := range list {
		if a.ContainerID == "" || a.IfName == "" {
			return fmt.Errorf("an entry of cni.dev/valid-attachments has no containerID or no ifname: the attachment that it means is unknown, and nothing is collected")
		}
	}
	*v = append(ValidAttachments{}, list...)
	return nil
}

// An Attachment is one interface of one container in one network. Each object that a plugin
// makes on the node belongs to one attachment.
type Attachment struct {
	Network     string
	ContainerID string
	IfName      string
}

func (a Attachment) String() string { return a.Network + "/" + a.ContainerID + "/" + a.IfName }

// ParseAttachment parses the text that String returns. ok is false if the text does not have
// exactly three parts, separated by slashes.
func ParseAttachment(s string) (a Attachment, ok bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return Attachment{}, false
	}
	return Attachment{Network: parts[0], ContainerID: parts[1], IfName: parts[2]}, true
}

// A Set is a set of attachments.
type Set map[Attachment]bool

// Decode decodes a JSON object into conf. The error has CodeDecode if data is not JSON or a
// value has the wrong JSON type, and CodeConfig if the Go type of a value does not accept it.
// The text names the key.
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
	}
	return "a number (" + t.String() + ")"
}
