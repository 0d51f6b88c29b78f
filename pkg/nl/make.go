package nl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/vishvananda/netlink"
)

// RandomMAC returns a random, locally administered unicast address (IEEE 802, 8.2).
func RandomMAC() types.MAC {
	b := binary.BigEndian.AppendUint64(nil, rand.Uint64())[:6]
	b[0] = b[0]&^1 | 2
	return types.MAC(b)
}

// portMAC returns a RandomMAC that begins with fe. A bridge whose MAC was never set uses the lowest MAC of its ports
// (br_stp_recalculate_bridge_id), which is almost never a MAC that begins with fe. libvirt uses the same prefix.
func portMAC() types.MAC { return "\xfe" + RandomMAC()[1:] }

// A Veth describes a veth pair that AddVeth creates. The near end is in the namespace of the connection, and the far
// end in the namespace of PeerIn.
type Veth struct {
	Name    string    // name of the near end
	MAC     types.MAC // MAC of the near end; if it is zero, AddVeth chooses a random MAC that begins with fe
	Peer    string    // name of the far end
	PeerIn  *Conn
	PeerMAC types.MAC // MAC of the far end; if it is zero, AddVeth chooses a random MAC
	MTU     int       // MTU of both ends, in bytes; if it is zero, the kernel chooses it
	// Group is the group of the near end. The request that creates a link can contain a group, but not an alias. The
	// group identifies the network of the link until the caller sets the alias and clears the group.
	Group uint32
}

// AddVeth creates a veth pair and pushes its removal to u. One request creates both ends in their namespaces, with
// their final names. If one of the names exists, the error matches fs.ErrExist. In far, only Index, Name, Kind, MAC,
// MTU and Peer are set.
//
// Each end has one queue in each direction. By default, the kernel allocates a queue for each possible processor and
// disables all queues except one, for which it waits for two RCU grace periods while it holds the rtnl mutex
// (veth_init_queues in drivers/net/veth.c, since Linux 5.15).
func (c *Conn) AddVeth(u *undo.Stack, v Veth) (near, far Link, err error) {
	if v.PeerMAC == "" {
		v.PeerMAC = RandomMAC()
	}
	pair := netlink.NewVeth(netlink.NewLinkAttrs())
	pair.PeerName, pair.PeerHardwareAddr, pair.PeerNamespace = v.Peer, v.PeerMAC.Bytes(), netlink.NsFd(v.PeerIn.h.FD())
	near, err = c.add(u, NewLink{Name: v.Name, MAC: cmp.Or(v.MAC, portMAC()), MTU: v.MTU, Group: v.Group, TxQueues: 1, RxQueues: 1}, pair)
	if err != nil {
		return Link{}, Link{}, err
	}
	far = Link{Index: near.Peer, Name: v.Peer, Kind: "veth", MAC: v.PeerMAC, MTU: near.MTU, Peer: near.Index}
	return near, far, nil
}

// A Bridge describes a bridge that EnsureBridge creates.
type Bridge struct {
	Name string
	// MAC must be set. Otherwise the bridge has the lowest MAC of its ports, which changes when ports are added and
	// removed.
	MAC           types.MAC
	MTU           int // MTU in bytes; if it is zero, the kernel chooses it
	VLANFiltering bool
	Forwarding    BridgeForwarding
}

// EnsureBridge creates the bridge. If a link with the name or alternative name exists, it returns that link, whatever its kind is, and
// created is false. EnsureBridge pushes no undo, because attachments share the bridge.
func (c *Conn) EnsureBridge(b Bridge) (l Link, created bool, err error) {
	l, err = c.LinkByAnyName(b.Name)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return l, false, err
	}
	bridge := &netlink.Bridge{GroupFwdMask: b.Forwarding.GroupFwdMask, MulticastSnooping: b.Forwarding.MulticastSnooping}
	if b.VLANFiltering {
		bridge.VlanFiltering = &b.VLANFiltering
	}
	var shared undo.Stack
	l, err = c.add(&shared, NewLink{Name: b.Name, MAC: b.MAC, MTU: b.MTU}, bridge)
	if errors.Is(err, fs.ErrExist) { // another process created it first
		l, err = c.LinkByAnyName(b.Name)
		return l, false, err
	}
	return l, err == nil, err
}

// macvlanModes contains the modes of a macvlan by name.
var macvlanModes = map[string]netlink.MacvlanMode{
	"private": netlink.MACVLAN_MODE_PRIVATE, "vepa": netlink.MACVLAN_MODE_VEPA,
	"bridge": netlink.MACVLAN_MODE_BRIDGE, "passthru": netlink.MACVLAN_MODE_PASSTHRU,
}

// IsMacvlanMode reports whether name is a mode that AddMacvlan accepts: "private", "vepa",
// "bridge" or "passthru".
func IsMacvlanMode(name string) bool { return macvlanModes[name] != 0 }

// A Macvlan describes a macvlan that AddMacvlan creates.
type Macvlan struct {
	NewLink
	Mode     string // a mode that IsMacvlanMode accepts
	QueueLen uint32 // length of the broadcast queue in packets (Linux 5.11); if it is zero, the kernel chooses it
}

// AddMacvlan creates a macvlan and pushes its removal to u.
func (c *Conn) AddMacvlan(u *undo.Stack, m Macvlan) (Link, error) {
	return c.add(u, m.NewLink, &netlink.Macvlan{Mode: macvlanModes[m.Mode], BCQueueLen: m.QueueLen})
}

// AddIFB creates an intermediate functional block device and pushes its removal to u.
func (c *Conn) AddIFB(u *undo.Stack, n NewLink) (Link, error) { return c.add(u, n, &netlink.Ifb{}) }

// AddDummy creates a dummy interface, which drops all packets that are sent through it, and pushes its removal to u. If
// the kernel does not support dummy interfaces, the error matches errors.ErrUnsupported.
func (c *Conn) AddDummy(u *undo.Stack, n NewLink) (Link, error) { return c.add(u, n, &netlink.Dummy{}) }

// AddVRF creates a VRF with a routing table, and pushes its removal to u. Several VRFs can share a table, unless the
// sysctl net.vrf.strict_mode is 1 (Linux 5.9).
func (c *Conn) AddVRF(u *undo.Stack, n NewLink, table int) (Link, error) {
	return c.add(u, n, &netlink.Vrf{Table: uint32(table)})
}

// nameOf returns the name of a kernel constant, or its digits if names does not contain it.
func nameOf[N comparable](names map[string]N, number N) string {
	for name, n := range names {
		if n == number {
			return name
		}
	}
	return fmt.Sprint(number)
}

// A NewLink describes a link to create. The new link is down. If a link with the name exists, the function that creates
// the link returns an error that matches fs.ErrExist.
type NewLink struct {
	Name  string
	MAC   types.MAC // MAC of the link; if it is zero, the kernel chooses it
	MTU   int       // MTU in bytes; if it is zero, the kernel uses its default or the parent's MTU
	Group uint32    // device group (see Veth.Group)
	// TxQueues and RxQueues are the numbers of transmit and receive queues. Zero means the kernel's choice.
	TxQueues, RxQueues int
	// Parent is a link in the namespace of the connection, and In is the namespace of the new link. Both are zero for a
	// link without a parent, which is created in the namespace of the connection.
	Parent Link
	In     *Conn
}

// attrs returns the attributes of the link.
//
// The attributes of a link with a parent include an index. For a request without an index, kernels without commit
// ec061546c6cf (Linux 6.15) look for the name in the namespace of the parent, and reject a name that exists there
// (EEXIST). For a request with an index, they look for the index instead, and check the name only in the namespace of
// the new link. The index must be free in both namespaces. It is random and at least 1<<30, because the kernel counts
// up from 1 when it chooses an index.
func (n NewLink) attrs() netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group = n.Name, n.MTU, n.Group
	attrs.NumTxQueues, attrs.NumRxQueues = n.TxQueues, n.RxQueues
	if n.MAC != "" {
		attrs.HardwareAddr = n.MAC.Bytes()
	}
	if n.In != nil {
		attrs.Index = 1<<30 | rand.IntN(1<<30)
		attrs.ParentIndex, attrs.Namespace = n.Parent.Index, netlink.NsFd(n.In.h.FD())
	}
	return attrs
}

// add creates the link, pushes its removal to u, and returns the link as the kernel created it. l contains the
// attributes of the link's kind.
func (c *Conn) add(u *undo.Stack, n NewLink, l netlink.Link) (Link, error) {
	*l.Attrs() = n.attrs()
	return cmp.Or(n.In, c).addBy(u, n.Name, func() error { return c.lib.LinkAdd(l) })
}

// addBy calls request, which asks the kernel for a new link with the name in the namespace of the connection. It
// pushes the removal of the link to u, and returns the link as the kernel created it.
func (c *Conn) addBy(u *undo.Stack, name string, request func() error) (Link, error) {
	err := c.step("add link "+name, request)
	// If the kernel refused the request, a link with the name belongs to another owner.
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
