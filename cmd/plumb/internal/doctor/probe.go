package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/inventory"
	"github.com/plumb-cni/plumb/v2/pkg/dhcp"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// These constants define how many probes are sent, and how often.
const (
	probes    = 3                      // the number of probes for each address
	probeTime = 500 * time.Millisecond // how long to wait for answers after each probe
)

// A claim is an address of a container on an L2 segment of the host.
type claim struct {
	attachment *inventory.Attachment
	addr       netip.Addr
	mac        types.MAC // the hardware address of the container's interface
}

// findDuplicateAddresses finds other hosts that use the address of a container. It sends ARP and neighbor discovery
// probes on the bridges and masters of the host.
func (h host) findDuplicateAddresses(attachments []*inventory.Attachment, add addFunc) {
	claims := map[string][]claim{}                      // the claims by bridge or master
	containers := map[types.MAC]*inventory.Attachment{} // the attachments by hardware address
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
			answers := h.probe(l, claims[l.Name])
			for _, c := range claims[l.Name] {
				for _, mac := range answers[c.addr] {
					if mac != c.mac {
						c.addConflict(fmt.Sprintf("hardware address %s on %s", mac, l.Name), containers[mac], add)
					}
				}
			}
		}
	}
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

// probe finds the hosts on a link that use the addresses of the claims.
func (h host) probe(link nl.Link, claims []claim) answers {
	var v4, v6 []netip.Addr
	for _, c := range claims {
		if c.addr.Is4() {
			v4 = append(v4, c.addr)
		} else {
			v6 = append(v6, c.addr)
		}
	}
	all := answers{}
	if len(v4) > 0 {
		h.report.failed("ARP on "+link.Name, arp(link, v4, all))
	}
	if len(v6) > 0 {
		h.report.failed("neighbor discovery on "+link.Name, h.solicit(link, v6, all))
	}
	return all
}

// addConflict adds the finding for another host that uses the address of a container. If the answering interface
// belongs to a container of this host, other is its attachment. By default (arp_ignore = 0), the kernel answers on each
// interface for all addresses. Therefore, an answer from another interface of the same container is not a conflict.
func (c claim) addConflict(answering string, other *inventory.Attachment, add addFunc) {
	user, fix := "the host", fmt.Sprintf("remove the address from that host, or add it to exclude of network %s; "+
		"if the host is behind a port of a bridge, bridge fdb show prints the port", c.attachment.Network)
	if other != nil {
		user = "container " + other.ContainerID
		fix = "remove the address from that container: " +
			types.Command("nsenter", "--net="+other.NetNS, "ip", "address", "show") + " prints the interface"
	}
	if other == nil || other.NetNS != c.attachment.NetNS {
		add(onHost, edit+fix, "%s, an address of %s (%s), is also used by %s with %s", c.addr, c.attachment.ContainerID, c.mac, user, answering)
	}
}

// answers contains the hardware addresses of the hosts that use each IP address.
type answers map[netip.Addr][]types.MAC

// A prober finds the hosts on a link that use some addresses.
type prober struct {
	socket interface{ SetReadDeadline(time.Time) error }
	ask    func(netip.Addr) error
	read   func(buf []byte) (int, error)
	parse  func(packet []byte) (addr netip.Addr, mac types.MAC, ok bool) // ok is false if the packet is not an answer
}

// probe sends all probes and adds the answers.
func (p prober) probe(addrs []netip.Addr, answers answers) error {
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
func (p prober) collect(answers answers) error {
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
		if addr, mac, ok := p.parse(buf[:n]); ok && !slices.Contains(answers[addr], mac) {
			answers[addr] = append(answers[addr], mac)
		}
	}
}

// arp sends ARP probes (RFC 5227) to find the hosts on a link that use the addresses, and adds the answers.
func arp(link nl.Link, addrs []netip.Addr, answers answers) (err error) {
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
