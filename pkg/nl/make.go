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

// RandomMAC returns a random unicast address that is locally administered (IEEE 802, 8.2).
func RandomMAC() types.MAC {
	b := binary.BigEndian.AppendUint64(nil, rand.Uint64())[:6]
	b[0] = b[0]&^1 | 2
	return types.MAC(b)
}

// portMAC returns a RandomMAC that begins with fe. A bridge whose MAC was never set uses the lowest MAC of its
// ports (br_stp_recalculate_bridge_id), which such a port hardly ever has. libvirt does the same.
func portMAC() types.MAC { return "\xfe" + RandomMAC()[1:] }

// A Veth describes a veth pair that AddVeth makes. The near end is in the namespace of the
// connection, the far end in that of PeerIn.
type Veth struct {
	Name    string // of the near end
	Peer    string // name of the far end
	PeerIn  *Conn
	PeerMAC types.MAC // of the far end; zero: random
	MTU     int       // of both ends, in bytes; zero: the kernel's default
	// Group is the group of the near end. The request that makes a link can set a group, but
	// no alias. The group identifies the network of the link until the caller sets the alias
	// and clears the group.
	Group uint32
}

// AddVeth makes a veth pair in one request, each end in its namespace and with its final
// name, and pushes its removal to u. If one of the names exists, the error matches
// fs.ErrExist. Of far, only Index, Name, Kind, MAC, MTU and Peer are set.
func (c *Conn) AddVeth(u *undo.Stack, v Veth) (near, far Link, err error) {
	if v.PeerMAC == "" {
		v.PeerMAC = RandomMAC()
	}
	pair := netlink.NewVeth(linkAttrs(v.Name, v.MTU))
	pair.Group, pair.HardwareAddr = v.Group, portMAC().Bytes()
	pair.PeerName = v.Peer
	pair.PeerHardwareAddr = v.PeerMAC.Bytes()
	pair.PeerNamespace = netlink.NsFd(v.PeerIn.h.FD())
	if near, err = c.add(u, c, pair); err != nil {
		return Link{}, Link{}, err
	}
	far = Link{Index: near.Peer, Name: v.Peer, Kind: "veth", MAC: v.PeerMAC, MTU: near.MTU, Peer: near.Index}
	return near, far, nil
}

// A Bridge describes a bridge that EnsureBridge makes.
type Bridge struct {
	Name string
	// MAC must be set. Otherwise the kernel gives the bridge the lowest MAC of its ports, and
	// changes it when ports are added and removed.
	MAC           types.MAC
	MTU           int // in bytes; zero: the kernel's default
	VLANFiltering bool
}

// EnsureBridge makes the bridge, unless a link of that name exists: then it returns that
// link, of whatever kind, and made is false. It pushes no undo, because attachments share the
// bridge.
func (c *Conn) EnsureBridge(b Bridge) (l Link, made bool, err error) {
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

// macvlanModes are the modes of a macvlan by name.
var macvlanModes = map[string]netlink.MacvlanMode{
	"private": netlink.MACVLAN_MODE_PRIVATE, "vepa": netlink.MACVLAN_MODE_VEPA,
	"bridge": netlink.MACVLAN_MODE_BRIDGE, "passthru": netlink.MACVLAN_MODE_PASSTHRU,
}

// IsMacvlanMode reports whether name is a mode that AddMacvlan accepts: "private", "vepa",
// "bridge" or "passthru".
func IsMacvlanMode(name string) bool { return macvlanModes[name] != 0 }

// A Macvlan describes a macvlan that AddMacvlan makes.
type Macvlan struct {
	Name     string
	In       *Conn     // the namespace of the macvlan
	Parent   Link      // in the namespace of the connection
	Mode     string    // see IsMacvlanMode
	MAC      types.MAC // zero: the kernel's choice
	MTU      int       // in bytes; zero: the parent's
	QueueLen uint32    // broadcast queue in packets (Linux 5.11); zero: the kernel's default
}

// AddMacvlan makes a macvlan in the namespace of m.In, with its final name, and pushes its
// removal to u. If the name exists there, the error matches fs.ErrExist.
func (c *Conn) AddMacvlan(u *undo.Stack, m Macvlan) (Link, error) {
	attrs := attrsOn(m.Parent, m.In, m.Name, m.MTU)
	if m.MAC != "" {
		attrs.HardwareAddr = m.MAC.Bytes()
	}
	return c.add(u, m.In, &netlink.Macvlan{LinkAttrs: attrs, Mode: macvlanModes[m.Mode], BCQueueLen: m.QueueLen})
}

// An IFB describes an intermediate functional block device that AddIFB makes.
type IFB struct {
	Name  string
	MTU   int    // in bytes; zero: the kernel's default
	Group uint32 // as Veth.Group
}

// AddIFB makes an intermediate functional block device, which is down, and pushes its removal
// to u. If the name exists, the error matches fs.ErrExist.
func (c *Conn) AddIFB(u *undo.Stack, i IFB) (Link, error) {
	attrs := linkAttrs(i.Name, i.MTU)
	attrs.Group = i.Group
	return c.add(u, c, &netlink.Ifb{LinkAttrs: attrs})
}

// nameOf returns the name of one of the kernel's numbers, or its digits if it has no name.
func nameOf[N comparable](names map[string]N, number N) string {
	for name, n := range names {
		if n == number {
			return name
		}
	}
	return fmt.Sprint(number)
}

// linkAttrs returns the attributes of a new link.
func linkAttrs(name string, mtu int) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	return attrs
}

// attrsOn returns the attributes of a new link on a parent, in the namespace of in.
//
// The attributes include an index. For a request without an index, kernels without commit ec061546c6cf
// (Linux 6.15) look for the name in the namespace of the parent, and refuse a name that exists there (EEXIST).
// For a request with an index, they look for the index instead, and check the name only in the namespace of
// the new link. The index must be free in both namespaces. It is random and at least 1<<30, because the
// kernel counts up from 1 when it chooses an index.
func attrsOn(parent Link, in *Conn, name string, mtu int) netlink.LinkAttrs {
	attrs := linkAttrs(name, mtu)
	attrs.Index = 1<<30 | rand.IntN(1<<30)
	attrs.ParentIndex, attrs.Namespace = parent.Index, netlink.NsFd(in.h.FD())
	return attrs
}

// add makes a link that will be in the namespace of in, pushes its removal to u, and returns
// the link as the kernel made it.
func (c *Conn) add(u *undo.Stack, in *Conn, l netlink.Link) (Link, error) {
	return in.addBy(u, l.Attrs().Name, func() error { return c.lib.LinkAdd(l) })
}

// addBy calls request, which asks the kernel for a new link of that name in the namespace of the
// connection. It pushes the removal of the link to u, and returns the link as the kernel made it.
func (c *Conn) addBy(u *undo.Stack, name string, request func() error) (Link, error) {
	err := c.step("add link "+name, request)
	// If the kernel refused the request, a link of that name belongs to another owner.
	if !isRefusal(err) {
		u.Push("delete link "+name, func() error { return c.deleteByName(name) })
	}
	if err != nil {
		return Link{}, err
	}
	return c.Link(name)
}

// deleteByName deletes a link. If the link does not exist, deleteByName returns nil.
func (c *Conn) deleteByName(name string) error {
	l, err := c.Link(name)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	return c.DeleteLink(l)
}
