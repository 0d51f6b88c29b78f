package main

import (
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// What is here is pure: from configuration and addresses to what table inet plumb has
// of an attachment, for ADD to make, CHECK to compare and DEL to find.

// An entry is an element and the map it is in.
type entry struct {
	set string
	nft.Element
}

func (e entry) ref() nft.Ref { return nft.Ref{Set: e.set, Key: e.Key} }

// A slot is the place of a mapping in the maps: what the elements of two owners can
// collide in.
type slot struct {
	family nft.Family
	hostIP netip.Addr // unspecified: any
	proto  protocol
	port   uint16
}

func (m mapping) slot(f nft.Family) slot {
	s := slot{f, m.hostIP, m.proto, m.hostPort}
	if m.everywhere() {
		s.hostIP = unspecified(f)
	}
	return s
}

func unspecified(f nft.Family) netip.Addr {
	if f == nft.IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func (s slot) key() nft.Key {
	port := nft.Concat(nft.ProtoKey(uint8(s.proto)), nft.PortKey(s.port))
	if s.hostIP.IsUnspecified() {
		return port
	}
	return nft.Concat(nft.AddrKey(s.hostIP), port)
}

// refs are where the element is that says whom the packets go to, and where the one is,
// if any, that says what is done before.
func (s slot) refs() (target, policy nft.Ref) {
	key := s.key()
	if s.hostIP.IsUnspecified() {
		return nft.Ref{Set: nft.HostportSet(s.family), Key: key}, nft.Ref{Set: nft.PolicySet(s.family), Key: key}
	}
	return nft.Ref{Set: nft.HostportSetIP(s.family), Key: key}, nft.Ref{Set: nft.PolicySetIP(s.family), Key: key}
}

// listed is the slot in the form of the map from owners, with the container's address.
func (s slot) listed(to netip.Addr) nft.Key {
	return nft.Concat(nft.AddrKey(s.hostIP), nft.ProtoKey(uint8(s.proto)), nft.PortKey(s.port), nft.AddrKey(to))
}

// parseListed reads what listed made.
func parseListed(f nft.Family, k nft.Key) (s slot, ok bool) {
	size := 4
	if f == nft.IPv6 {
		size = 16
	}
	if len(k) != 2*size+8 {
		return slot{}, false
	}
	return slot{f, k[:size].Addr(), protocol(k[size]), uint16(k[size+4])<<8 | uint16(k[size+5])}, true
}

// entries are all elements of the attachment.
func (p *portMap) entries() []entry {
	all := make([]entry, 0, 3*len(p.conf.mappings))
	comment, ownerKey := nft.Owner(p.owner()), nft.OwnerKeys(p.owner())
	put := func(ref nft.Ref, e nft.Element) {
		e.Key, e.Comment = ref.Key, comment
		all = append(all, entry{ref.Set, e})
	}
	for _, ip := range p.ips {
		f, to := familyOf(ip.Addr()), ip.Addr()
		jump := p.policyChain(ip)
		for n, m := range p.conf.forFamily(f) {
			s := m.slot(f)
			target, policy := s.refs()
			put(target, nft.Element{Data: nft.Concat(nft.AddrKey(to), nft.PortKey(m.containerPort))})
			if jump != "" {
				put(policy, nft.Element{Jump: jump})
			}
			put(nft.Ref{Set: nft.HostportOwners(f), Key: ownerKey(n)}, nft.Element{Data: s.listed(to)})
		}
	}
	return all
}

// sources are those whose packets to the mappings are masqueraded: who is in the
// container's own subnet, for there the answer goes straight to it and not by way of
// the node, the container itself among them; or everybody.
func (p *portMap) sources(ip netip.Prefix) netip.Prefix {
	if p.conf.masqAll {
		return netip.PrefixFrom(unspecified(familyOf(ip.Addr())), 0)
	}
	return ip.Masked()
}

// policyChain is the chain that packets for the address go through before they are
// translated; empty: none.
func (p *portMap) policyChain(ip netip.Prefix) string {
	if cond, ok := p.conditions(ip); ok {
		return cond.Chain()
	}
	if p.conf.snat {
		return p.snatChain(ip).Name
	}
	return ""
}

func (p *portMap) snatChain(ip netip.Prefix) nft.Chain {
	return nft.SNATChain(p.owner().Network, p.sources(ip), p.conf.markBit)
}

// conditions are those of the address's family.
func (p *portMap) conditions(ip netip.Prefix) (cond nft.Conditions, ok bool) {
	tokens := p.conf.tokens[familyOf(ip.Addr())]
	if len(tokens) == 0 {
		return nft.Conditions{}, false
	}
	cond = nft.Conditions{Network: p.owner().Network, Text: strings.Join(tokens, " ")}
	if p.conf.snat {
		cond.Then = p.snatChain(ip).Name
	}
	return cond, true
}

// layout is the table with the chains of this network.
func (p *portMap) layout() nft.Layout {
	l := nft.PortMaps()
	if !p.conf.snat {
		return l
	}
	l = l.With(nft.MarkedChain(p.conf.markBit))
	for _, ip := range p.ips {
		l = l.With(p.snatChain(ip))
	}
	return l
}

// table is where the elements are.
func table() nft.Table { return nft.Plumb().Table }

// mapSets are the maps in which an attachment has elements.
func mapSets() []string {
	var all []string
	for _, f := range families() {
		all = append(all, nft.HostportSet(f), nft.HostportSetIP(f), nft.PolicySet(f), nft.PolicySetIP(f), nft.HostportOwners(f))
	}
	return all
}

// attachmentName is the attachment that an element's comment names, for people.
func attachmentName(comment string) string {
	if _, ok := types.ParseAttachment(comment); ok {
		return comment
	}
	return "an unknown owner (" + comment + ")"
}
