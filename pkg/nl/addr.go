package nl

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An Addr is an address on a link.
type Addr struct {
	Prefix netip.Prefix // the address with its prefix length, not masked
	// NoDAD makes the address usable at once, without duplicate address detection. It is for segments on
	// which the IPAM plugin assigns every address.
	NoDAD bool
	// Optimistic makes the address usable during duplicate address detection (RFC 4429).
	Optimistic bool
	// Broadcast is the broadcast address of an IPv4 address. 0.0.0.0 means none. If Broadcast is zero,
	// AddAddr sets the last address of the network, provided that the prefix length is at most 30. Addrs
	// sets Broadcast for each IPv4 address.
	Broadcast netip.Addr
	// NoPrefixRoute keeps the kernel from adding a route to the prefix (IFA_F_NOPREFIXROUTE, for IPv4
	// since Linux 4.18).
	NoPrefixRoute bool
	// Tentative means that duplicate address detection has not ended, and Duplicate that it has found a
	// duplicate. The kernel sets them, and AddAddr ignores them.
	Tentative bool
	Duplicate bool
	// Temporary means that the kernel replaces the address after some time (RFC 8981). The kernel sets it, and AddAddr
	// ignores it.
	Temporary bool
	// Permanent means that the lifetime of the address is not limited, in contrast to an address from
	// DHCP or a router advertisement. The kernel sets it, and AddAddr ignores it.
	Permanent bool
}

func (a Addr) String() string { return a.Prefix.String() }

// AddAddr adds an address to a link. If the address is already assigned to the link, the error matches fs.ErrExist.
func (c *Conn) AddAddr(l Link, a Addr) error {
	flags := 0
	if a.NoDAD {
		flags |= unix.IFA_F_NODAD
	}
	if a.Optimistic {
		flags |= unix.IFA_F_OPTIMISTIC
	}
	if a.NoPrefixRoute {
		flags |= unix.IFA_F_NOPREFIXROUTE
	}
	return c.step(fmt.Sprintf("add address %s to %s", a.Prefix, l.Name), func() error {
		return c.lib.AddrAdd(l.device(), &netlink.Addr{IPNet: ipNet(a.Prefix), Flags: flags, Broadcast: a.Broadcast.AsSlice()})
	})
}

// DeleteAddr deletes an address from a link. If the address is not assigned to the link, the error
// matches fs.ErrNotExist.
func (c *Conn) DeleteAddr(l Link, p netip.Prefix) error {
	return c.step(fmt.Sprintf("delete address %s from %s", p, l.Name), func() error {
		return c.lib.AddrDel(l.device(), &netlink.Addr{IPNet: ipNet(p)})
	})
}

// AddNeighbor adds or replaces the neighbor entry of an address. The entry is in the state STALE, in
// which the kernel uses the hardware address at once and verifies it soon. The link must be running,
// because the kernel deletes the neighbor entries of links that are not running.
func (c *Conn) AddNeighbor(l Link, neighbor netip.Addr, mac types.MAC) error {
	return c.step(fmt.Sprintf("add neighbor %s to %s", neighbor, l.Name), func() error {
		return c.lib.NeighSet(&netlink.Neigh{
			LinkIndex: l.Index, State: netlink.NUD_STALE, IP: neighbor.AsSlice(), HardwareAddr: mac.Bytes(),
		})
	})
}

// AddPermanentNeighbor adds or replaces the neighbor entry of an address. The kernel never verifies the entry, and keeps it
// until the link is set down.
func (c *Conn) AddPermanentNeighbor(l Link, neighbor netip.Addr, mac types.MAC) error {
	return c.step(fmt.Sprintf("add permanent neighbor %s to %s", neighbor, l.Name), func() error {
		return c.lib.NeighSet(&netlink.Neigh{
			LinkIndex: l.Index, State: netlink.NUD_PERMANENT, IP: neighbor.AsSlice(), HardwareAddr: mac.Bytes(),
		})
	})
}

// PermanentNeighbors returns the hardware addresses of a link's permanent neighbor entries.
func (c *Conn) PermanentNeighbors(l Link) (map[netip.Addr]types.MAC, error) {
	return query(c, "list neighbors of "+l.Name, func() (map[netip.Addr]types.MAC, error) {
		// Package netlink sets the index in the header of the request, which the kernel rejects under strict checks
		// (neigh_valid_dump_req).
		_ = c.lib.SetStrictCheck(false)
		defer func() { _ = c.lib.SetStrictCheck(true) }()
		list, err := c.lib.NeighList(l.Index, unix.AF_UNSPEC)
		found := map[netip.Addr]types.MAC{}
		for _, n := range list {
			if n.State == netlink.NUD_PERMANENT {
				found[ipAddr(n.IP).Unmap()] = types.MAC(n.HardwareAddr)
			}
		}
		return found, err
	})
}

// Addrs returns the addresses of a link, IPv4 first.
func (c *Conn) Addrs(l Link) ([]Addr, error) {
	return c.addrs("list addresses of "+l.Name, l.device(), unix.AF_UNSPEC)
}

// LocalAddrs returns the addresses of all links of the namespace in the family of a or, if a is the zero
// Addr, in both families. The result contains no duplicates.
func (c *Conn) LocalAddrs(a netip.Addr) ([]netip.Addr, error) {
	family := unix.AF_UNSPEC
	if a.IsValid() {
		family = familyOf(a)
	}
	found, err := c.addrs("list own addresses", nil, family)
	var addrs []netip.Addr
	for _, a := range found {
		if ip := a.Prefix.Addr(); !slices.Contains(addrs, ip) {
			addrs = append(addrs, ip)
		}
	}
	return addrs, err
}

// AddrsByLink returns the addresses of all links of the namespace, by the indexes of the links.
func (c *Conn) AddrsByLink() (map[int][]netip.Addr, error) {
	return query(c, "list addresses of all links", func() (map[int][]netip.Addr, error) {
		list, err := c.lib.AddrList(nil, unix.AF_UNSPEC)
		found := map[int][]netip.Addr{}
		for _, a := range list {
			found[a.LinkIndex] = append(found[a.LinkIndex], newAddr(a).Prefix.Addr())
		}
		return found, err
	})
}

// addrs returns the addresses of a link or, if link is nil, of all links. If family is AF_UNSPEC, it
// returns the addresses of all families, sorted by the number of the family.
func (c *Conn) addrs(step string, link netlink.Link, family int) ([]Addr, error) {
	return query(c, step, func() (addrs []Addr, err error) {
		list, err := c.lib.AddrList(link, family)
		for _, a := range list {
			addrs = append(addrs, newAddr(a))
		}
		return addrs, err
	})
}

// newAddr converts a netlink.Addr. For an address with a peer, it returns the peer's prefix length, as
// the `ip` command prints it.
func newAddr(a netlink.Addr) Addr {
	network := a.IPNet
	if a.Peer != nil {
		network = &net.IPNet{IP: a.IP, Mask: a.Peer.Mask}
	}
	broadcast := ipAddr(a.Broadcast)
	if a.Broadcast == nil && network.IP.To4() != nil {
		broadcast = netip.IPv4Unspecified()
	}
	return Addr{
		Prefix:        prefix(network),
		Broadcast:     broadcast,
		NoDAD:         a.Flags&unix.IFA_F_NODAD != 0,
		Optimistic:    a.Flags&unix.IFA_F_OPTIMISTIC != 0,
		NoPrefixRoute: a.Flags&unix.IFA_F_NOPREFIXROUTE != 0,
		Tentative:     a.Flags&unix.IFA_F_TENTATIVE != 0,
		Duplicate:     a.Flags&unix.IFA_F_DADFAILED != 0,
		Temporary:     a.Flags&unix.IFA_F_TEMPORARY != 0 && network.IP.To4() == nil, // for IPv4, the bit means secondary
		Permanent:     a.Flags&unix.IFA_F_PERMANENT != 0,
	}
}

// families contains the address families in the order in which lists contain them.
var families = []int{unix.AF_INET, unix.AF_INET6}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefix converts a net.IPNet. If n is nil, prefix returns the zero Prefix.
func prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	ip := n.IP
	bits, size := n.Mask.Size()
	if size == 8*net.IPv4len { // package netlink returns the IPv4 default route with a 16-byte address
		ip = ip.To4()
	}
	return netip.PrefixFrom(ipAddr(ip), bits)
}

// ipAddr converts a net.IP. If ip is nil, ipAddr returns the zero Addr.
func ipAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a
}
