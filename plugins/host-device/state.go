package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A state is what ADD saves of a device, so that DEL finds it and restores it.
type state struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`

	Selector string `json:"selector"` // by which ADD found the device
	Sandbox  string `json:"sandbox"`  // path of the container's namespace
	NetNS    uint64 `json:"netns"`    // cookie of that namespace; zero: not known

	Kind    string    `json:"kind,omitempty"`    // as nl.Link
	PermMAC types.MAC `json:"permMAC,omitempty"` // as nl.Link
	Parent  string    `json:"parent,omitempty"`  // as nl.Link

	Name      string    `json:"name"` // on the node
	Alias     string    `json:"alias,omitempty"`
	MAC       types.MAC `json:"mac,omitempty"`
	MTU       int       `json:"mtu"`
	Up        bool      `json:"up"`
	Addresses []address `json:"addresses,omitempty"`
}

// An address is an address of the device that is restored.
type address struct {
	Prefix        netip.Prefix `json:"prefix"`
	NoDAD         bool         `json:"nodad,omitempty"`
	NoPrefixRoute bool         `json:"noprefixroute,omitempty"`
}

// newState returns the state of a device on the node, without its addresses.
func newState(r *skel.Request, sel selector, l nl.Link) *state {
	return &state{
		Network: r.Conf.Name, ContainerID: r.ContainerID, IfName: r.IfName,
		Selector: sel.String(), Sandbox: r.NetNS, NetNS: r.Pod.Cookie(),
		Kind: l.Kind, PermMAC: l.PermMAC, Parent: l.Parent,
		Name: l.Name, Alias: l.Alias, MAC: l.MAC, MTU: l.MTU, Up: l.Up,
	}
}

func (s *state) owner() types.Attachment {
	return types.Attachment{Network: s.Network, ContainerID: s.ContainerID, IfName: s.IfName}
}

// altNamePrefix is what the marks of all attachments begin with.
const altNamePrefix = "plumb-"

// altName returns the alternative name that marks the device of an attachment. The alias cannot mark it:
// it has the device's name on the node, which the reference plugin needs to return the device.
func altName(a types.Attachment) string { return altNamePrefix + statefile.ShortHash(a.String()) }

// isHardware reports whether the device is hardware. When a namespace ends, the kernel returns
// hardware to the node, and deletes other devices.
func (s *state) isHardware() bool { return s.Kind == "" }

// canBe reports whether l can be the device of the state: it is of the same kind, and the same hardware.
func (s *state) canBe(l nl.Link) bool {
	return l.Kind == s.Kind && l.PermMAC == s.PermMAC && l.Parent == s.Parent
}

// isSelectedBy reports whether sel selects the device of the state. l is what sel selects now, or
// the zero Link.
func (s *state) isSelectedBy(sel selector, l nl.Link) bool {
	return s.Selector == sel.String() || slices.Contains(l.AltNames, altName(s.owner()))
}

// isIn reports whether the namespace is the one into which ADD moved the device. Another namespace
// may have been at the same path. isIn returns true if a cookie is not known.
func (s *state) isIn(pod *ns.Handle) bool {
	cookie := pod.Cookie()
	return s.NetNS == 0 || cookie == 0 || s.NetNS == cookie
}

// addressesOf returns the addresses of the device that can be restored: those that did not come from
// DHCP or router advertisements, and that the kernel does not make itself.
func addressesOf(node *nl.Conn, l nl.Link) ([]address, error) {
	addrs, err := node.Addrs(l)
	var kept []address
	for _, a := range addrs {
		if a.Permanent && !(a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast()) {
			kept = append(kept, address{a.Prefix, a.NoDAD, a.NoPrefixRoute})
		}
	}
	return kept, err
}

// file returns the state file of an attachment.
func (h host) file(t *trace.Tracer, a types.Attachment) statefile.File {
	return statefile.File{Dir: h.states, Name: statefile.ShortHash(a.String()) + ".json", Owner: a, Trace: t}
}

// save writes the state file.
func (h host) save(t *trace.Tracer, s *state) error {
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return h.file(t, s.owner()).Write(text)
}

// load reads the state file of an attachment. The errors are those of statefile.Read. If the content of
// the file is not a state, the error matches statefile.ErrUnreadable.
func (h host) load(t *trace.Tracer, a types.Attachment) (*state, error) {
	f := h.file(t, a)
	text, err := f.Read()
	if err != nil {
		return nil, err
	}
	return decodeState(f.Path(), text)
}

// decodeState decodes the content of the file at path.
func decodeState(path string, text []byte) (*state, error) {
	s := &state{}
	err := json.Unmarshal(text, s)
	if err == nil {
		err = types.CheckIfName(s.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, statefile.ErrUnreadable, err)
	}
	return s, nil
}

// loadAll reads the state files of all attachments, also of other networks. It leaves out files
// from which no state can be read.
func (h host) loadAll(t *trace.Tracer) (all []*state, err error) {
	err = statefile.ReadAll(t, h.states, func(path string, text []byte) {
		if s, err := decodeState(path, text); err == nil && path == h.file(t, s.owner()).Path() {
			all = append(all, s)
		}
	})
	return all, err
}

// holder returns the first state of a device that the selector selected, or nil.
func holder(states []*state, sel selector) *state {
	i := slices.IndexFunc(states, func(s *state) bool { return s.Selector == sel.String() })
	if i < 0 {
		return nil
	}
	return states[i]
}
