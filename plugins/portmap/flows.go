package main

import (
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/nl"
)

// The kernel translates by the rules only the first packet of a connection. A peer
// that sends UDP (or SCTP) on and on from one port would stay with what was right
// when it began. So the connections of exactly the mapping are forgotten.

// tracked reports whether connections of the protocol outlive a change of the rules
// unnoticed: TCP peers begin anew.
func (p protocol) tracked() bool { return p == udp || p == sctp }

// forgetStale is for ADD: connections to the host port, at whichever address of the
// node, that go to a former holder or to nobody.
func (p *portMap) forgetStale() error {
	var flows []nl.Flow
	for _, s := range p.slots() {
		if !s.proto.tracked() {
			continue
		}
		addrs, err := p.local(s)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			flows = append(flows, nl.Flow{Proto: uint8(s.proto), OrigDst: a, OrigPort: s.port})
		}
	}
	return attach.DeleteFlows(p.r.Node, flows...)
}

// local lists the addresses of the node that the slot is for. The node is asked once a
// family, however many slots there are.
func (p *portMap) local(s slot) ([]netip.Addr, error) {
	if !s.hostIP.IsUnspecified() {
		return []netip.Addr{s.hostIP}, nil
	}
	if own, asked := p.own[s.family]; asked {
		return own, nil
	}
	node, err := p.node()
	if err != nil {
		return nil, err
	}
	if p.own == nil {
		p.own = map[nft.Family][]netip.Addr{}
	}
	p.own[s.family], err = node.LocalAddrs(s.hostIP)
	return p.own[s.family], err
}

// forgetTranslated is for DEL: connections to this container through the mappings that
// it had, and through those that the call names, which may have been in rules.
func (p *portMap) forgetTranslated(gone []flowEnd) error {
	for _, ip := range p.ips {
		f := familyOf(ip.Addr())
		for _, m := range p.conf.forFamily(f) {
			gone = append(gone, flowEnd{m.slot(f), ip.Addr(), m.containerPort})
		}
	}
	var flows []nl.Flow
	told := make(map[flowEnd]bool, len(gone))
	for _, e := range gone {
		if !e.proto.tracked() || told[e] {
			continue
		}
		told[e] = true
		flow := nl.Flow{Proto: uint8(e.proto), OrigPort: e.slot.port, ReplySrc: e.to, ReplyPort: e.port}
		if !e.hostIP.IsUnspecified() {
			flow.OrigDst = e.hostIP
		}
		flows = append(flows, flow)
	}
	return attach.DeleteFlows(p.r.Node, flows...)
}
