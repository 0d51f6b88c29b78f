package nl

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An Addr is an address of a link.
type Addr struct {
	Prefix netip.Prefix // the address with its prefix length, not masked
	// NoDAD makes the address usable at once, without duplicate address detection. It
	// is for segments on which the plugin hands out every address.
	NoDAD bool
	// Optimistic makes the address usable while the kernel still looks for duplicates
	// (RFC 4429).
	Optimistic bool
	// NoPrefixRoute makes the kernel add no route to the prefix (IFA_F_NOPREFIXROUTE,
	// IPv4 since Linux 4.18).
	NoPrefixRoute bool
	// Tentative and Duplicate are set by the kernel; they are not sent.
	Tentative bool
	Duplicate bool
}

// AddAddr adds an address. The error matches fs.ErrExist when it is there.
func (l Link) AddAddr(a Addr) Change {
	flags := 0
	for _, f := range []struct {
		on  bool
		bit int
	}{{a.NoDAD, unix.IFA_F_NODAD}, {a.Optimistic, unix.IFA_F_OPTIMISTIC}, {a.NoPrefixRoute, unix.IFA_F_NOPREFIXROUTE}} {
		if f.on {
			flags |= f.bit
		}
	}
	return change(fmt.Sprintf("add address %s to %s", a.Prefix, l.Name), func(c *Conn) error {
		return c.lib.AddrAdd(l.device(), &netlink.Addr{IPNet: ipNet(a.Prefix), Flags: flags})
	})
}

// DelAddr removes an address.
func (l Link) DelAddr(p netip.Prefix) Change {
	return change(fmt.Sprintf("delete address %s from %s", p, l.Name), func(c *Conn) error {
		return c.lib.AddrDel(l.device(), &netlink.Addr{IPNet: ipNet(p)})
	})
}

// AddNeighbor adds a neighbour entry with a hardware address, or replaces it. The entry is
// STALE: the kernel uses it at once and verifies it soon, so that the kernel notices a
// changed address. The link has to be running: the kernel drops the neighbours of a link
// that is not running.
func (l Link) AddNeighbor(neighbour netip.Addr, mac types.MAC) Change {
	return change(fmt.Sprintf("add neighbour %s to %s", neighbour, l.Name), func(c *Conn) error {
		return c.lib.NeighSet(&netlink.Neigh{
			LinkIndex: l.Index, State: netlink.NUD_STALE, IP: neighbour.AsSlice(), HardwareAddr: mac.Bytes(),
		})
	})
}

// Addrs lists the addresses of a link, IPv4 first.
func (c *Conn) Addrs(l Link) ([]Addr, error) {
	var addrs []Addr
	for _, family := range families {
		found, err := c.addrs("list addresses of "+l.Name, l.device(), family)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, found...)
	}
	return addrs, nil
}

// LocalAddrs lists the addresses of the namespace that are of the family of like,
// each once.
func (c *Conn) LocalAddrs(like netip.Addr) ([]netip.Addr, error) {
	found, err := c.addrs("list own addresses", nil, family(like))
	var addrs []netip.Addr
	for _, a := range found {
		if ip := a.Prefix.Addr(); !slices.Contains(addrs, ip) {
			addrs = append(addrs, ip)
		}
	}
	return addrs, err
}

// addrs lists the addresses of one family, of one link or, if it is nil, of all.
func (c *Conn) addrs(step string, of netlink.Link, family int) ([]Addr, error) {
	return query(c, step, func() (addrs []Addr, err error) {
		list, err := c.lib.AddrList(of, family)
		for _, a := range list {
			addrs = append(addrs, describeAddr(a))
		}
		return addrs, err
	})
}

// describeAddr returns an address of the library's as an Addr. The prefix of one with a
// peer is the peer's, as `ip` shows it.
func describeAddr(a netlink.Addr) Addr {
	network := a.IPNet
	if a.Peer != nil {
		network = &net.IPNet{IP: a.IP, Mask: a.Peer.Mask}
	}
	return Addr{
		Prefix:        prefix(network),
		NoDAD:         a.Flags&unix.IFA_F_NODAD != 0,
		Optimistic:    a.Flags&unix.IFA_F_OPTIMISTIC != 0,
		NoPrefixRoute: a.Flags&unix.IFA_F_NOPREFIXROUTE != 0,
		Tentative:     a.Flags&unix.IFA_F_TENTATIVE != 0,
		Duplicate:     a.Flags&unix.IFA_F_DADFAILED != 0,
	}
}

// families are the families of addresses, in the order in which they are listed.
var families = []int{unix.AF_INET, unix.AF_INET6}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// ipNet returns a prefix as the library takes it.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefix returns a network of the library's as a prefix; zero: it is none.
func prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	ip := n.IP
	bits, size := n.Mask.Size()
	if size == 8*net.IPv4len { // the library gives a default route the address in 16 bytes
		ip = ip.To4()
	}
	return netip.PrefixFrom(addrOf(ip), bits)
}

// addrOf returns an address of the library's as an Addr of netip; zero: it is none.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a
}
