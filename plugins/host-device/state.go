package main

import (
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A state is what ADD saves of a device, so that DEL finds it and restores it. DEL may be of a later version of the
// plugin than ADD: testdata/state.golden contains every key.
type state struct {
	types.Attachment
	Selector string `json:"selector"` // by which ADD found the device
	Sandbox  string `json:"sandbox"`  // path of the container's namespace
	NetNS    uint64 `json:"netns"`    // cookie of that namespace; zero: not known

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
	Master    string    `json:"masterName,omitempty"` // of the bridge or bond that the device was a port of
	Addresses []address `json:"addresses,omitempty"`  // the addresses that are restored
}

// An address is an address of a device. nl.Addr explains the fields.
type address struct {
	Prefix        netip.Prefix `json:"prefix"`
	Broadcast     netip.Addr   `json:"broadcast"`
	NoDAD         bool         `json:"noDAD,omitempty"`
	Optimistic    bool         `json:"optimistic,omitempty"`
	NoPrefixRoute bool         `json:"noPrefixRoute,omitempty"`
}

// newState returns the state of l, a device on the host.
func newState(a types.Attachment, l nl.Link) *state {
	return &state{
		Attachment: a, Name: l.Name, Index: l.Index, Kind: l.Kind, MAC: l.MAC, PermMAC: l.PermMAC, Parent: l.Parent,
		MTU: l.MTU, Alias: l.Alias, Up: l.Up, Peer: l.Peer, PeerNS: l.PeerNS,
	}
}

// isHardware is nl.Link.IsHardware for the device.
func (s *state) isHardware() bool { return nl.Link{Kind: s.Kind}.IsHardware() }

// Validate returns an error if the device has no name.
func (s *state) Validate() error { return types.CheckIfName(s.Name) }

// candidates returns the interfaces in the namespace of c that have the names of the device. The first ones have its
// mark, even if another program has renamed them. The others have no mark, because the kernel has no
// alternative names or ADD was killed: they have the name of the device on the host as their name or alias.
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
		return nl.Link{}, notFoundError("interface " + s.Name + " is not in " + c.NS().Path())
	}
	return candidates[0], nil
}

// isUnmarked reports whether l is the device without its mark. A virtual device has the MAC that it
// had on the host, or else the name and the alias that ADD set.
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

// savedNS returns the namespace of the container if it is still at the path that ADD saved, or else nil. If the cookie
// of that namespace is not known, it is nil.
func (s *state) savedNS(t *trace.Tracer) *ns.Handle {
	saved, _ := ns.Open(s.Sandbox, t) // nil if there is no namespace at the path
	if saved != nil && (s.NetNS == 0 || saved.Cookie() != s.NetNS) {
		_ = saved.Close()
		return nil
	}
	return saved
}

// file returns the state file of an attachment.
func (h machine) file(t *trace.Tracer, a types.Attachment) statefile.File {
	return statefile.File{Dir: h.states, Name: statefile.ShortHash(a.String()) + ".json", Owner: a, Trace: t}
}

// loadAll reads the state files of all attachments, also of other networks. It leaves out files
// from which no state can be read.
func (h machine) loadAll(t *trace.Tracer) (all []*state, err error) {
	err = statefile.ReadAll(t, h.states, func(path string, text []byte) {
		s := &state{}
		if statefile.Decode(text, s) == nil && path == h.file(t, s.Attachment).Path() {
			all = append(all, s)
		}
	})
	return all, err
}
