package doctor

import (
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

	"github.com/plumb-cni/plumb/cmd/plumb/internal/inventory"
	"github.com/plumb-cni/plumb/pkg/dhcp"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// The number and the interval of probes.
const (
	probes    = 3                      // for each address
	probeTime = 500 * time.Millisecond // the wait for answers after each probe
)

// A claim is an address of a container on an L2 segment of the host.
type claim struct {
	attachment *inventory.Attachment
	addr       netip.Addr
	mac        types.MAC // of the container's interface
}

// findDuplicateAddresses asks on the bridges and masters of the host, by ARP and neighbor discovery, whether another host uses
// the address of a container.
func (h host) findDuplicateAddresses(attachments []*inventory.Attachment) (found []Finding) {
	claims := map[string][]claim{}                      // by bridge or master
	containers := map[types.MAC]*inventory.Attachment{} // by hardware address
	for _, a := range attachments {
		macs, err := macsOf(a)
		h.report.failed("hardware address of "+a.ContainerID, err)
		for _, mac := range macs {
			containers[mac] = a
		}
		for _, text := range a.Addresses {
			if addr, parseErr := netip.ParseAddr(text); err == nil && parseErr == nil {
				claims[a.Uplink()] = append(claims[a.Uplink()], claim{a, addr, macs[a.IfName]})
			}
		}
	}
	for _, l := range h.links {
		if len(claims[l.Name]) > 0 {
			found = append(found, h.probe(l, claims[l.Name], containers)...)
		}
	}
	return found
}

// macsOf returns the hardware addresses of the interfaces in the container's namespace, by interface name.
func macsOf(a *inventory.Attachment) (map[string]types.MAC, error) {
	macs := map[string]types.MAC{}
	container, err := ns.Open(a.NetNS, nil)
	if err != nil {
		return macs, err
	}
	defer func() { _ = container.Close() }()
	c, err := nl.Open(container)
	if err != nil {
		return macs, err
	}
	links, err := c.Links()
	for _, l := range links {
		if l.Name != "lo" {
			macs[l.Name] = l.MAC
		}
	}
	return macs, err
}

// probe asks for the addresses on a link, and returns a finding for each other host that uses one of them.
func (h host) probe(link nl.Link, claims []claim, containers map[types.MAC]*inventory.Attachment) (found []Finding) {
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
		h.report.failed("ARP on "+link.Name, arp(link, v4, answers))
	}
	if len(v6) > 0 {
		h.report.failed("neighbor discovery on "+link.Name, h.solicit(link, v6, answers))
	}
	for _, c := range claims {
		for a := range answers {
			if a.addr == c.addr && a.mac != c.mac {
				found = append(found, conflict(link, c, a, containers[a.mac])...)
			}
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.What, b.What) })
	return found
}

// conflict returns the finding for another host that uses the address of a container. other is the attachment of the answering
// interface if that belongs to a container of this host. By default (arp_ignore = 0), the kernel answers on each interface for
// all addresses. Therefore, an answer from another interface of the same container is not a conflict.
func conflict(link nl.Link, c claim, a answer, other *inventory.Attachment) []Finding {
	what := fmt.Sprintf("%s, an address of %s (%s), is also used by ", c.addr, c.attachment.ContainerID, c.mac)
	switch {
	case other == nil:
		return []Finding{{Where: onHost, What: what + fmt.Sprintf("the host with hardware address %s on %s", a.mac, link.Name),
			Fix: fmt.Sprintf("%sremove the address from that host, or add it to exclude of network %s; "+
				"if the host is behind a port of a bridge, bridge fdb show prints the port", edit, c.attachment.Network)}}
	case other.NetNS == c.attachment.NetNS:
		return nil
	}
	show := types.Command("nsenter", "--net="+other.NetNS, "ip", "address", "show")
	return []Finding{{Where: onHost,
		What: what + fmt.Sprintf("container %s with hardware address %s on %s", other.ContainerID, a.mac, link.Name),
		Fix:  edit + "remove the address from that container: " + show + " prints the interface"}}
}

// An answer says that the host with a hardware address has an IP address.
type answer struct {
	addr netip.Addr
	mac  types.MAC
}

// A prober asks on a link which hosts have some addresses.
type prober struct {
	socket interface{ SetReadDeadline(time.Time) error }
	ask    func(netip.Addr) error
	read   func(buf []byte) (int, error)
	parse  func(packet []byte) (addr netip.Addr, mac types.MAC, ok bool) // ok is false if the packet is not an answer
}

// probe sends all probes and adds the answers.
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

// arp asks by ARP probes (RFC 5227) which hosts on a link have the addresses, and adds the answers.
func arp(link nl.Link, addrs []netip.Addr, answers map[answer]bool) (err error) {
	s, err := packet.Listen(&net.Interface{Index: link.Index, Name: link.Name, HardwareAddr: net.HardwareAddr(link.MAC)}, packet.Datagram, unix.ETH_P_ARP, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	everyone := &packet.Addr{HardwareAddr: net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	return prober{
		socket: s,
		ask: func(a netip.Addr) error {
			_, err := s.WriteTo(dhcp.ARPProbe(link.MAC, a), everyone)
			return err
		},
		read: func(buf []byte) (int, error) {
			n, _, err := s.ReadFrom(buf)
			return n, err
		},
		parse: func(p []byte) (netip.Addr, types.MAC, bool) {
			addr, mac := dhcp.ARPSender(p)
			return addr, mac, mac != "" && !addr.IsUnspecified()
		},
	}.probe(addrs, answers)
}
