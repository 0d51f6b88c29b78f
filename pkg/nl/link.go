package nl

import (
	"encoding/binary"
	"fmt"
	"io/fs"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// A Link is a network interface as the kernel describes it. MTU in bytes.
type Link struct {
	Index     int
	Name      string
	Kind      string // "veth", "bridge", "macvlan", …; empty: a device without a kind (lo, hardware)
	MAC       types.MAC
	MTU       int
	Alias     string
	Group     uint32 // a number that tools can choose links by
	Up        bool   // administratively up
	Running   bool   // operationally up
	Carrier   bool   // up, and the cable is plugged in (IFF_LOWER_UP)
	Promisc   bool   // somebody asked for it by flag; packet sockets do not count
	AllMulti  bool
	TxQueue   int
	Master    int // index; zero: none
	Peer      int // index of the other end (veth) or of the parent (macvlan), in whatever namespace
	Port      Port
	Bridge    Bridge
	Macvlan   MacvlanInfo
	operstate uint8
	peerNS    int // the peer's namespace: 1 + its nsid in the link's own; zero: the same
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
	Mode       MacvlanMode
	QueueLen   uint32 // broadcast queue, in packets
	QueueInUse int
}

const (
	operUp      = 6 // IF_OPER_UP, RFC 2863
	extSkipStat = 1 << 3
	// Attributes that golang.org/x/sys/unix does not name.
	vethInfoPeer        = 1  // VETH_INFO_PEER
	iflaBrPortMode      = 4  // IFLA_BRPORT_MODE: hairpin
	iflaBrPortIsolated  = 33 // IFLA_BRPORT_ISOLATED
	iflaBrVLANFiltering = 7  // IFLA_BR_VLAN_FILTERING
	iflaBrDefaultPVID   = 39 // IFLA_BR_VLAN_DEFAULT_PVID
)

// linkHeader is struct ifinfomsg.
func linkHeader(index int, flags, mask uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], mask)
	return b
}

// linkBody is a header, of rtnetlink or conntrack, and the attributes behind it.
func linkBody(header []byte, fill func(*netlink.Encoder)) ([]byte, error) {
	return netlink.Encode(header, binary.NativeEndian, fill)
}

// Link finds a link by name. The error matches fs.ErrNotExist.
func (c *Conn) Link(name string) (Link, error) {
	if name == "" {
		return Link{}, &Error{Step: "find link", Err: fs.ErrNotExist}
	}
	body, err := linkBody(linkHeader(0, 0, 0), func(ae *netlink.Encoder) {
		ae.String(unix.IFLA_IFNAME, name)
		ae.Uint32(unix.IFLA_EXT_MASK, extSkipStat)
	})
	if err != nil {
		return Link{}, wrap("find link "+name, err)
	}
	return c.oneLink("find link "+name, body)
}

// LinkByIndex finds a link by index. The error matches fs.ErrNotExist.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	step := fmt.Sprintf("find link %d", index)
	body, err := linkBody(linkHeader(index, 0, 0), func(ae *netlink.Encoder) {
		ae.Uint32(unix.IFLA_EXT_MASK, extSkipStat)
	})
	if err != nil {
		return Link{}, wrap(step, err)
	}
	return c.oneLink(step, body)
}

// VethPeer finds the other end of a veth pair of which l is an end here. The error
// matches fs.ErrNotExist when it is not in that namespace.
func (c *Conn) VethPeer(l Link, there *Conn) (Link, error) {
	nsid, err := c.nsid(there)
	if err != nil {
		return Link{}, err
	}
	if l.Kind != "veth" || l.peerNS != 1+nsid {
		return Link{}, &Error{Step: "find the other end of " + l.Name, Err: unix.ENODEV}
	}
	return there.LinkByIndex(l.Peer)
}

// nsid is the number that the kernel has here for another namespace; -1: none, or it
// is this one. It gives one to each that a link reaches into.
func (c *Conn) nsid(there *Conn) (int, error) {
	step := "find nsid of " + there.h.Path()
	body, err := linkBody(make([]byte, 4), func(ae *netlink.Encoder) { // struct rtgenmsg
		ae.Uint32(unix.NETNSA_FD, uint32(there.h.FD()))
	})
	if err != nil {
		return 0, wrap(step, err)
	}
	m, err := c.get(step, unix.RTM_GETNSID, body)
	if err != nil {
		return 0, err
	}
	if len(m.Body) < 4 {
		return 0, wrap(step, fmt.Errorf("nsid message of %d bytes", len(m.Body)))
	}
	ad := netlink.Decode(m.Body[4:], binary.NativeEndian)
	nsid := unix.NETNSA_NSID_NOT_ASSIGNED
	for ad.Next() {
		if ad.Kind() == unix.NETNSA_NSID {
			nsid = int(ad.Int32())
		}
	}
	return nsid, wrap(step, ad.Err())
}

func (c *Conn) oneLink(step string, body []byte) (Link, error) {
	m, err := c.get(step, unix.RTM_GETLINK, body)
	if err != nil {
		return Link{}, err
	}
	l, err := decodeLink(m.Body)
	return l, wrap(step, err)
}

// LinksOfKind lists the links of one kind; the kernel does the choosing.
func (c *Conn) LinksOfKind(kind string) ([]Link, error) {
	return c.links("list links of kind "+kind, func(l Link) bool { return l.Kind == kind }, func(ae *netlink.Encoder) {
		ae.Nested(unix.IFLA_LINKINFO, func(ae *netlink.Encoder) { ae.String(unix.IFLA_INFO_KIND, kind) })
	})
}

// Ports lists the ports of a bridge; the kernel does the choosing.
func (c *Conn) Ports(bridge Link) ([]Link, error) {
	return c.links("list ports of "+bridge.Name, func(l Link) bool { return l.Master == bridge.Index }, func(ae *netlink.Encoder) {
		ae.Uint32(unix.IFLA_MASTER, uint32(bridge.Index))
	})
}

// links dumps the links that pass the filter, which an old kernel may ignore.
func (c *Conn) links(step string, wanted func(Link) bool, filter func(*netlink.Encoder)) ([]Link, error) {
	body, err := linkBody(linkHeader(0, 0, 0), func(ae *netlink.Encoder) {
		ae.Uint32(unix.IFLA_EXT_MASK, extSkipStat)
		filter(ae)
	})
	if err != nil {
		return nil, wrap(step, err)
	}
	msgs, err := c.dump(step, unix.RTM_GETLINK, body)
	if err != nil {
		return nil, err
	}
	var links []Link
	for _, m := range msgs {
		l, err := decodeLink(m.Body)
		if err != nil {
			return nil, wrap(step, err)
		}
		if wanted(l) {
			links = append(links, l)
		}
	}
	return links, nil
}

// decodeLink reads an RTM_NEWLINK.
func decodeLink(b []byte) (Link, error) {
	if len(b) < unix.SizeofIfInfomsg {
		return Link{}, fmt.Errorf("link message of %d bytes", len(b))
	}
	flags := binary.NativeEndian.Uint32(b[8:])
	l := Link{
		Index:    int(int32(binary.NativeEndian.Uint32(b[4:]))),
		Up:       flags&unix.IFF_UP != 0,
		Carrier:  flags&unix.IFF_LOWER_UP != 0,
		Promisc:  flags&unix.IFF_PROMISC != 0,
		AllMulti: flags&unix.IFF_ALLMULTI != 0,
	}
	ad := netlink.Decode(b[unix.SizeofIfInfomsg:], binary.NativeEndian)
	for ad.Next() {
		l.attribute(ad)
	}
	l.Running = l.operstate == operUp
	return l, ad.Err()
}

func (l *Link) attribute(ad *netlink.Decoder) {
	switch ad.Kind() {
	case unix.IFLA_IFNAME:
		l.Name = ad.String()
	case unix.IFLA_ADDRESS:
		l.MAC = types.MAC(ad.Bytes())
	case unix.IFLA_MTU:
		l.MTU = int(ad.Uint32())
	case unix.IFLA_IFALIAS:
		l.Alias = ad.String()
	case unix.IFLA_GROUP:
		l.Group = ad.Uint32()
	case unix.IFLA_TXQLEN:
		l.TxQueue = int(ad.Uint32())
	case unix.IFLA_MASTER:
		l.Master = int(ad.Uint32())
	case unix.IFLA_LINK:
		l.Peer = int(ad.Uint32())
	case unix.IFLA_LINK_NETNSID:
		l.peerNS = 1 + int(ad.Int32())
	case unix.IFLA_OPERSTATE:
		l.operstate = ad.Uint8()
	case unix.IFLA_LINKINFO:
		ad.Nested(l.info)
	}
}

// info reads IFLA_LINKINFO, in which the kind stands before the data it explains.
func (l *Link) info(ad *netlink.Decoder) {
	var port string
	for ad.Next() {
		switch ad.Kind() {
		case unix.IFLA_INFO_KIND:
			l.Kind = ad.String()
		case unix.IFLA_INFO_SLAVE_KIND:
			port = ad.String()
		case unix.IFLA_INFO_DATA:
			switch l.Kind {
			case "bridge":
				ad.Nested(l.Bridge.decode)
			case "macvlan":
				ad.Nested(l.Macvlan.decode)
			}
		case unix.IFLA_INFO_SLAVE_DATA:
			if port == "bridge" {
				ad.Nested(l.Port.decode)
			}
		}
	}
}

func (b *Bridge) decode(ad *netlink.Decoder) {
	for ad.Next() {
		switch ad.Kind() {
		case iflaBrVLANFiltering:
			b.VLANFiltering = ad.Uint8() != 0
		case iflaBrDefaultPVID:
			b.DefaultPVID = int(ad.Uint16())
		}
	}
}

func (p *Port) decode(ad *netlink.Decoder) {
	for ad.Next() {
		switch ad.Kind() {
		case iflaBrPortMode:
			p.Hairpin = ad.Uint8() != 0
		case iflaBrPortIsolated:
			p.Isolated = ad.Uint8() != 0
		}
	}
}

// setLink is a change of an existing link: of flags in the header, and attributes.
func setLink(step string, header []byte, fill func(*netlink.Encoder)) Change {
	body, err := linkBody(header, fill)
	return change(step, unix.RTM_SETLINK, body, err)
}

func none(*netlink.Encoder) {}

// SetUp sets the link administratively up.
func (l Link) SetUp() Change {
	return setLink("set link "+l.Name+" up", linkHeader(l.Index, unix.IFF_UP, unix.IFF_UP), none)
}

// SetDown sets the link administratively down.
func (l Link) SetDown() Change {
	return setLink("set link "+l.Name+" down", linkHeader(l.Index, 0, unix.IFF_UP), none)
}

// SetMTU sets the MTU in bytes.
func (l Link) SetMTU(mtu int) Change {
	return setLink(fmt.Sprintf("set link %s mtu %d", l.Name, mtu), linkHeader(l.Index, 0, 0), func(ae *netlink.Encoder) {
		ae.Uint32(unix.IFLA_MTU, uint32(mtu))
	})
}

// SetMAC sets the hardware address.
func (l Link) SetMAC(mac types.MAC) Change {
	return setLink("set link "+l.Name+" address "+mac.String(), linkHeader(l.Index, 0, 0), func(ae *netlink.Encoder) {
		ae.Bytes(unix.IFLA_ADDRESS, mac.Bytes())
	})
}

// SetTxQueue sets the length of the transmit queue, in packets.
func (l Link) SetTxQueue(n int) Change {
	return setLink(fmt.Sprintf("set link %s txqueuelen %d", l.Name, n), linkHeader(l.Index, 0, 0), func(ae *netlink.Encoder) {
		ae.Uint32(unix.IFLA_TXQLEN, uint32(n))
	})
}

// SetAlias sets the text that `ip link` shows beside the link, at most 255 bytes.
func (l Link) SetAlias(alias string) Change {
	return setLink("set link "+l.Name+" alias", linkHeader(l.Index, 0, 0), func(ae *netlink.Encoder) {
		ae.Bytes(unix.IFLA_IFALIAS, []byte(alias))
	})
}

// ClearGroup puts the link into group 0, the kernel's default.
func (l Link) ClearGroup() Change {
	return setLink("set link "+l.Name+" group 0", linkHeader(l.Index, 0, 0), func(ae *netlink.Encoder) {
		ae.Uint32(unix.IFLA_GROUP, 0)
	})
}

// SetMaster makes the link a port of the link with that index.
func (l Link) SetMaster(master Link) Change {
	return setLink("set link "+l.Name+" master "+master.Name, linkHeader(l.Index, 0, 0), func(ae *netlink.Encoder) {
		ae.Uint32(unix.IFLA_MASTER, uint32(master.Index))
	})
}

// ClearMaster takes the link out of its bridge.
func (l Link) ClearMaster() Change {
	return setLink("set link "+l.Name+" nomaster", linkHeader(l.Index, 0, 0), func(ae *netlink.Encoder) {
		ae.Uint32(unix.IFLA_MASTER, 0)
	})
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
	return setLink("set link "+l.Name+" "+f.String()+" on", linkHeader(l.Index, uint32(f), uint32(f)), none)
}

// ClearFlag turns a flag off.
func (l Link) ClearFlag(f Flag) Change {
	return setLink("set link "+l.Name+" "+f.String()+" off", linkHeader(l.Index, 0, uint32(f)), none)
}

// SetPort sets the flags of a bridge port.
func (l Link) SetPort(p Port) Change {
	step := fmt.Sprintf("set port %s hairpin %t isolated %t", l.Name, p.Hairpin, p.Isolated)
	body, err := linkBody(linkHeader(l.Index, 0, 0), func(ae *netlink.Encoder) {
		ae.Nested(unix.IFLA_LINKINFO, func(ae *netlink.Encoder) {
			ae.String(unix.IFLA_INFO_SLAVE_KIND, "bridge")
			ae.Nested(unix.IFLA_INFO_SLAVE_DATA, func(ae *netlink.Encoder) {
				ae.Uint8(iflaBrPortMode, bit(p.Hairpin))
				ae.Uint8(iflaBrPortIsolated, bit(p.Isolated))
			})
		})
	})
	return change(step, unix.RTM_NEWLINK, body, err)
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// SetVLANFiltering makes a bridge tell VLANs apart.
func (l Link) SetVLANFiltering() Change {
	body, err := linkBody(linkHeader(l.Index, 0, 0), func(ae *netlink.Encoder) {
		ae.Nested(unix.IFLA_LINKINFO, func(ae *netlink.Encoder) {
			ae.String(unix.IFLA_INFO_KIND, "bridge")
			ae.Nested(unix.IFLA_INFO_DATA, func(ae *netlink.Encoder) { ae.Uint8(iflaBrVLANFiltering, 1) })
		})
	})
	return change("set bridge "+l.Name+" vlan_filtering on", unix.RTM_NEWLINK, body, err)
}

// Del deletes the link, if it is still there. A veth takes its other end with it.
func (l Link) Del() Change {
	body, err := linkBody(linkHeader(l.Index, 0, 0), none)
	return change("delete link "+l.Name, unix.RTM_DELLINK, body, err).IfPresent()
}
