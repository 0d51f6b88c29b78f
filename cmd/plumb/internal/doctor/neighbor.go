package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/net/ipv6"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// The parts of messages of neighbor discovery (RFC 4861, section 4).
const (
	hopLimit       = 255 // of every message
	headerLen      = 24  // of a solicitation or an advertisement, with the target
	optionSource   = 1   // source link-layer address
	optionTarget   = 2   // target link-layer address
	optionUnit     = 8   // the lengths of options are in units of 8 bytes
	linkAddressLen = 8   // of an option with the address of an Ethernet interface
)

// solicit asks on a link, by neighbor solicitations, who has the addresses, and adds the answers.
func (h host) solicit(on nl.Link, addrs []netip.Addr, answers map[answer]bool) (err error) {
	from, err := h.linkLocal(on)
	if err != nil {
		return err
	}
	s, err := net.ListenPacket("ip6:ipv6-icmp", from.WithZone(on.Name).String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c := ipv6.NewPacketConn(s)
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeNeighborAdvertisement)
	if err := errors.Join(c.SetMulticastHopLimit(hopLimit), c.SetMulticastInterface(&net.Interface{Index: on.Index}), c.SetICMPFilter(&filter)); err != nil {
		return err
	}
	return prober{
		socket: c,
		ask: func(a netip.Addr) error {
			_, err := c.WriteTo(solicitation(on.MAC, a), nil, &net.IPAddr{IP: solicitedNode(a).AsSlice(), Zone: on.Name})
			return err
		},
		read: func(buf []byte) (int, error) {
			n, _, _, err := c.ReadFrom(buf)
			return n, err
		},
		parse: advertised,
	}.probe(addrs, answers)
}

// linkLocal returns the link-local address of a link.
func (h host) linkLocal(on nl.Link) (netip.Addr, error) {
	addrs, err := h.conn.Addrs(on)
	i := slices.IndexFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast() })
	if err != nil || i < 0 {
		return netip.Addr{}, errors.Join(err, fmt.Errorf("%s has no link-local address, from which it could ask for IPv6 addresses", on.Name))
	}
	return addrs[i].Prefix.Addr(), nil
}

// solicitedNode returns the solicited-node multicast address of an address (RFC 4291, section 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	group := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff}
	of := a.As16()
	copy(group[13:], of[13:])
	return netip.AddrFrom16(group)
}

// solicitation returns a neighbor solicitation. The kernel sets the checksum.
func solicitation(from types.MAC, target netip.Addr) []byte {
	p := binary.BigEndian.AppendUint64(nil, uint64(ipv6.ICMPTypeNeighborSolicitation)<<56)
	p = append(p, target.AsSlice()...)
	return append(append(p, optionSource, linkAddressLen/optionUnit), from...)
}

// advertised returns the address and the hardware address in a neighbor advertisement.
func advertised(p []byte) (addr netip.Addr, mac types.MAC, ok bool) {
	if len(p) < headerLen || ipv6.ICMPType(p[0]) != ipv6.ICMPTypeNeighborAdvertisement {
		return addr, "", false
	}
	addr = netip.AddrFrom16([16]byte(p[8:headerLen]))
	for options := p[headerLen:]; len(options) >= linkAddressLen; {
		if options[0] == optionTarget && options[1] == linkAddressLen/optionUnit {
			return addr, types.MAC(options[2:linkAddressLen]), true
		}
		size := int(options[1]) * optionUnit
		if size == 0 || size > len(options) {
			break
		}
		options = options[size:]
	}
	return addr, "", false
}
