package doctor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// The probes of one interface.
const (
	probes    = 3                      // how often each address is asked for
	probeTime = 500 * time.Millisecond // between two probes, and after the last
)

// A claim is an address of a container on a wire of the node.
type claim struct {
	attachment *node.Attachment
	addr       netip.Addr
	mac        types.MAC // of the container's interface
}

// findWire asks by ARP and by neighbor discovery, on the bridges and masters of the node, whether another host has the
// address of a container.
func findWire(e *examination) (found []Finding) {
	wires := map[string][]claim{}
	containers := map[types.MAC]*node.Attachment{} // by the hardware addresses of their interfaces
	for _, a := range e.liveAttachments() {
		macs, err := macsOf(a)
		e.unread("hardware address of "+a.ContainerID, err)
		for _, mac := range macs {
			containers[mac] = a
		}
		for _, text := range a.Addresses {
			if addr, parseErr := netip.ParseAddr(text); err == nil && parseErr == nil {
				wires[e.wireOf(a)] = append(wires[e.wireOf(a)], claim{a, addr, macs[a.IfName]})
			}
		}
	}
	for _, l := range e.links {
		if claims := wires[l.Name]; len(claims) > 0 {
			found = append(found, e.probe(l, claims, containers)...)
		}
	}
	return found
}

// wireOf returns the interface of the node that is on the wire of an attachment: the bridge or the master.
func (e *examination) wireOf(a *node.Attachment) string {
	f := e.fileOfNetwork(a.Network)
	if f == nil {
		return ""
	}
	for _, p := range f.plugins {
		switch {
		case p.typ == "bridge":
			return bridgeName(p)
		case (p.typ == "macvlan" || p.typ == "ipvlan") && !p.Get("linkInContainer").Bool():
			return p.Get("master").Text()
		}
	}
	return ""
}

// macsOf returns the hardware addresses of all interfaces in the container's namespace, by their names.
func macsOf(a *node.Attachment) (map[string]types.MAC, error) {
	macs := map[string]types.MAC{}
	return macs, inContainer(a, func(c *nl.Conn) error {
		links, err := c.Links()
		for _, l := range links {
			if l.Name != "lo" {
				macs[l.Name] = l.MAC
			}
		}
		return err
	})
}

// probe asks for the addresses on a link, and returns a finding for each other host that has one of them.
func (e *examination) probe(on nl.Link, claims []claim, containers map[types.MAC]*node.Attachment) (found []Finding) {
	var v4, v6 []netip.Addr
	for _, c := range claims {
		if c.addr.Is4() {
			v4 = append(v4, c.addr)
		} else {
			v6 = append(v6, c.addr)
		}
	}
	answers := map[answer]bool{}
	if len(v4) > 0 {
		e.unread("ARP on "+on.Name, arp(on, v4, answers))
	}
	if len(v6) > 0 {
		e.unread("neighbor discovery on "+on.Name, e.solicit(on, v6, answers))
	}
	for _, c := range claims {
		for a := range answers {
			if a.addr == c.addr && a.mac != c.mac {
				found = append(found, e.conflict(on, c, a, containers[a.mac])...)
			}
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.What, b.What) })
	return found
}

// conflict returns the finding for another host that has the address of a container. other is that host if it is a container
// of this node. The kernel answers on each interface for the addresses of all (arp_ignore), so an answer of another interface
// of the same container is none.
func (e *examination) conflict(on nl.Link, c claim, a answer, other *node.Attachment) []Finding {
	what := fmt.Sprintf("%s, an address of %s (%s), is also used by ", c.addr, c.attachment.ContainerID, c.mac)
	switch {
	case other == nil:
		return []Finding{{Where: whereNode, What: what + fmt.Sprintf("the host with hardware address %s on %s", a.mac, on.Name),
			Mend: fmt.Sprintf("%sremove the address from that host, or put it into exclude of network %s; if it is behind a port of this node, bridge fdb show shows the port", edit, c.attachment.Network)}}
	case other.NetNS == c.attachment.NetNS || e.doubles[double{c.addr, other}]:
		return nil
	}
	return []Finding{{Where: whereNode, What: what + fmt.Sprintf("container %s with hardware address %s on %s", other.ContainerID, a.mac, on.Name),
		Mend: edit + "remove the address from that container: nsenter --net=" + node.Quote(other.NetNS) + " ip address show shows its interface"}}
}

// An answer says which host has an address.
type answer struct {
	addr netip.Addr
	mac  types.MAC
}

// A prober asks on a link who has an address.
type prober struct {
	socket interface{ SetReadDeadline(time.Time) error }
	ask    func(netip.Addr) error
	read   func(buf []byte) (int, error)
	parse  func(packet []byte) (addr netip.Addr, mac types.MAC, ok bool) // ok is false for a packet that is no answer
}

// probe asks for each address some times, and adds the answers.
func (p prober) probe(addrs []netip.Addr, answers map[answer]bool) error {
	for range probes {
		for _, a := range addrs {
			if err := p.ask(a); err != nil {
				return fmt.Errorf("ask for %s: %w", a, err)
			}
		}
		if err := p.collect(answers); err != nil {
			return err
		}
	}
	return nil
}

// collect adds the answers that arrive within probeTime.
func (p prober) collect(answers map[answer]bool) error {
	if err := p.socket.SetReadDeadline(time.Now().Add(probeTime)); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	for {
		n, err := p.read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		if addr, mac, ok := p.parse(buf[:n]); ok {
			answers[answer{addr, mac}] = true
		}
	}
}

// arp asks on a link, by ARP probes, who has the addresses, and adds the answers.
func arp(on nl.Link, addrs []netip.Addr, answers map[answer]bool) (err error) {
	s, err := packet.Listen(&net.Interface{Index: on.Index, Name: on.Name, HardwareAddr: net.HardwareAddr(on.MAC)}, packet.Datagram, unix.ETH_P_ARP, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	everyone := &packet.Addr{HardwareAddr: net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	return prober{
		socket: s,
		ask: func(a netip.Addr) error {
			_, err := s.WriteTo(arpProbe(on.MAC, a), everyone)
			return err
		},
		read: func(buf []byte) (int, error) {
			n, _, err := s.ReadFrom(buf)
			return n, err
		},
		parse: arpSender,
	}.probe(addrs, answers)
}

// arpHeader begins an ARP packet for IPv4 on Ethernet, before the operation (RFC 826).
var arpHeader = []byte{0, 1, 8, 0, 6, 4}

// arpLen is the length of an ARP packet for IPv4 on Ethernet.
const arpLen = 28

// arpProbe returns an ARP request without the address of the sender (RFC 5227, section 2.1.1).
func arpProbe(from types.MAC, addr netip.Addr) []byte {
	p := binary.BigEndian.AppendUint16(bytes.Clone(arpHeader), 1)
	p = append(p, from...)
	p = append(p, make([]byte, 4+6)...) // address of the sender, hardware address of the target
	return append(p, addr.AsSlice()...)
}

// arpSender returns the address and the hardware address of the sender of an ARP packet. A probe has no address.
func arpSender(p []byte) (addr netip.Addr, mac types.MAC, ok bool) {
	if len(p) < arpLen || !bytes.HasPrefix(p, arpHeader) {
		return addr, "", false
	}
	addr = netip.AddrFrom4([4]byte(p[14:18]))
	return addr, types.MAC(p[8:14]), !addr.IsUnspecified()
}
