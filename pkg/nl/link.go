package nl

import (
	"fmt"
	"io/fs"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/vishvananda/netlink"
	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Link is a network interface as the kernel describes it. MTU in bytes.
type Link struct {
	Index    int
	Name     string
	Kind     string // "veth", "bridge", "macvlan", …, as the library names it; empty: none (lo, hardware)
	MAC      types.MAC
	MTU      int
	Alias    string
	Group    uint32 // a number that tools can choose links by
	Up       bool   // administratively up
	Running  bool   // operationally up
	Carrier  bool   // up, and the cable is plugged in (IFF_LOWER_UP)
	Promisc  bool   // set by flag; packet sockets do not count
	AllMulti bool
	TxQueue  int
	Master   int // index; zero: none
	Peer     int // index of the other end (veth) or of the parent (macvlan), which may be in another namespace
	Bridge   Bridge
	Macvlan  MacvlanInfo
	state    netlink.LinkOperState
	// peerNS is 1 + the number that the link's namespace has for the namespace of Peer
	// (IFLA_LINK_NETNSID). It is zero if Peer is in the link's own namespace.
	peerNS int
}

// A Port is the state of a link as a port of a bridge.
type Port struct {
	Hairpin  bool
	Isolated bool
}

// Bridge is the state of a link as a bridge.
type Bridge struct {
	VLANFiltering bool
	DefaultPVID   int // the VLAN that new ports are put in; zero: none
}

// MacvlanInfo is the state of a link as a macvlan.
type MacvlanInfo struct {
	Mode     MacvlanMode
	QueueLen uint32 // broadcast queue, in packets
}

// describe returns a link of the library's as a Link.
func describe(l netlink.Link) Link {
	a := l.Attrs()
	out := Link{
		Index: a.Index, Name: a.Name, MAC: hardwareAddr(a), MTU: a.MTU, Alias: a.Alias, Group: a.Group,
		Up:       a.RawFlags&unix.IFF_UP != 0,
		Running:  a.OperState == netlink.OperUp,
		Carrier:  a.RawFlags&unix.IFF_LOWER_UP != 0,
		Promisc:  a.RawFlags&unix.IFF_PROMISC != 0,
		AllMulti: a.RawFlags&unix.IFF_ALLMULTI != 0,
		TxQueue:  a.TxQLen, Master: a.MasterIndex, Peer: a.ParentIndex,
		state: a.OperState, peerNS: 1 + a.NetNsID,
	}
	switch l := l.(type) {
	case *netlink.Device:
		return out
	case *netlink.Bridge:
		out.Bridge.VLANFiltering = l.VlanFiltering != nil && *l.VlanFiltering
		if l.VlanDefaultPVID != nil {
			out.Bridge.DefaultPVID = int(*l.VlanDefaultPVID)
		}
	case *netlink.Macvlan:
		out.Macvlan = MacvlanInfo{Mode: MacvlanMode(l.Mode), QueueLen: l.BCQueueLen}
	}
	out.Kind = l.Type()
	return out
}

// hardwareAddr returns the hardware address of a link. The library gives none where all
// bytes are zero: those of lo, and of a bridge that has lost its last port.
func hardwareAddr(a *netlink.LinkAttrs) types.MAC {
	if a.HardwareAddr == nil && (a.EncapType == "loopback" || a.EncapType == "ether") {
		return types.MAC(make([]byte, 6))
	}
	return types.MAC(a.HardwareAddr)
}

// device returns the link as the library's methods take it.
func (l Link) device() *netlink.Device {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.Index, Name: l.Name}}
}

// Link finds a link by name. The error matches fs.ErrNotExist.
func (c *Conn) Link(name string) (Link, error) {
	if name == "" {
		return Link{}, &Error{Step: "find link", Err: fs.ErrNotExist}
	}
	return c.find("find link "+name, func() (netlink.Link, error) { return c.lib.LinkByName(name) })
}

// LinkByIndex finds a link by index. The error matches fs.ErrNotExist.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	return c.find(fmt.Sprintf("find link %d", index), func() (netlink.Link, error) { return c.lib.LinkByIndex(index) })
}

func (c *Conn) find(step string, get func() (netlink.Link, error)) (Link, error) {
	return ask(c, step, func() (Link, error) {
		l, err := get()
		if err != nil {
			return Link{}, err
		}
		return describe(l), nil
	})
}

// VethPeer finds the other end of a veth pair of which l is an end here. The error
// matches fs.ErrNotExist when it is not in that namespace.
func (c *Conn) VethPeer(l Link, there *Conn) (Link, error) {
	absent := &Error{Step: "find the other end of " + l.Name, Err: unix.ENODEV}
	if l.Kind != "veth" {
		return Link{}, absent
	}
	if c.h.Same(there.h) {
		if l.peerNS != 0 {
			return Link{}, absent
		}
		return there.LinkByIndex(l.Peer)
	}
	nsid, err := ask(c, "find nsid of "+there.h.Path(), func() (int, error) { return c.lib.GetNetNsIdByFd(there.h.FD()) })
	if err != nil {
		return Link{}, err
	}
	if nsid < 0 || l.peerNS != 1+nsid { // negative: no link here leads there
		return Link{}, absent
	}
	return there.LinkByIndex(l.Peer)
}

// skipStatistics makes the kernel leave out the counters of links
// (RTEXT_FILTER_SKIP_STATS, Linux 4.4).
const skipStatistics = 1 << 3

// LinksOfKind lists the links of one kind. The kernel filters them.
func (c *Conn) LinksOfKind(kind string) ([]Link, error) {
	return c.links("list links of kind "+kind, ofKind(kind), func(l Link) bool { return l.Kind == kind })
}

// Ports lists the ports of a bridge. The kernel filters them.
func (c *Conn) Ports(bridge Link) ([]Link, error) {
	return c.links("list ports of "+bridge.Name, ofMaster(bridge.Index), func(l Link) bool { return l.Master == bridge.Index })
}

// ofKind is the filter of the links of one kind.
func ofKind(kind string) *rawnl.RtAttr {
	filter := rawnl.NewRtAttr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, nil)
	filter.AddRtAttr(rawnl.IFLA_INFO_KIND, rawnl.ZeroTerminated(kind))
	return filter
}

// ofMaster is the filter of the ports of a bridge.
func ofMaster(index int) *rawnl.RtAttr {
	return rawnl.NewRtAttr(unix.IFLA_MASTER, rawnl.Uint32Attr(uint32(index)))
}

// linkList is a request for the links that pass a filter of the kernel's (Linux 4.6).
// The library's LinkList takes no filter.
func linkList(filter *rawnl.RtAttr) *rawnl.NetlinkRequest {
	req := rawnl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(rawnl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(rawnl.NewRtAttr(unix.IFLA_EXT_MASK, rawnl.Uint32Attr(skipStatistics)))
	req.AddData(filter)
	return req
}

// links lists the links that pass the filter, which an old kernel may ignore.
func (c *Conn) links(step string, filter *rawnl.RtAttr, wanted func(Link) bool) ([]Link, error) {
	return ask(c, step, func() (links []Link, err error) {
		msgs, err := c.execute(linkList(filter), unix.RTM_NEWLINK)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			l, err := netlink.LinkDeserialize(nil, m)
			if err != nil {
				return nil, err
			}
			if found := describe(l); wanted(found) {
				links = append(links, found)
			}
		}
		return links, nil
	})
}

// Port finds the state of a link as a port of its bridge; a link that is no port has
// the zero Port. The library's LinkGetProtinfo lists the ports of all bridges of the
// node to find one.
func (c *Conn) Port(l Link) (Port, error) {
	return ask(c, "find port "+l.Name, func() (Port, error) {
		msgs, err := c.execute(linkByIndex(l.Index), unix.RTM_NEWLINK)
		if err != nil || len(msgs) == 0 {
			return Port{}, err
		}
		return decodePort(msgs[0])
	})
}

// RunsSTP reports whether the spanning tree protocol decides which ports of a bridge
// forward. The library does not read that.
func (c *Conn) RunsSTP(bridge Link) (bool, error) {
	return ask(c, "find STP of "+bridge.Name, func() (bool, error) {
		msgs, err := c.execute(linkByIndex(bridge.Index), unix.RTM_NEWLINK)
		if err != nil || len(msgs) == 0 {
			return false, err
		}
		return decodeSTP(msgs[0])
	})
}

// linkByIndex is a request for one link.
func linkByIndex(index int) *rawnl.NetlinkRequest {
	req := rawnl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := rawnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(rawnl.NewRtAttr(unix.IFLA_EXT_MASK, rawnl.Uint32Attr(skipStatistics)))
	return req
}

// decodePort reads the port's state in an RTM_NEWLINK.
func decodePort(m []byte) (Port, error) {
	data, err := linkInfo(m, rawnl.IFLA_INFO_SLAVE_DATA)
	on := func(kind uint16) bool { return len(data[kind]) > 0 && data[kind][0] != 0 }
	return Port{Hairpin: on(rawnl.IFLA_BRPORT_MODE), Isolated: on(rawnl.IFLA_BRPORT_ISOLATED)}, err
}

// decodeSTP reads the state of a bridge's spanning tree protocol in an RTM_NEWLINK.
func decodeSTP(m []byte) (bool, error) {
	data, err := linkInfo(m, rawnl.IFLA_INFO_DATA)
	state := data[rawnl.IFLA_BR_STP_STATE] // BR_NO_STP is zero
	return len(state) == 4 && rawnl.NativeEndian().Uint32(state) != 0, err
}

// linkInfo returns the attributes in one attribute of the IFLA_LINKINFO of an
// RTM_NEWLINK.
func linkInfo(m []byte, kind uint16) (map[uint16][]byte, error) {
	attrs, err := attributes(m[unix.SizeofIfInfomsg:])
	if err != nil {
		return nil, err
	}
	info, err := attributes(attrs[unix.IFLA_LINKINFO])
	if err != nil {
		return nil, err
	}
	return attributes(info[kind])
}

// attributes returns the values of attributes by their kind, without flags.
func attributes(b []byte) (map[uint16][]byte, error) {
	list, err := rawnl.ParseRouteAttr(b)
	values := make(map[uint16][]byte, len(list))
	for _, a := range list {
		values[a.Attr.Type&rawnl.NLA_TYPE_MASK] = a.Value
	}
	return values, err
}

// SetUp sets the link administratively up.
func (l Link) SetUp() Change {
	return change("set link "+l.Name+" up", func(c *Conn) error { return c.lib.LinkSetUp(l.device()) })
}

// SetDown sets the link administratively down.
func (l Link) SetDown() Change {
	return change("set link "+l.Name+" down", func(c *Conn) error { return c.lib.LinkSetDown(l.device()) })
}

// SetMTU sets the MTU in bytes.
func (l Link) SetMTU(mtu int) Change {
	return change(fmt.Sprintf("set link %s mtu %d", l.Name, mtu), func(c *Conn) error { return c.lib.LinkSetMTU(l.device(), mtu) })
}

// SetMAC sets the hardware address.
func (l Link) SetMAC(mac types.MAC) Change {
	return change("set link "+l.Name+" address "+mac.String(), func(c *Conn) error {
		return c.lib.LinkSetHardwareAddr(l.device(), mac.Bytes())
	})
}

// SetTxQueue sets the length of the transmit queue, in packets.
func (l Link) SetTxQueue(n int) Change {
	return change(fmt.Sprintf("set link %s txqueuelen %d", l.Name, n), func(c *Conn) error { return c.lib.LinkSetTxQLen(l.device(), n) })
}

// SetAlias sets the text that `ip link` shows beside the link, at most 255 bytes.
func (l Link) SetAlias(alias string) Change {
	return change("set link "+l.Name+" alias", func(c *Conn) error { return c.lib.LinkSetAlias(l.device(), alias) })
}

// ClearGroup puts the link into group 0, the kernel's default.
func (l Link) ClearGroup() Change {
	return change("set link "+l.Name+" group 0", func(c *Conn) error { return c.lib.LinkSetGroup(l.device(), 0) })
}

// SetMaster makes the link a port of the master.
func (l Link) SetMaster(master Link) Change {
	return change("set link "+l.Name+" master "+master.Name, func(c *Conn) error {
		return c.lib.LinkSetMasterByIndex(l.device(), master.Index)
	})
}

// ClearMaster takes the link out of its bridge.
func (l Link) ClearMaster() Change {
	return change("set link "+l.Name+" nomaster", func(c *Conn) error { return c.lib.LinkSetNoMaster(l.device()) })
}

// Flag is a link flag that a configuration can turn on and off.
type Flag uint32

// The flags that SetFlag takes.
const (
	Promisc  Flag = unix.IFF_PROMISC
	AllMulti Flag = unix.IFF_ALLMULTI
)

func (f Flag) String() string {
	if f == Promisc {
		return "promisc"
	}
	return "allmulticast"
}

// SetFlag turns a flag on.
func (l Link) SetFlag(f Flag) Change {
	return change("set link "+l.Name+" "+f.String()+" on", func(c *Conn) error {
		if f == Promisc {
			return c.lib.SetPromiscOn(l.device())
		}
		return c.lib.LinkSetAllmulticastOn(l.device())
	})
}

// ClearFlag turns a flag off.
func (l Link) ClearFlag(f Flag) Change {
	return change("set link "+l.Name+" "+f.String()+" off", func(c *Conn) error {
		if f == Promisc {
			return c.lib.SetPromiscOff(l.device())
		}
		return c.lib.LinkSetAllmulticastOff(l.device())
	})
}

// SetPort sets the flags of a bridge port.
func (l Link) SetPort(p Port) Change {
	step := fmt.Sprintf("set port %s hairpin %t isolated %t", l.Name, p.Hairpin, p.Isolated)
	return change(step, func(c *Conn) error {
		if err := c.lib.LinkSetHairpin(l.device(), p.Hairpin); err != nil {
			return err
		}
		return c.lib.LinkSetIsolated(l.device(), p.Isolated)
	})
}

// SetVLANFiltering makes a bridge tell VLANs apart.
func (l Link) SetVLANFiltering() Change {
	return change("set bridge "+l.Name+" vlan_filtering on", func(c *Conn) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Index, attrs.Name = l.Index, l.Name
		return c.lib.BridgeSetVlanFiltering(&netlink.Bridge{LinkAttrs: attrs}, true)
	})
}

// Del deletes the link, if it is still there. A veth takes its other end with it.
func (l Link) Del() Change {
	return change("delete link "+l.Name, func(c *Conn) error { return c.lib.LinkDel(l.device()) }).IfPresent()
}
