package main

import (
	"slices"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A state is what ADD saves of a device, so that DEL finds it and restores it. The names of its keys
// are not case-sensitive.
type state struct {
	types.Attachment
	Selector string // by which ADD found the device
	Sandbox  string // path of the container's namespace
	NetNS    uint64 // cookie of that namespace; zero: not known

	nl.Link              // the device as it was on the node
	MasterName string    `json:",omitempty"` // of the bridge or bond that the device was a port of
	Addresses  []nl.Addr `json:",omitempty"` // those that are restored
}

// Validate returns an error if the device has no name.
func (s *state) Validate() error { return types.CheckIfName(s.Name) }

// findIn returns the device if the namespace of c has it. It finds the device by its mark, even if
// another program has renamed it. If there is no mark, because the kernel has no alternative names or
// ADD was killed, it finds the device by its name on the node, which is its name or its alias. If no
// interface is the device, the error matches fs.ErrNotExist.
func (s *state) findIn(c *nl.Conn) (nl.Link, error) {
	links, err := c.Links()
	if err != nil {
		return nl.Link{}, err
	}
	i := slices.IndexFunc(links, func(l nl.Link) bool { return attach.HasAltName(l, s.Attachment) })
	if i < 0 {
		i = slices.IndexFunc(links, s.isUnmarked)
	}
	if i < 0 {
		return nl.Link{}, notFoundError("interface " + s.Name + " is not in " + c.NS().Path())
	}
	return links[i], nil
}

// isUnmarked reports whether l is the device without its mark. A virtual device has the MAC that it
// had on the node, or else the name and the alias that ADD set.
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

// file returns the state file of an attachment.
func (h host) file(t *trace.Tracer, a types.Attachment) statefile.File {
	return statefile.File{Dir: h.states, Name: statefile.ShortHash(a.String()) + ".json", Owner: a, Trace: t}
}

// loadAll reads the state files of all attachments, also of other networks. It leaves out files
// from which no state can be read.
func (h host) loadAll(t *trace.Tracer) (all []*state, err error) {
	err = statefile.ReadAll(t, h.states, func(path string, text []byte) {
		s := &state{}
		if statefile.Decode(text, s) == nil && path == h.file(t, s.Attachment).Path() {
			all = append(all, s)
		}
	})
	return all, err
}
