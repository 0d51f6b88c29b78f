package nl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/vishvananda/netlink"
	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Link is a network interface with the state that the kernel reported.
type Link struct {
	Index    int
	Name     string
	Kind     string // "veth", "bridge", "macvlan", …, as `ip -d link` prints it; "" for hardware and for lo
	MAC      types.MAC
	MTU      int // MTU in bytes
	Alias    string
	Group    uint32 // device group, by which tools can select links
	Up       bool   // the link is administratively up
	Running  bool   // the link is operationally up
	Carrier  bool   // the link is up, and the cable is plugged in (IFF_LOWER_UP)
	Promisc  bool   // IFF_PROMISC is set; packet sockets in promiscuous mode do not count
	AllMulti bool   // the link receives all multicast packets
	Flags    uint32 // all flags that SetFlags sets
	TxQueue  int    // length of the transmit queue, in packets
	Master   int    // interface index of the master, or zero if the link is not a port
	Peer     int    // index of the other end (veth) or of the parent (macvlan, vlan), which may be in another namespace
	// PeerNS is 1 + the nsid of Peer's namespace (IFLA_LINK_NETNSID), which is the number of that namespace in the
	// link's namespace. It is zero if Peer is in the link's namespace.
	PeerNS int

	AltNames []string  // the alternative names (Linux 5.5)
	PermMAC  types.MAC // the hardware's permanent address (Linux 5.6), or zero if the kernel reports none
	Parent   string    // bus and name of the device in sysfs, for example "pci/0000:00:02.0" (Linux 5.14), or "" if the kernel reports none

	VLANFiltering bool // whether a bridge filters VLANs
	DefaultPVID   int  // the VLAN to which a bridge adds new ports, or zero if it adds them to none
	Forwarding    BridgeForwarding
	MacvlanMode   string // the mode of a macvlan: "bridge", "private", "vepa" or "passthru"
	VLANID        int    // the ID of a VLAN interface
	VLANProtocol  string // the protocol of a VLAN interface: "802.1Q" or "802.1ad"
	Tun           Tun    // the state of a tun or tap device, both of which have the Kind "tun"
	VRFTable      int    // the number of a VRF's routing table

	state netlink.LinkOperState
}

// BridgeForwarding contains settings that determine which frames a bridge forwards. A nil field of a wanted
// BridgeForwarding means any value. A nil field of a Link means that the kernel did not report the value.
type BridgeForwarding struct {
	// GroupFwdMask contains a bit for each group address 01:80:C2:00:00:00 to 01:80:C2:00:00:0F (IEEE 802.1D, 7.12.6),
	// beginning with the lowest, whose frames the bridge forwards.
	GroupFwdMask *uint16
	// MulticastSnooping means that the bridge sends multicast frames only to ports with a member of the group.
	MulticastSnooping *bool
}

// Without returns the fields that are set and differ from those of got.
func (f BridgeForwarding) Without(got BridgeForwarding) BridgeForwarding {
	if f.GroupFwdMask != nil && got.GroupFwdMask != nil && *f.GroupFwdMask == *got.GroupFwdMask {
		f.GroupFwdMask = nil
	}
	if f.MulticastSnooping != nil && got.MulticastSnooping != nil && *f.MulticastSnooping == *got.MulticastSnooping {
		f.MulticastSnooping = nil
	}
	return f
}

// String returns the fields as arguments of ip link set … type bridge.
func (f BridgeForwarding) String() string {
	var words []string
	if f.GroupFwdMask != nil {
		words = append(words, fmt.Sprint("group_fwd_mask ", *f.GroupFwdMask))
	}
	if f.MulticastSnooping != nil {
		on := 0
		if *f.MulticastSnooping {
			on = 1
		}
		words = append(words, fmt.Sprint("mcast_snooping ", on))
	}
	return strings.Join(words, " ")
}

// A Port contains the settings of a link as a bridge port.
type Port struct {
	Hairpin  bool
	Isolated bool
}

// newLink converts a netlink.Link.
func newLink(l netlink.Link) Link {
	a := l.Attrs()
	out := Link{
		Index: a.Index, Name: a.Name, Kind: l.Type(), MAC: hardwareAddr(a), MTU: a.MTU, Alias: a.Alias, Group: a.Group,
		Up:       a.RawFlags&unix.IFF_UP != 0,
		Running:  a.OperState == netlink.OperUp,
		Carrier:  a.RawFlags&unix.IFF_LOWER_UP != 0,
		Promisc:  a.RawFlags&unix.IFF_PROMISC != 0,
		AllMulti: a.RawFlags&unix.IFF_ALLMULTI != 0,
		Flags:    a.RawFlags & settableFlags,
		TxQueue:  a.TxQLen, Master: a.MasterIndex, Peer: a.ParentIndex,
		AltNames: a.AltNames, PermMAC: types.MAC(a.PermHWAddr), Parent: parentOf(a),
		state: a.OperState, PeerNS: 1 + a.NetNsID,
	}
	switch l := l.(type) {
	case *netlink.Device:
		out.Kind = ""
	case *netlink.Tuntap: // netlink.Tuntap has the Type "tuntap"
		out.Kind = "tun"
		out.Tun = Tun{l.Mode == netlink.TUNTAP_MODE_TAP, l.Flags&netlink.TUNTAP_MULTI_QUEUE != 0, l.Owner, l.Group}
	case *netlink.Bridge:
		out.VLANFiltering = l.VlanFiltering != nil && *l.VlanFiltering
		if l.VlanDefaultPVID != nil {
			out.DefaultPVID = int(*l.VlanDefaultPVID)
		}
		out.Forwarding = BridgeForwarding{l.GroupFwdMask, l.MulticastSnooping}
	case *netlink.Macvlan:
		out.MacvlanMode = nameOf(macvlanModes, l.Mode)
	case *netlink.Vlan:
		out.VLANID, out.VLANProtocol = l.VlanId, nameOf(vlanProtocols, l.VlanProtocol)
	case *netlink.Vrf:
		out.VRFTable = int(l.Table)
	}
	return out
}

// parentOf returns the bus and name of a link's device in sysfs, or "" if there is none.
func parentOf(a *netlink.LinkAttrs) string {
	if a.ParentDev == "" {
		return ""
	}
	return a.ParentDevBus + "/" + a.ParentDev
}

// hardwareAddr returns the hardware address of a link. It restores an address of zeros, which package netlink drops. lo
// has such an address, and so does a bridge after its last port was removed.
func hardwareAddr(a *netlink.LinkAttrs) types.MAC {
	if a.HardwareAddr == nil && (a.EncapType == "loopback" || a.EncapType == "ether") {
		return types.MAC(make([]byte, 6))
	}
	return types.MAC(a.HardwareAddr)
}

// IsHardware reports whether the link is hardware, or lo. When a namespace ends, the kernel moves the hardware to the
// initial namespace, and deletes all other links.
func (l Link) IsHardware() bool { return l.Kind == "" }

// device returns the link as an argument for package netlink.
func (l Link) device() *netlink.Device {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.Index, Name: l.Name}}
}

// Link returns the link with the name. If it does not exist, the error matches fs.ErrNotExist. Link does not return a link
// that has the name as an alternative name, because a container can give any alternative name to an interface that later
// returns to the host.
func (c *Conn) Link(name string) (Link, error) {
	l, err := c.LinkByAnyName(name)
	if err == nil && l.Name != name {
		return Link{}, &requestError{step: "find link " + name, err: unix.ENODEV, kernelText: "interface " + l.Name + " has this alternative name"}
	}
	return l, err
}

// LinkByAnyName returns the link with the name or alternative name (Linux 5.5), for a name that a user chose, and for a
// name that must be free. If the link does not exist, the error matches fs.ErrNotExist.
func (c *Conn) LinkByAnyName(name string) (Link, error) {
	return c.findLink("find link "+name, linkByNameRequest(name), func() (netlink.Link, error) { return c.lib.LinkByName(name) })
}

// OpenLink returns a connection to the namespace, and the link with the name there. It returns the connection even if the
// link does not exist, with the error of RequireLink.
func OpenLink(h *ns.Handle, name string) (*Conn, Link, error) {
	c, err := Open(h)
	if err != nil {
		return nil, Link{}, err
	}
	l, err := c.RequireLink(name)
	return c, l, err
}

// RequireLink is Link, but the error for a link that does not exist also contains types.MissingLink, for programs.
func (c *Conn) RequireLink(name string) (Link, error) {
	l, err := c.Link(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = types.MissingLink(name).Errorf("%w", err)
	}
	return l, err
}

// LinkByIndex returns the link with the index. If it does not exist, the error matches fs.ErrNotExist.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	return c.findLink(fmt.Sprintf("find link %d", index), getLinkRequest(index), func() (netlink.Link, error) { return c.lib.LinkByIndex(index) })
}

// findLink calls get as one step and converts the link. If the link does not fit into the receive buffer of package
// netlink, so that get fails, findLink sends req.
func (c *Conn) findLink(step string, req *rawnl.NetlinkRequest, get func() (netlink.Link, error)) (Link, error) {
	return query(c, step, func() (Link, error) {
		l, err := get()
		if errors.Is(err, unix.EINVAL) {
			if err := c.openLib(); err != nil { // get may have left the rest of a list in the socket
				return Link{}, err
			}
			l, err = c.executeOne(req)
		}
		if err != nil {
			return Link{}, err
		}
		return newLink(l), nil
	})
}

// LinkIn returns the link with the index in the namespace of other. PeerNS in the result is relative to the namespace
// of c. If the link does not exist, or if the namespace of c has no nsid for the namespace of other, the error matches
// fs.ErrNotExist.
func (c *Conn) LinkIn(other *Conn, index int) (Link, error) {
	step := fmt.Sprintf("find link %d of %s", index, other.h.Path())
	nsid, err := c.NSID(other.h)
	if err != nil {
		return Link{}, err
	}
	if nsid < 0 {
		return Link{}, &requestError{step: step, err: unix.ENODEV}
	}
	req := getLinkRequest(index)
	req.AddData(rawnl.NewRtAttr(unix.IFLA_TARGET_NETNSID, rawnl.Uint32Attr(uint32(nsid))))
	l, err := c.findLink(step, req, func() (netlink.Link, error) { return c.executeOne(req) })
	if err != nil || l.Peer == 0 {
		return l, err
	}
	own, err := c.NSID(c.h)
	switch l.PeerNS {
	case 0:
		l.PeerNS = 1 + nsid
	case 1 + own:
		l.PeerNS = 0
	}
	return l, err
}

// NSID returns the number of the namespace other in the namespace of c, or -1 if there is none.
func (c *Conn) NSID(other *ns.Handle) (int, error) {
	return query(c, "find nsid of "+other.Path(), func() (int, error) { return c.lib.GetNetNsIdByFd(other.FD()) })
}

// VethPeer returns the other end of the veth pair of l, a link in the namespace of c. If l is not a veth, or if the
// other end is not in the namespace of other, the error matches fs.ErrNotExist.
func (c *Conn) VethPeer(l Link, other *Conn) (Link, error) {
	absent := &requestError{step: "find the other end of " + l.Name, err: unix.ENODEV}
	if l.Kind != "veth" {
		return Link{}, absent
	}
	return c.peerIn(other, l, absent)
}

// Parent returns the link on which l, a link in the namespace of c, was created, such as the master of a macvlan. If l is
// not on a link, or if that link is not in the namespace of other, the error matches fs.ErrNotExist.
func (c *Conn) Parent(l Link, other *Conn) (Link, error) {
	absent := &requestError{step: "find the parent of " + l.Name, err: unix.ENODEV}
	if l.Peer == 0 || slices.Contains([]string{"veth", "netkit", "vxcan"}, l.Kind) { // the Peer of a pair is not a parent
		return Link{}, absent
	}
	return c.peerIn(other, l, absent)
}

// peerIn returns the Peer of l, a link in the namespace of c, or absent if it is not in the namespace of other.
func (c *Conn) peerIn(other *Conn, l Link, absent error) (Link, error) {
	if c.h.Same(other.h) {
		if l.PeerNS != 0 {
			return Link{}, absent
		}
		return other.LinkByIndex(l.Peer)
	}
	nsid, err := c.NSID(other.h)
	if err != nil {
		return Link{}, err
	}
	if nsid < 0 || l.PeerNS != 1+nsid { // nsid is -1 if the namespace of c has none for the namespace of other
		return Link{}, absent
	}
	return other.LinkByIndex(l.Peer)
}

// skipStatistics is the flag with which the kernel omits the counters of links (RTEXT_FILTER_SKIP_STATS, Linux 4.4).
const skipStatistics = 1 << 3

// Links returns all links of the namespace.
func (c *Conn) Links() ([]Link, error) {
	return c.listLinks("list links", nil, func(Link) bool { return true })
}

// LinksOfKind returns the links of one kind, for example "macvlan". The kernel filters them, unless it does not know
// the kind, for example because the module is not loaded. In that case, it sends all links.
func (c *Conn) LinksOfKind(kind string) ([]Link, error) {
	return c.listLinks("list links of kind "+kind, kindFilter(kind), func(l Link) bool { return l.Kind == kind })
}

// Ports returns the ports of a bridge. The kernel filters them.
func (c *Conn) Ports(bridge Link) ([]Link, error) {
	return c.listLinks("list ports of "+bridge.Name, masterFilter(bridge.Index), func(l Link) bool { return l.Master == bridge.Index })
}

// PortNames returns the names of the ports of a bridge. It decodes nothing else, which takes a third of the time of
// Ports.
func (c *Conn) PortNames(bridge Link) (names []string, err error) {
	return query(c, "list names of the ports of "+bridge.Name, func() (names []string, err error) {
		msgs, err := c.execute(listLinksRequest(masterFilter(bridge.Index)), unix.RTM_NEWLINK)
		for _, m := range msgs {
			attrs, err := rawnl.ParseRouteAttrAsMap(m[unix.SizeofIfInfomsg:])
			if err != nil {
				return nil, err
			}
			if number(attrs[unix.IFLA_MASTER].Value) == bridge.Index {
				names = append(names, rawnl.BytesToString(attrs[unix.IFLA_IFNAME].Value))
			}
		}
		return names, err
	})
}

func kindFilter(kind string) *rawnl.RtAttr {
	filter := rawnl.NewRtAttr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, nil)
	filter.AddRtAttr(rawnl.IFLA_INFO_KIND, rawnl.ZeroTerminated(kind))
	return filter
}

func masterFilter(index int) *rawnl.RtAttr {
	return rawnl.NewRtAttr(unix.IFLA_MASTER, rawnl.Uint32Attr(uint32(index)))
}

// listLinksRequest returns a request for the links that match a filter, or for all links if it is nil. The kernel
// filters links since Linux 4.6. netlink.Handle.LinkList takes no filter. For 1,000 links, it uses 15 ms of CPU time,
// more than a whole ADD, and the filtered list uses 0.4 ms.
func listLinksRequest(filter *rawnl.RtAttr) *rawnl.NetlinkRequest {
	req := rawnl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(rawnl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(rawnl.NewRtAttr(unix.IFLA_EXT_MASK, rawnl.Uint32Attr(skipStatistics)))
	if filter != nil {
		req.AddData(filter)
	}
	return req
}

// listLinks returns the links that match. The kernel sends only the links that pass filter. match filters again,
// because an old kernel ignores filter.
func (c *Conn) listLinks(step string, filter *rawnl.RtAttr, match func(Link) bool) ([]Link, error) {
	return query(c, step, func() (links []Link, err error) {
		msgs, err := c.execute(listLinksRequest(filter), unix.RTM_NEWLINK)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			l, err := netlink.LinkDeserialize(nil, m)
			if err != nil {
				return nil, err
			}
			if found := newLink(l); match(found) {
				links = append(links, found)
			}
		}
		return links, nil
	})
}

// Port returns the state of a link as a bridge port, or the zero Port if the link is not a bridge port. The request takes
// 0.03 ms. netlink.Handle.LinkGetProtinfo lists the ports of all bridges of the host, which takes 2 ms with 500 ports.
func (c *Conn) Port(l Link) (Port, error) {
	return queryLink(c, "find port "+l.Name, l, decodePort)
}

// A BridgeState is the state of a bridge that can change when ports are added.
type BridgeState struct {
	MAC types.MAC
	MTU int  // MTU in bytes
	STP bool // whether the bridge runs the spanning tree protocol
}

// BridgeState returns the current state of a bridge. Package netlink does not decode STP.
func (c *Conn) BridgeState(bridge Link) (BridgeState, error) {
	return queryLink(c, "find state of "+bridge.Name, bridge, decodeBridgeState)
}

// queryLink requests a link, as one step, and returns what decode reads in the RTM_NEWLINK message.
func queryLink[T any](c *Conn, step string, l Link, decode func([]byte) (T, error)) (T, error) {
	return query(c, step, func() (found T, err error) {
		msgs, err := c.execute(getLinkRequest(l.Index), unix.RTM_NEWLINK)
		if err != nil || len(msgs) == 0 {
			return found, err
		}
		return decode(msgs[0])
	})
}

func getLinkRequest(index int) *rawnl.NetlinkRequest {
	req := rawnl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := rawnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(rawnl.NewRtAttr(unix.IFLA_EXT_MASK, rawnl.Uint32Attr(skipStatistics)))
	return req
}

// linkByNameRequest returns a request for the link with the name or alternative name.
func linkByNameRequest(name string) *rawnl.NetlinkRequest {
	req, attr := getLinkRequest(0), uint16(unix.IFLA_IFNAME)
	if len(name) > types.MaxIfName {
		attr = unix.IFLA_ALT_IFNAME
	}
	req.AddData(rawnl.NewRtAttr(int(attr), rawnl.ZeroTerminated(name)))
	return req
}

// executeOne sends a request for one link, and returns the link.
func (c *Conn) executeOne(req *rawnl.NetlinkRequest) (netlink.Link, error) {
	msgs, err := c.execute(req, unix.RTM_NEWLINK)
	if err != nil || len(msgs) == 0 {
		return nil, cmp.Or[error](err, unix.ENODEV)
	}
	return netlink.LinkDeserialize(nil, msgs[0])
}

func decodePort(m []byte) (Port, error) {
	data, err := linkInfo(m, rawnl.IFLA_INFO_SLAVE_DATA)
	isSet := func(attr uint16) bool { v := data[attr].Value; return len(v) > 0 && v[0] != 0 }
	return Port{Hairpin: isSet(rawnl.IFLA_BRPORT_MODE), Isolated: isSet(rawnl.IFLA_BRPORT_ISOLATED)}, err
}

func decodeBridgeState(m []byte) (BridgeState, error) {
	decoded, err := netlink.LinkDeserialize(nil, m)
	if err != nil {
		return BridgeState{}, err
	}
	l := newLink(decoded)
	data, err := linkInfo(m, rawnl.IFLA_INFO_DATA)
	stp := number(data[rawnl.IFLA_BR_STP_STATE].Value) // BR_NO_STP is zero
	return BridgeState{MAC: l.MAC, MTU: l.MTU, STP: stp != 0}, err
}

// linkInfo returns the attributes that are nested in one attribute of IFLA_LINKINFO, such as
// IFLA_INFO_DATA, in an RTM_NEWLINK message.
func linkInfo(m []byte, attr uint16) (map[uint16]syscall.NetlinkRouteAttr, error) {
	attrs, err := rawnl.ParseRouteAttrAsMap(m[unix.SizeofIfInfomsg:])
	if err != nil {
		return nil, err
	}
	info, err := rawnl.ParseRouteAttrAsMap(attrs[unix.IFLA_LINKINFO].Value)
	if err != nil {
		return nil, err
	}
	return rawnl.ParseRouteAttrAsMap(info[attr].Value)
}

// set calls a setter of package netlink for the link as one step.
func (c *Conn) set(l Link, what string, set func(netlink.Link) error) error {
	return c.step("set link "+l.Name+" "+what, func() error { return set(l.device()) })
}

// SetUp sets the link administratively up.
func (c *Conn) SetUp(l Link) error { return c.set(l, "up", c.lib.LinkSetUp) }

// SetDown sets the link administratively down.
func (c *Conn) SetDown(l Link) error { return c.set(l, "down", c.lib.LinkSetDown) }

// SetMTU sets the MTU in bytes.
func (c *Conn) SetMTU(l Link, mtu int) error {
	return c.set(l, fmt.Sprintf("mtu %d", mtu), func(d netlink.Link) error { return c.lib.LinkSetMTU(d, mtu) })
}

// SetMAC sets the hardware address.
func (c *Conn) SetMAC(l Link, mac types.MAC) error {
	return c.set(l, "address "+mac.String(), func(d netlink.Link) error { return c.lib.LinkSetHardwareAddr(d, mac.Bytes()) })
}

// SetTxQueue sets the length of the transmit queue, in packets.
func (c *Conn) SetTxQueue(l Link, n int) error {
	return c.set(l, fmt.Sprintf("txqueuelen %d", n), func(d netlink.Link) error { return c.lib.LinkSetTxQLen(d, n) })
}

// SetAlias sets the alias, a text of at most 255 bytes that `ip link` prints.
func (c *Conn) SetAlias(l Link, alias string) error {
	return c.set(l, "alias", func(d netlink.Link) error { return c.lib.LinkSetAlias(d, alias) })
}

// ClearGroup moves the link to group 0, the kernel's default.
func (c *Conn) ClearGroup(l Link) error {
	return c.set(l, "group 0", func(d netlink.Link) error { return c.lib.LinkSetGroup(d, 0) })
}

// SetMaster attaches the link to the master as a port.
func (c *Conn) SetMaster(l, master Link) error {
	return c.set(l, "master "+master.Name, func(d netlink.Link) error { return c.lib.LinkSetMasterByIndex(d, master.Index) })
}

// ClearMaster detaches the link from its master, for example a bridge.
func (c *Conn) ClearMaster(l Link) error { return c.set(l, "nomaster", c.lib.LinkSetNoMaster) }

// SetPromisc enables promiscuous mode.
func (c *Conn) SetPromisc(l Link) error { return c.set(l, "promisc on", c.lib.SetPromiscOn) }

// ClearPromisc disables promiscuous mode.
func (c *Conn) ClearPromisc(l Link) error { return c.set(l, "promisc off", c.lib.SetPromiscOff) }

// SetAllMulti lets the link receive all multicast packets.
func (c *Conn) SetAllMulti(l Link) error {
	return c.set(l, "allmulticast on", c.lib.LinkSetAllmulticastOn)
}

// ClearAllMulti lets the link receive only packets to the multicast groups that it has joined.
func (c *Conn) ClearAllMulti(l Link) error {
	return c.set(l, "allmulticast off", c.lib.LinkSetAllmulticastOff)
}

// settableFlags contains the flags that a user can set (__dev_change_flags), except IFF_UP.
const settableFlags = unix.IFF_PROMISC | unix.IFF_ALLMULTI | unix.IFF_NOARP | unix.IFF_MULTICAST | unix.IFF_DEBUG |
	unix.IFF_NOTRAILERS | unix.IFF_DYNAMIC | unix.IFF_PORTSEL | unix.IFF_AUTOMEDIA

// SetFlags sets the link's flags to the Flags of a Link, and leaves the link up or down.
func (c *Conn) SetFlags(l Link, flags uint32) error {
	req := rawnl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := rawnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index, msg.Flags, msg.Change = int32(l.Index), flags, settableFlags
	req.AddData(msg)
	return c.step(fmt.Sprintf("set link %s flags %#x", l.Name, flags), func() error {
		_, err := c.execute(req, 0)
		return err
	})
}

// SetPort sets the flags of a bridge port.
func (c *Conn) SetPort(l Link, p Port) error {
	return c.step(fmt.Sprintf("set port %s hairpin %t isolated %t", l.Name, p.Hairpin, p.Isolated), func() error {
		if err := c.lib.LinkSetHairpin(l.device(), p.Hairpin); err != nil {
			return err
		}
		return c.lib.LinkSetIsolated(l.device(), p.Isolated)
	})
}

// SetVLANFiltering enables VLAN filtering on a bridge. It sends only the name of the bridge. If a request also contains
// the index, kernels before Linux 6.2 try to change the name, which fails for a link that is up (EBUSY).
func (c *Conn) SetVLANFiltering(bridge Link) error {
	return c.step("set bridge "+bridge.Name+" vlan_filtering on", func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridge.Name
		return c.lib.BridgeSetVlanFiltering(&netlink.Bridge{LinkAttrs: attrs}, true)
	})
}

// SetForwarding sets the fields of f that are not nil on a bridge. Like SetVLANFiltering, it sends only the name of the
// bridge. The kernel rejects a GroupFwdMask with one of the lowest three bits (EINVAL).
func (c *Conn) SetForwarding(bridge Link, f BridgeForwarding) error {
	return c.step("set bridge "+bridge.Name+" "+f.String(), func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridge.Name
		return c.lib.LinkModify(&netlink.Bridge{LinkAttrs: attrs, GroupFwdMask: f.GroupFwdMask, MulticastSnooping: f.MulticastSnooping})
	})
}

// DeleteLink deletes the link. If the link is one end of a veth pair, the kernel also deletes the other end. If the
// link does not exist, DeleteLink returns nil.
func (c *Conn) DeleteLink(l Link) error {
	return types.IgnoreNotExist(c.step("delete link "+l.Name, func() error { return c.lib.LinkDel(l.device()) }))
}
