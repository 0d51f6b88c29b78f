package nstest

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An Advertisement is a router advertisement (RFC 4861, section 4.2) with a prefix from which hosts form addresses.
type Advertisement struct {
	Prefix   string // "2001:db8:50::/64"
	Lifetime uint16 // how many seconds the sender is a default router; zero means that it is none
}

// AdvertisedPrefix is a prefix for advertisements.
const AdvertisedPrefix = "2001:db8:50::/64"

// Send sends the advertisement once from an interface of the namespace, which must have a link-local address.
func (a Advertisement) Send(tb TB, n *NS, ifName string) {
	tb.Helper()
	Must(tb, n.Do(func() error {
		c, err := net.ListenPacket("ip6:ipv6-icmp", "::")
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if err := setMulticastHops(c.(*net.IPConn), 255); err != nil { // hosts ignore advertisements from other hop limits
			return err
		}
		_, err = c.WriteTo(a.encode(), &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: ifName})
		return err
	}))
}

func setMulticastHops(c *net.IPConn, hops int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, hops)
	})
	if controlErr != nil {
		return controlErr
	}
	return err
}

// encode returns the message without its checksum, which the kernel adds.
func (a Advertisement) encode() []byte {
	const infinite = 1<<32 - 1
	prefix := netip.MustParsePrefix(a.Prefix)
	m := []byte{134, 0, 0, 0, 64, 0}
	m = binary.BigEndian.AppendUint16(m, a.Lifetime)
	m = append(m, make([]byte, 8)...)
	m = append(m, 3, 4, byte(prefix.Bits()), 0xc0) // prefix information, on-link and autonomous
	m = binary.BigEndian.AppendUint32(m, infinite)
	m = binary.BigEndian.AppendUint32(m, infinite)
	m = append(m, make([]byte, 4)...)
	return append(m, prefix.Addr().AsSlice()...)
}

// RequireAutoconfiguration checks that an interface with this configuration gets an address and a default route from a
// router advertisement, in addition to the addresses of the IPAM plugin, and that CHECK, REPAIR and DEL succeed with
// them. The interface of the outside host with the name router sends the advertisement. config must contain only IPv4
// addresses.
func (b *Bed) RequireAutoconfiguration(config, router string) {
	b.tb.Helper()
	container := b.NewContainer()
	c := b.Attach(b.Call("one", container, config))
	deadline := time.Now().Add(waitLimit)
	for {
		Advertisement{Prefix: AdvertisedPrefix, Lifetime: 1800}.Send(b.tb, b.Outside, router) // again, because a link may not be ready yet
		state := container.IP("-6 address show dev eth0 scope global -tentative") + container.IP("-6 route show default dev eth0")
		if strings.Contains(state, "2001:db8:50:") && strings.Contains(state, "default via fe80:") {
			break
		}
		if time.Now().After(deadline) {
			b.tb.Fatalf("want an address in %s and a default route, got %q", AdvertisedPrefix, state)
		}
	}
	b.OK("CHECK", c)
	b.OK("REPAIR", c)
	b.OK("CHECK", c)
	b.OK("DEL", c)
}
