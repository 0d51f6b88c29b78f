package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/net/ipv6"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// These constants describe neighbor discovery messages (RFC 4861, section 4).
const (
	hopLimit       = 255 // receivers drop messages with another hop limit
	headerLen      = 24  // the length of a solicitation or an advertisement without options
	optionSource   = 1   // the type of the option source link-layer address
	optionTarget   = 2   // the type of the option target link-layer address
	optionUnit     = 8   // the unit of the lengths of options, in bytes
	linkAddressLen = 8   // the length of an option with an Ethernet address
)

// solicit sends neighbor solicitations to find the hosts on a link that use the addresses, and adds the
// answers.
func (h host) solicit(link nl.Link, addrs []netip.Addr, answers answers) (err error) {
	from, err := h.linkLocal(link)
	if err != nil {
		return err
	}
	s, err := net.ListenPacket("ip6:ipv6-icmp", from.WithZone(link.Name).String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c := ipv6.NewPacketConn(s)
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeNeighborAdvertisement)
	if err := errors.Join(c.SetMulticastHopLimit(hopLimit), c.SetMulticastInterface(&net.Interface{Index: link.Index}), c.SetICMPFilter(&filter)); err != nil {
		return err
	}
	return prober{
		socket: c,
		ask: func(a netip.Addr) error {
			_, err := c.WriteTo(solicitation(link.MAC, a), nil, &net.IPAddr{IP: solicitedNode(a).AsSlice(), Zone: link.Name})
			return err
		},
		read: func(buf []byte) (int, error) {
			n, _, _, err := c.ReadFrom(buf)
			return n, err
		},
		parse: parseAdvertisement,
	}.probe(addrs, answers)
}

func (h host) linkLocal(link nl.Link) (netip.Addr, error) {
	addrs, err := h.conn.Addrs(link)
	i := slices.IndexFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast() })
	if err != nil || i < 0 {
		return netip.Addr{}, errors.Join(err, fmt.Errorf("%s has no link-local address to send neighbor solicitations from", link.Name))
	}
	return addrs[i].Prefix.Addr(), nil
}

// solicitedNode returns the solicited-node multicast address of an address (RFC 4291, section 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	group := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff}
	bytes := a.As16()
	copy(group[13:], bytes[13:])
	return netip.AddrFrom16(group)
}

// solicitation returns a neighbor solicitation. The kernel sets the checksum.
func solicitation(from types.MAC, target netip.Addr) []byte {
	// The first 8 bytes are the type, the code 0, the checksum and a reserved field.
	p := binary.BigEndian.AppendUint64(nil, uint64(ipv6.ICMPTypeNeighborSolicitation)<<56)
	p = append(p, target.AsSlice()...)
	return append(append(p, optionSource, linkAddressLen/optionUnit), from...)
}

// parseAdvertisement returns the address and the hardware address in a neighbor advertisement.
func parseAdvertisement(p []byte) (addr netip.Addr, mac types.MAC, ok bool) {
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
