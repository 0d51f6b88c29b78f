package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A state describes a device as it was before ADD moved it. ADD saves the state, and DEL finds and restores the device
// with it. The plugin's version may change between ADD and DEL, so TestState compares every key with a golden file.
type state struct {
	types.Attachment
	Selector string `json:"selector"` // the selector that ADD used
	Sandbox  string `json:"sandbox"`  // path of the container's namespace
	NetNS    uint64 `json:"netns"`    // cookie of that namespace, or zero if it is not known

	// The device as it was on the host. nl.Link explains the fields.
	Name      string    `json:"name"`
	Index     int       `json:"index"`
	Kind      string    `json:"kind"`
	MAC       types.MAC `json:"mac"`
	PermMAC   types.MAC `json:"permMAC"`
	Parent    string    `json:"parent"`
	MTU       int       `json:"mtu"`
	Alias     string    `json:"alias"`
	Up        bool      `json:"up"`
	Peer      int       `json:"peer"`
	PeerNS    int       `json:"peerNS"`
	Master    string    `json:"masterName,omitempty"` // name of the bridge or bond whose port the device was
	Addresses []address `json:"addresses,omitempty"`  // addresses to restore
	// Adopted is the configuration that the container adopted, and that DEL restores. It is nil without useInterfaceNetwork.
	Adopted  *nl.LinkConfig `json:"adopted,omitempty"`
	Settings *settings      `json:"settings,omitempty"` // nil if an earlier version of the plugin saved the state
}

// settings contains what a container can change on its device and what would affect the host afterwards, apart from what
// is in the state itself. nl.Link explains the fields.
type settings struct {
	AltNames []string `json:"altNames"` // without the alternative names that plumb added
	Group    uint32   `json:"group"`
	TxQueue  int      `json:"txQueue"`
	Flags    uint32   `json:"flags"`
}

// An address is an address of a device. nl.Addr explains the fields.
type address struct {
	Prefix        netip.Prefix `json:"prefix"`
	Broadcast     netip.Addr   `json:"broadcast"`
	NoDAD         bool         `json:"noDAD,omitempty"`
	Optimistic    bool         `json:"optimistic,omitempty"`
	NoPrefixRoute bool         `json:"noPrefixRoute,omitempty"`
}

// newState returns the state of l.
func newState(a types.Attachment, l nl.Link) *state {
	return &state{
		Attachment: a, Name: l.Name, Index: l.Index, Kind: l.Kind, MAC: l.MAC, PermMAC: l.PermMAC, Parent: l.Parent,
		MTU: l.MTU, Alias: l.Alias, Up: l.Up, Peer: l.Peer, PeerNS: l.PeerNS,
		Settings: &settings{attach.UserAltNames(l), l.Group, l.TxQueue, l.Flags},
	}
}

func (s *state) isHardware() bool { return nl.Link{Kind: s.Kind}.IsHardware() }

// Validate returns an error if the device's name or the adopted configuration is not valid. It implements statefile.State.
func (s *state) Validate() error {
	return errors.Join(types.CheckIfName(s.Name), s.Adopted.Validate())
}

// candidates returns the interfaces in the namespace of c that may be the device. The interfaces with the device's mark
// come first, even if another program has renamed them. They are followed by the interfaces without a mark that
// isUnmarked accepts. The mark is missing if the kernel does not support alternative names, or if ADD was killed.
func (s *state) candidates(c *nl.Conn) ([]nl.Link, error) {
	links, err := c.Links()
	var marked, unmarked []nl.Link
	for _, l := range links {
		if attach.HasAltName(l, s.Attachment) {
			marked = append(marked, l)
		} else if s.isUnmarked(l) {
			unmarked = append(unmarked, l)
		}
	}
	return append(marked, unmarked...), err
}

// findIn returns the first candidate in the namespace of c. If there is none, the error matches fs.ErrNotExist.
func (s *state) findIn(c *nl.Conn) (nl.Link, error) {
	candidates, err := s.candidates(c)
	if err != nil {
		return nl.Link{}, err
	}
	if len(candidates) == 0 {
		return nl.Link{}, types.NotExist("interface " + s.Name + " is not in " + c.NS().Path())
	}
	return candidates[0], nil
}

// isUnmarked reports whether l may be the device without its mark. The name or the alias must be the
// device's name on the host. A virtual device must have its former MAC as well, unless it has the name
// and the alias that ADD set.
func (s *state) isUnmarked(l nl.Link) bool {
	if l.Kind != s.Kind || l.PermMAC != s.PermMAC || l.Parent != s.Parent || attach.HasOtherAltName(l, s.Attachment) {
		return false
	}
	if l.Name == s.IfName && l.Alias == s.Name {
		return true
	}
	return (l.Name == s.Name || l.Alias == s.Name) && (l.IsHardware() || l.MAC == s.MAC)
}

// isSelectedBy reports whether sel selects the device of the state. l is what sel selects now, or
// the zero Link.
func (s *state) isSelectedBy(sel selector, l nl.Link) bool {
	return s.Selector == sel.String() || attach.HasAltName(l, s.Attachment)
}

// savedNS returns the container's namespace if it is still at the path that ADD saved, or if a process is in it. It returns
// nil if ADD did not save the namespace's cookie. The caller closes the namespace.
func (s *state) savedNS(t *trace.Tracer) *ns.Handle {
	if s.NetNS == 0 {
		return nil
	}
	if h := s.openSaved(s.Sandbox, t); h != nil {
		return h
	}
	processes, _ := ns.Processes()
	for _, pid := range processes {
		if h := s.openSaved(fmt.Sprintf("/proc/%d/ns/net", pid), t); h != nil {
			return h
		}
	}
	return nil
}

// openSaved returns the namespace at path if it is the saved one, or nil.
func (s *state) openSaved(path string, t *trace.Tracer) *ns.Handle {
	h, err := ns.Open(path, t)
	if err != nil || h.Cookie() == s.NetNS {
		return h
	}
	_ = h.Close()
	return nil
}

func (h machine) file(t *trace.Tracer, a types.Attachment) statefile.File {
	return statefile.File{Dir: h.states, Name: types.ShortHash(a.String()) + ".json", Owner: a, Trace: t}
}

// loadAll reads the state files of all attachments, including other networks' attachments. It omits
// files that contain no valid state.
func (h machine) loadAll(t *trace.Tracer) (all []*state, err error) {
	err = statefile.ReadAll(t, h.states, func(path string, text []byte) {
		s := &state{}
		if statefile.Decode(text, s) == nil && path == h.file(t, s.Attachment).Path() {
			all = append(all, s)
		}
	})
	return all, err
}
