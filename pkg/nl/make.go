package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/vishvananda/netlink"
)

// RandomMAC returns a fresh locally administered unicast address (IEEE 802, 8.2).
func RandomMAC() types.MAC {
	b := binary.BigEndian.AppendUint64(nil, rand.Uint64())[:6]
	b[0] = b[0]&^1 | 2
	return types.MAC(b)
}

// Veth describes a veth pair.
type Veth struct {
	Name    string    // of the end in the connection's namespace
	Peer    string    // name of the other end
	PeerIn  *Conn     // its namespace
	PeerMAC types.MAC // of the other end; zero: random
	MTU     int       // of both ends, in bytes; zero: the kernel's default
	// Group is the group of the end in the connection's namespace. The kernel takes no
	// alias in the request that makes a link, but it takes a group: the group tells to
	// which network the link belongs until the caller sets the alias and clears the group.
	Group uint32
}

// AddVeth makes a veth pair, each end in its namespace under its final name, in one
// request, and pushes its removal. The error matches fs.ErrExist when either name is
// taken.
func (c *Conn) AddVeth(u *undo.Stack, v Veth) (near, far Link, err error) {
	if v.PeerMAC == "" {
		v.PeerMAC = RandomMAC()
	}
	pair := netlink.NewVeth(linkAttrs(v.Name, v.MTU))
	pair.Group = v.Group
	pair.PeerName = v.Peer
	pair.PeerHardwareAddr = v.PeerMAC.Bytes()
	pair.PeerNamespace = netlink.NsFd(v.PeerIn.h.FD())
	if near, err = c.add(u, c, pair); err != nil {
		return Link{}, Link{}, err
	}
	far = Link{Index: near.Peer, Name: v.Peer, Kind: "veth", MAC: v.PeerMAC, MTU: near.MTU, Peer: near.Index}
	return near, far, nil
}

// A BridgeSpec is a bridge as it is to be made. MAC pins its address, so that it does
// not follow the ports' (the kernel takes the lowest of theirs otherwise).
type BridgeSpec struct {
	Name          string
	MAC           types.MAC
	MTU           int // in bytes; zero: the kernel's default
	VLANFiltering bool
}

// EnsureBridge makes the bridge unless a link of that name is there; then it returns
// that link, whatever it is, and made is false. A bridge is shared: it is never undone.
func (c *Conn) EnsureBridge(b BridgeSpec) (l Link, made bool, err error) {
	l, err = c.Link(b.Name)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return l, false, err
	}
	bridge := &netlink.Bridge{LinkAttrs: linkAttrs(b.Name, b.MTU)}
	bridge.HardwareAddr = b.MAC.Bytes()
	if b.VLANFiltering {
		bridge.VlanFiltering = &b.VLANFiltering
	}
	var shared undo.Stack
	l, err = c.add(&shared, c, bridge)
	if errors.Is(err, fs.ErrExist) { // another process was first
		l, err = c.Link(b.Name)
		return l, false, err
	}
	return l, err == nil, err
}

// MacvlanMode is how macvlans of one parent reach each other.
type MacvlanMode netlink.MacvlanMode

// The modes.
const (
	MacvlanPrivate  = MacvlanMode(netlink.MACVLAN_MODE_PRIVATE)
	MacvlanVEPA     = MacvlanMode(netlink.MACVLAN_MODE_VEPA)
	MacvlanBridge   = MacvlanMode(netlink.MACVLAN_MODE_BRIDGE)
	MacvlanPassthru = MacvlanMode(netlink.MACVLAN_MODE_PASSTHRU)
)

// macvlanModes are the names of the modes, as configurations have them; the default is
// bridge.
var macvlanModes = map[string]MacvlanMode{
	"": MacvlanBridge, "private": MacvlanPrivate, "vepa": MacvlanVEPA, "bridge": MacvlanBridge, "passthru": MacvlanPassthru,
}

func (m MacvlanMode) String() string {
	for name, mode := range macvlanModes {
		if mode == m && name != "" {
			return name
		}
	}
	return fmt.Sprintf("MacvlanMode(%d)", uint16(m))
}

// ParseMacvlanMode reads a mode; the empty text is bridge.
func ParseMacvlanMode(s string) (MacvlanMode, bool) {
	m, ok := macvlanModes[s]
	return m, ok
}

// Macvlan describes a macvlan.
type Macvlan struct {
	Name     string
	In       *Conn // the namespace that it is to be in
	Parent   Link  // in the connection's namespace
	Mode     MacvlanMode
	MAC      types.MAC // zero: the kernel's choice
	MTU      int       // in bytes; zero: the parent's
	QueueLen uint32    // broadcast queue in packets (Linux 5.11); zero: the kernel's default
}

// AddMacvlan makes a macvlan in the namespace m.In under its final name, and pushes
// its removal.
func (c *Conn) AddMacvlan(u *undo.Stack, m Macvlan) (Link, error) {
	attrs := linkAttrs(m.Name, m.MTU)
	attrs.ParentIndex = m.Parent.Index
	attrs.Namespace = netlink.NsFd(m.In.h.FD())
	if m.MAC != "" {
		attrs.HardwareAddr = m.MAC.Bytes()
	}
	return c.add(u, m.In, &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MacvlanMode(m.Mode), BCQueueLen: m.QueueLen})
}

// IFB describes an intermediate functional block device.
type IFB struct {
	Name  string
	MTU   int    // in bytes; zero: the kernel's default
	Group uint32 // as Veth.Group
}

// AddIFB makes an intermediate functional block device, which is down, and pushes its
// removal. The error matches fs.ErrExist when the name is taken.
func (c *Conn) AddIFB(u *undo.Stack, i IFB) (Link, error) {
	attrs := linkAttrs(i.Name, i.MTU)
	attrs.Group = i.Group
	return c.add(u, c, &netlink.Ifb{LinkAttrs: attrs})
}

// linkAttrs are the attributes of a link that is to be made.
func linkAttrs(name string, mtu int) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	return attrs
}

// add makes a link that is to be in a namespace, pushes its removal, and returns the
// link as the kernel made it.
func (c *Conn) add(u *undo.Stack, in *Conn, l netlink.Link) (Link, error) {
	name := l.Attrs().Name
	if err := c.step("add link "+name, func() error { return c.lib.LinkAdd(l) }); err != nil {
		in.pushDeleteUnlessRefused(u, name, err)
		return Link{}, err
	}
	in.pushDelete(u, name)
	return in.Link(name)
}

// pushDeleteUnlessRefused is for a request that failed. Where the kernel refused it, a
// link of that name belongs to somebody else. Where its answer was lost, the link is ours.
func (c *Conn) pushDeleteUnlessRefused(u *undo.Stack, name string, err error) {
	var e *Error
	if errors.As(err, &e) && !e.Refused {
		c.pushDelete(u, name)
	}
}

func (c *Conn) pushDelete(u *undo.Stack, name string) {
	u.Push("delete link "+name, func() error { return c.DelLink(name) })
}

// DelLink deletes a link by name. One that is not there is no error.
func (c *Conn) DelLink(name string) error {
	return c.Apply(change("delete link "+name, func(c *Conn) error {
		l, err := c.lib.LinkByName(name)
		if err != nil {
			return err
		}
		return c.lib.LinkDel(l)
	}).IfPresent())
}
