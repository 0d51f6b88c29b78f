package nl

import (
	"fmt"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/vishvananda/netlink"
	rawnl "github.com/vishvananda/netlink/nl"
)

// ipvlanModes and ipvlanFlags map the names of ipvlan modes and flags to the constants of package netlink.
var (
	ipvlanModes = map[string]netlink.IPVlanMode{"l2": netlink.IPVLAN_MODE_L2, "l3": netlink.IPVLAN_MODE_L3, "l3s": netlink.IPVLAN_MODE_L3S}
	ipvlanFlags = map[string]netlink.IPVlanFlag{"bridge": netlink.IPVLAN_FLAG_BRIDGE, "private": netlink.IPVLAN_FLAG_PRIVATE, "vepa": netlink.IPVLAN_FLAG_VEPA}
)

// An IPVlanMode is the mode and flag of an ipvlan. All ipvlans of a parent share them. Creating an ipvlan with another
// mode or flag changes the existing ipvlans of the parent (ipvlan_set_port_mode).
type IPVlanMode struct {
	Mode string // "l2", "l3" or "l3s"
	Flag string // "bridge", "private" or "vepa"
}

func (m IPVlanMode) String() string { return "mode " + m.Mode + ", flag " + m.Flag }

// HasKnownMode reports whether AddIPVlan accepts m.Mode.
func (m IPVlanMode) HasKnownMode() bool {
	_, known := ipvlanModes[m.Mode]
	return known
}

// HasKnownFlag reports whether AddIPVlan accepts m.Flag.
func (m IPVlanMode) HasKnownFlag() bool {
	_, known := ipvlanFlags[m.Flag]
	return known
}

// AddIPVlan creates an ipvlan and pushes its removal to u. The ipvlan has the MAC of the parent, which cannot be
// changed.
func (c *Conn) AddIPVlan(u *undo.Stack, n NewLink, m IPVlanMode) (Link, error) {
	return c.add(u, n, &netlink.IPVlan{Mode: ipvlanModes[m.Mode], Flag: ipvlanFlags[m.Flag]})
}

// IPVlanMode returns the mode and flag of an ipvlan. It does not use package netlink's decoder, which reads the 16
// bits of each value as 32 bits, with a wrong result on big-endian processors.
func (c *Conn) IPVlanMode(l Link) (IPVlanMode, error) {
	return queryLink(c, "find mode of ipvlan "+l.Name, l, decodeIPVlanMode)
}

// IPVlansOn returns the ipvlans of the parent in the namespace of c, which must be the parent's namespace.
func (c *Conn) IPVlansOn(parent Link) ([]Link, error) {
	links, err := c.LinksOfKind("ipvlan")
	return slices.DeleteFunc(links, func(l Link) bool { return l.Peer != parent.Index || l.PeerNS != 0 }), err
}

func decodeIPVlanMode(m []byte) (IPVlanMode, error) {
	data, err := linkInfo(m, rawnl.IFLA_INFO_DATA)
	if err != nil {
		return IPVlanMode{}, err
	}
	mode, flag := data[rawnl.IFLA_IPVLAN_MODE].Value, data[rawnl.IFLA_IPVLAN_FLAG].Value
	if len(mode) < 2 || len(flag) < 2 {
		return IPVlanMode{}, fmt.Errorf("the kernel reported no ipvlan mode")
	}
	number := rawnl.NativeEndian().Uint16
	return IPVlanMode{
		Mode: nameOf(ipvlanModes, netlink.IPVlanMode(number(mode))),
		Flag: nameOf(ipvlanFlags, netlink.IPVlanFlag(number(flag))),
	}, nil
}
