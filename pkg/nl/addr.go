package nl

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"golang.org/x/sys/unix"
)

// An Addr is an address of a link.
type Addr struct {
	Prefix netip.Prefix // the address with its prefix length, not masked
	// NoDAD: the address is usable at once, without duplicate address detection.
	// For segments on which the plugin hands out every address.
	NoDAD bool
	// Optimistic: the address is usable while duplicates are still looked for
	// (RFC 4429).
	Optimistic bool
	// NoPrefixRoute: the kernel adds no route to the prefix (IFA_F_NOPREFIXROUTE,
	// IPv4 since kernel 4.18).
	NoPrefixRoute bool
	// Tentative and Duplicate are what the kernel says; they are not sent.
	Tentative bool
	Duplicate bool
}

const (
	scopeUniverse = 0
	infinite      = 1<<32 - 1
)

func addrHeader(p netip.Prefix, index int) []byte {
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0] = family(p.Addr())
	if p.IsValid() {
		b[1] = byte(p.Bits())
	}
	b[3] = scopeUniverse
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	return b
}

func family(a netip.Addr) byte {
	switch {
	case !a.IsValid():
		return unix.AF_UNSPEC
	case a.Is4():
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// AddAddr adds an address. The error matches fs.ErrExist when it is there.
func (l Link) AddAddr(a Addr) Change {
	var flags uint32
	for _, f := range []struct {
		on  bool
		bit uint32
	}{{a.NoDAD, unix.IFA_F_NODAD}, {a.Optimistic, unix.IFA_F_OPTIMISTIC}, {a.NoPrefixRoute, unix.IFA_F_NOPREFIXROUTE}} {
		if f.on {
			flags |= f.bit
		}
	}
	body, err := linkBody(addrHeader(a.Prefix, l.Index), func(ae *netlink.Encoder) {
		ip := a.Prefix.Addr().AsSlice()
		ae.Bytes(unix.IFA_LOCAL, ip)
		ae.Bytes(unix.IFA_ADDRESS, ip)
		if b := broadcast(a.Prefix); b.IsValid() {
			ae.Bytes(unix.IFA_BROADCAST, b.AsSlice())
		}
		ae.Uint32(unix.IFA_FLAGS, flags)
	})
	return change(fmt.Sprintf("add address %s to %s", a.Prefix, l.Name), unix.RTM_NEWADDR, body, err).with(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
}

// DelAddr removes an address.
func (l Link) DelAddr(p netip.Prefix) Change {
	body, err := linkBody(addrHeader(p, l.Index), func(ae *netlink.Encoder) {
		ae.Bytes(unix.IFA_LOCAL, p.Addr().AsSlice())
		ae.Bytes(unix.IFA_ADDRESS, p.Addr().AsSlice())
	})
	return change(fmt.Sprintf("delete address %s from %s", p, l.Name), unix.RTM_DELADDR, body, err)
}

// broadcast is the directed broadcast address of an IPv4 network that has one.
func broadcast(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() >= 31 {
		return netip.Addr{}
	}
	ip := p.Addr().As4()
	n := binary.BigEndian.Uint32(ip[:]) | (1<<(32-p.Bits()) - 1)
	binary.BigEndian.PutUint32(ip[:], n)
	return netip.AddrFrom4(ip)
}

// Addrs lists the addresses of a link, IPv4 first.
func (c *Conn) Addrs(l Link) ([]Addr, error) {
	var addrs []Addr
	for _, fam := range []byte{unix.AF_INET, unix.AF_INET6} {
		header := addrHeader(netip.Prefix{}, l.Index)
		header[0] = fam
		msgs, err := c.dump("list addresses of "+l.Name, unix.RTM_GETADDR, header)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			a, index, err := decodeAddr(m.Body)
			if err != nil {
				return nil, wrap("list addresses of "+l.Name, err)
			}
			if index == l.Index {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs, nil
}

func decodeAddr(b []byte) (a Addr, index int, err error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return Addr{}, 0, fmt.Errorf("address message of %d bytes", len(b))
	}
	index, flags := int(binary.NativeEndian.Uint32(b[4:])), uint32(b[2])
	ad := netlink.Decode(b[unix.SizeofIfAddrmsg:], binary.NativeEndian)
	var local, address netip.Addr
	for ad.Next() {
		switch ad.Kind() {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.IFA_FLAGS:
			flags = ad.Uint32()
		}
	}
	if !local.IsValid() { // IPv6 has no IFA_LOCAL unless there is a peer
		local = address
	}
	return Addr{
		Prefix:        netip.PrefixFrom(local, int(b[1])),
		NoDAD:         flags&unix.IFA_F_NODAD != 0,
		Optimistic:    flags&unix.IFA_F_OPTIMISTIC != 0,
		NoPrefixRoute: flags&unix.IFA_F_NOPREFIXROUTE != 0,
		Tentative:     flags&unix.IFA_F_TENTATIVE != 0,
		Duplicate:     flags&unix.IFA_F_DADFAILED != 0,
	}, index, ad.Err()
}
