package main

import (
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
)

// What is here is pure: from configuration and addresses to what table inet plumb has
// of an attachment, for ADD to make, CHECK to compare and DEL to find.

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
func (s slot) refs() (target, policy nft.ElementRef) {
	key := s.key()
	if s.hostIP.IsUnspecified() {
		return nft.ElementRef{Set: nft.HostportSet(s.family), Key: key}, nft.ElementRef{Set: nft.PolicySet(s.family), Key: key}
	}
	return nft.ElementRef{Set: nft.HostportSetIP(s.family), Key: key}, nft.ElementRef{Set: nft.PolicySetIP(s.family), Key: key}
}

// slotOf is the inverse of refs: the slot whose target is there.
func slotOf(f nft.Family, set string, key nft.Key) slot {
	hostIP := unspecified(f)
	if set == nft.HostportSetIP(f) {
		hostIP, key = key[:len(key)-8].Addr(), key[len(key)-8:]
	}
	return slot{f, hostIP, protocol(key[0]), uint16(key[4])<<8 | uint16(key[5])}
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

// claims are all that the attachment has in nf_tables.
func (p *portMap) claims() []nft.Claim {
	all := make([]nft.Claim, 0, 2*len(p.conf.mappings)+1)
	comment := nft.Owner(p.owner())
	for _, ip := range p.ips {
		f, to := familyOf(ip.Addr()), ip.Addr()
		jump := p.policyChain(ip)
		for _, m := range p.conf.forFamily(f) {
			s := m.slot(f)
			target, policy := s.refs()
			c := s.claim(to)
			c.Elements = []nft.SetElement{{Set: target.Set, Element: nft.Element{
				Key: target.Key, Data: nft.Concat(nft.AddrKey(to), nft.PortKey(m.containerPort)), Comment: comment,
			}}}
			if jump != "" {
				c.Elements = append(c.Elements, nft.SetElement{Set: policy.Set, Element: nft.Element{Key: policy.Key, Jump: jump, Comment: comment}})
			}
			all = append(all, c)
		}
	}
	if p.counted {
		all = append(all, nft.Claim{Description: localnetOf(p.device), OwnerMap: localnetUsers, OwnerEntry: nft.Element{Jump: localnetChain(p.device)}})
	}
	return all
}

// claim is the claim to the slot, as the map from owners has it.
func (s slot) claim(to netip.Addr) nft.Claim {
	return nft.Claim{Description: s, OwnerMap: nft.HostportOwners(s.family), OwnerEntry: nft.Element{Data: s.listed(to)}}
}

// hints are the claims that the attachment has if it was made with the mappings of this
// call. Of a family that the call gives the container no address of, there are none.
func (p *portMap) hints() []nft.Claim {
	var all []nft.Claim
	for _, f := range families() {
		if !p.mayHave(f) {
			continue
		}
		for _, m := range p.conf.forFamily(f) {
			all = append(all, m.slot(f).claim(unspecified(f)))
		}
	}
	return all
}

// kinds are the kinds of claims in the table.
func kinds() []nft.ClaimKind {
	all := []nft.ClaimKind{{OwnerMap: localnetUsers}}
	for _, f := range families() {
		all = append(all, nft.ClaimKind{
			OwnerMap:    nft.HostportOwners(f),
			PrimarySets: []string{nft.HostportSet(f), nft.HostportSetIP(f)},
			OtherSets:   []string{nft.PolicySet(f), nft.PolicySetIP(f)},
			ElementRefs: func(name nft.Key) []nft.ElementRef {
				s, ok := parseListed(f, name)
				if !ok {
					return nil
				}
				target, policy := s.refs()
				return []nft.ElementRef{target, policy}
			},
		})
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
	l = l.WithChains(nft.MarkedChain(p.conf.markBit))
	for _, ip := range p.ips {
		l = l.WithChains(p.snatChain(ip))
	}
	return l
}

// table is where the elements are.
func table() nft.Table { return nft.Plumb().Table }
