package main

import (
	"net/netip"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
)

// The kernel applies the rules only to the first packet of a connection, and translates all later packets
// in the same way. Therefore a peer that keeps sending UDP or SCTP packets from one port would not
// notice a change of the rules. ADD and DEL delete the connections of exactly the mappings that they
// change from the kernel's connection tracking.

// keepsFlows reports whether peers keep using a connection of the protocol after the rules have
// changed. TCP peers open a new connection.
func (p protocol) keepsFlows() bool { return p == udp || p == sctp }

// deleteStaleFlows deletes the connections to the endpoints, at all addresses of the host that they
// include. ADD calls it, because the peers of these connections are another container, or the host itself.
func (p *portMap) deleteStaleFlows() error {
	var flows []nl.Flow
	hostAddrs := map[nft.Family][]netip.Addr{} // each family is read once
	for _, t := range p.translations() {
		if !t.proto.keepsFlows() {
			continue
		}
		addrs, known := hostAddrs[t.family]
		switch {
		case !t.hostIP.IsUnspecified():
			addrs = []netip.Addr{t.hostIP}
		case !known:
			conn, err := p.hostConn()
			if err == nil {
				addrs, err = conn.LocalAddrs(t.hostIP)
			}
			if err != nil {
				return err
			}
			hostAddrs[t.family] = addrs
		}
		for _, a := range addrs {
			flow := nl.Flow{Proto: uint8(t.proto), OrigDst: a, OrigPort: t.port}
			if p.r.IsRepair() { // only connections that began while the rules were missing, and were not translated
				flow.ReplySrc, flow.ReplyPort = a, t.port
			}
			flows = append(flows, flow)
		}
	}
	return attach.DeleteFlows(p.r.HostNS, flows...)
}

// deleteFlows deletes the connections to the container through the deleted translations, and through
// the mappings of this call, which may have been in iptables rules. DEL calls it.
func (p *portMap) deleteFlows(deleted []translation) error {
	deleted = append(deleted, p.translations()...)
	var flows []nl.Flow
	seen := make(map[translation]bool, len(deleted))
	for _, t := range deleted {
		if !t.proto.keepsFlows() || seen[t] {
			continue
		}
		seen[t] = true
		flow := nl.Flow{Proto: uint8(t.proto), OrigPort: t.port, ReplySrc: t.target.Addr(), ReplyPort: t.target.Port()}
		if !t.hostIP.IsUnspecified() {
			flow.OrigDst = t.hostIP
		}
		flows = append(flows, flow)
	}
	return attach.DeleteFlows(p.r.HostNS, flows...)
}
