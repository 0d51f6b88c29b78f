package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
	"golang.org/x/sys/unix"
)

// RandomMAC is a fresh locally administered unicast address (IEEE 802, 8.2).
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
	near, err = c.add(u, v.Name, func(ae *netlink.Encoder) {
		mtu(ae, v.MTU)
		ae.Uint32(unix.IFLA_GROUP, v.Group)
		linkKind(ae, "veth", func(ae *netlink.Encoder) {
			ae.Headed(vethInfoPeer, linkHeader(0, 0, 0), v.peer)
		})
	})
	if err != nil {
		return Link{}, Link{}, err
	}
	far = Link{Index: near.Peer, Name: v.Peer, Kind: "veth", MAC: v.PeerMAC, MTU: near.MTU, Peer: near.Index}
	return near, far, nil
}

// peer writes what the other end is to be.
func (v Veth) peer(ae *netlink.Encoder) {
	ae.String(unix.IFLA_IFNAME, v.Peer)
	ae.Bytes(unix.IFLA_ADDRESS, v.PeerMAC.Bytes())
	mtu(ae, v.MTU)
	ae.Uint32(unix.IFLA_NET_NS_FD, uint32(v.PeerIn.h.FD()))
}

// A BridgeSpec is a bridge as it is to be made. MAC pins its address, so that it does
// not follow the ports' (the kernel takes the lowest of theirs otherwise).
type BridgeSpec struct {
	Name          string
	MAC           types.MAC
	MTU           int // in bytes; zero: the kernel's default
	VLANFiltering bool
}

// EnsureBridge makes the bridge unless a link of that name is there; then it gives
// that link, whatever it is, and made is false. A bridge is shared: it is never undone.
func (c *Conn) EnsureBridge(b BridgeSpec) (l Link, made bool, err error) {
	l, err = c.Link(b.Name)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return l, false, err
	}
	var shared undo.Stack
	l, err = c.add(&shared, b.Name, func(ae *netlink.Encoder) {
		mtu(ae, b.MTU)
		ae.Bytes(unix.IFLA_ADDRESS, b.MAC.Bytes())
		linkKind(ae, "bridge", func(ae *netlink.Encoder) {
			if b.VLANFiltering {
				ae.Uint8(iflaBrVLANFiltering, 1)
			}
		})
	})
	if errors.Is(err, fs.ErrExist) { // somebody else was first
		l, err = c.Link(b.Name)
		return l, false, err
	}
	return l, err == nil, err
}

// MacvlanMode is how macvlans of one parent reach each other.
type MacvlanMode uint32

// The modes, in the kernel's numbers.
const (
	MacvlanPrivate  MacvlanMode = 1
	MacvlanVEPA     MacvlanMode = 2
	MacvlanBridge   MacvlanMode = 4
	MacvlanPassthru MacvlanMode = 8
)

func (m MacvlanMode) String() string {
	switch m {
	case MacvlanPrivate:
		return "private"
	case MacvlanVEPA:
		return "vepa"
	case MacvlanBridge:
		return "bridge"
	case MacvlanPassthru:
		return "passthru"
	}
	return fmt.Sprintf("MacvlanMode(%d)", uint32(m))
}

// ParseMacvlanMode reads a mode; the empty text is bridge.
func ParseMacvlanMode(s string) (MacvlanMode, bool) {
	if s == "" {
		return MacvlanBridge, true
	}
	for _, m := range []MacvlanMode{MacvlanPrivate, MacvlanVEPA, MacvlanBridge, MacvlanPassthru} {
		if m.String() == s {
			return m, true
		}
	}
	return 0, false
}

// Macvlan describes a macvlan.
type Macvlan struct {
	Name     string
	In       *Conn // the namespace that it is to be in
	Parent   Link  // in the connection's namespace
	Mode     MacvlanMode
	MAC      types.MAC // zero: the kernel's choice
	MTU      int       // in bytes; zero: the parent's
	QueueLen uint32    // broadcast queue in packets; zero: the kernel's default
}

const (
	iflaMacvlanBCQueueLen     = 7 // IFLA_MACVLAN_BC_QUEUE_LEN, kernel 5.11
	iflaMacvlanBCQueueLenUsed = 8
)

// AddMacvlan makes a macvlan in the namespace m.In under its final name, and pushes
// its removal.
func (c *Conn) AddMacvlan(u *undo.Stack, m Macvlan) (Link, error) {
	step := "add macvlan " + m.Name + " on " + m.Parent.Name
	body, err := linkBody(linkHeader(0, 0, 0), func(ae *netlink.Encoder) {
		ae.String(unix.IFLA_IFNAME, m.Name)
		ae.Uint32(unix.IFLA_LINK, uint32(m.Parent.Index))
		ae.Uint32(unix.IFLA_NET_NS_FD, uint32(m.In.h.FD()))
		mtu(ae, m.MTU)
		if m.MAC != "" {
			ae.Bytes(unix.IFLA_ADDRESS, m.MAC.Bytes())
		}
		linkKind(ae, "macvlan", func(ae *netlink.Encoder) {
			ae.Uint32(unix.IFLA_MACVLAN_MODE, uint32(m.Mode))
			if m.QueueLen != 0 {
				ae.Uint32(iflaMacvlanBCQueueLen, m.QueueLen)
			}
		})
	})
	if err := c.Apply(change(step, unix.RTM_NEWLINK, body, err).with(unix.NLM_F_CREATE | unix.NLM_F_EXCL)); err != nil {
		m.In.pushDeleteUnlessRefused(u, m.Name, err)
		return Link{}, err
	}
	m.In.pushDelete(u, m.Name)
	return m.In.Link(m.Name)
}

func (m *MacvlanInfo) decode(ad *netlink.Decoder) {
	for ad.Next() {
		switch ad.Kind() {
		case unix.IFLA_MACVLAN_MODE:
			m.Mode = MacvlanMode(ad.Uint32())
		case iflaMacvlanBCQueueLen:
			m.QueueLen = ad.Uint32()
		case iflaMacvlanBCQueueLenUsed:
			m.QueueInUse = int(ad.Uint32())
		}
	}
}

// IFB describes an intermediate functional block device.
type IFB struct {
	Name  string
	MTU   int    // in bytes; zero: the kernel's default
	Group uint32 // as Veth.Group
}

// AddIFB makes an intermediate functional block device, down yet, and pushes its
// removal. The error matches fs.ErrExist when the name is taken.
func (c *Conn) AddIFB(u *undo.Stack, i IFB) (Link, error) {
	return c.add(u, i.Name, func(ae *netlink.Encoder) {
		mtu(ae, i.MTU)
		ae.Uint32(unix.IFLA_GROUP, i.Group)
		linkKind(ae, "ifb", none)
	})
}

// add makes a link in the connection's namespace, pushes its removal, and gives the
// link as the kernel made it.
func (c *Conn) add(u *undo.Stack, name string, fill func(*netlink.Encoder)) (Link, error) {
	step := "add link " + name
	body, err := linkBody(linkHeader(0, 0, 0), func(ae *netlink.Encoder) {
		ae.String(unix.IFLA_IFNAME, name)
		fill(ae)
	})
	echoes, err := c.applyEcho(change(step, unix.RTM_NEWLINK, body, err).with(unix.NLM_F_CREATE | unix.NLM_F_EXCL))
	if err != nil {
		c.pushDeleteUnlessRefused(u, name, err)
		return Link{}, err
	}
	c.pushDelete(u, name)
	for _, m := range echoes {
		if m.Kind == unix.RTM_NEWLINK {
			l, err := decodeLink(m.Body)
			return l, wrap(step, err)
		}
	}
	return c.Link(name)
}

// pushDeleteUnlessRefused is for a request that failed. Where the kernel said no, a
// link of that name is somebody else's; where its answer was lost, it is ours.
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
	body, err := linkBody(linkHeader(0, 0, 0), func(ae *netlink.Encoder) { ae.String(unix.IFLA_IFNAME, name) })
	return c.Apply(change("delete link "+name, unix.RTM_DELLINK, body, err).IfPresent())
}

func linkKind(ae *netlink.Encoder, kind string, data func(*netlink.Encoder)) {
	ae.Nested(unix.IFLA_LINKINFO, func(ae *netlink.Encoder) {
		ae.String(unix.IFLA_INFO_KIND, kind)
		ae.Nested(unix.IFLA_INFO_DATA, data)
	})
}

func mtu(ae *netlink.Encoder, bytes int) {
	if bytes > 0 {
		ae.Uint32(unix.IFLA_MTU, uint32(bytes))
	}
}
