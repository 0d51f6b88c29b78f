package main

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/claims"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
)

// The functions in this file are without side effects. They compute the elements of an attachment in
// table inet plumb from the configuration and the addresses. ADD adds these elements, CHECK compares
// them, and DEL deletes them.

// An endpoint consists of the host's address, protocol and port to which a mapping applies. Only one
// attachment at a time owns an endpoint.
type endpoint struct {
	family nft.Family
	hostIP netip.Addr // unspecified for all addresses
	proto  protocol
	port   uint16
}

func (m mapping) endpoint(f nft.Family) endpoint {
	e := endpoint{f, m.hostIP, m.proto, m.hostPort}
	if m.isAnyAddress() {
		e.hostIP = unspecified(f)
	}
	return e
}

func unspecified(f nft.Family) netip.Addr {
	if f == nft.IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// endpointAt returns the endpoint whose target is under this key in this map. It is the inverse of claim.
func endpointAt(f nft.Family, set string, key nft.Key) endpoint {
	const protoPortSize = 8 // the bytes of the concatenation of a protocol and a port
	hostIP := unspecified(f)
	if set == tables.HostPortIP(f) {
		hostIP, key = key[:len(key)-protoPortSize].Addr(), key[len(key)-protoPortSize:]
	}
	return endpoint{f, hostIP, protocol(key[0]), uint16(key[4])<<8 | uint16(key[5])}
}

func (p *portMap) claims() []claims.Claim {
	var all []claims.Claim
	for _, ip := range p.ips {
		f := nft.FamilyOf(ip.Addr())
		chain := p.markChain(ip)
		for _, m := range p.conf.mappingsOf(f) {
			c := m.endpoint(f).claim()
			c.Elements[0].Data = nft.Concat(nft.AddrKey(ip.Addr()), nft.PortKey(m.containerPort))
			if c.Elements[1].Jump = chain; chain == "" {
				c.Elements = c.Elements[:1]
			}
			all = append(all, c)
		}
	}
	return all
}

// formerClaims returns the claims of an earlier ADD with the same mappings, in the families of the
// container's addresses or, if these are not known, in both families. Their elements contain only keys.
func (p *portMap) formerClaims() (all []claims.Claim) {
	for _, f := range nft.Families() {
		hasFamily := func(ip netip.Prefix) bool { return nft.FamilyOf(ip.Addr()) == f }
		if len(p.ips) > 0 && !slices.ContainsFunc(p.ips, hasFamily) {
			continue
		}
		for _, m := range p.conf.mappingsOf(f) {
			all = append(all, m.endpoint(f).claim())
		}
	}
	return all
}

// claim returns the claim to the endpoint. Its elements contain only keys. The value of the first element
// is the address and port of the container to which packets are sent. The second element is optional, and
// jumps to a chain that packets pass through first.
func (e endpoint) claim() claims.Claim {
	key := nft.Concat(nft.ProtoKey(uint8(e.proto)), nft.PortKey(e.port))
	target, chain := tables.HostPort(e.family), tables.HostPortChain(e.family)
	if !e.hostIP.IsUnspecified() {
		key = nft.Concat(nft.AddrKey(e.hostIP), key)
		target, chain = tables.HostPortIP(e.family), tables.HostPortIPChain(e.family)
	}
	return claims.Claim{
		Description:  e.String(),
		Entry:        e.entry(),
		PerContainer: true,
		Elements:     []nft.SetElement{{Set: target, Element: nft.Element{Key: key}}, {Set: chain, Element: nft.Element{Key: key}}},
	}
}

// entry returns the value of the endpoint in the index.
func (e endpoint) entry() nft.Key {
	hostIP := e.hostIP.As16() // AddrKey would return 4 bytes for an IPv4 address
	return nft.Concat(nft.Key(hostIP[:]), nft.ProtoKey(uint8(e.proto)), nft.PortKey(e.port))
}

// endpointOf is the inverse of endpoint.entry.
func endpointOf(entry nft.Key) endpoint {
	const addrSize = 16
	hostIP := entry[:addrSize].Addr().Unmap()
	f := nft.FamilyOf(hostIP)
	return endpointAt(f, tables.HostPortIP(f), nft.Concat(nft.AddrKey(hostIP), entry[addrSize:]))
}

// groups returns the maps with the claims of port maps.
func groups() (all []claims.Group) {
	for _, f := range nft.Families() {
		all = append(all, claims.Group{tables.HostPort(f), tables.HostPortChain(f)}, claims.Group{tables.HostPortIP(f), tables.HostPortIPChain(f)})
	}
	return all
}

// masqueradedSources returns the prefix of the source addresses whose packets to the mappings are
// masqueraded. With masqAll, the prefix contains all addresses. Otherwise it is the container's own
// subnet, including the container itself. Because the container sends answers to that subnet directly,
// and not through the host, the host could not translate them back without masquerade.
func (p *portMap) masqueradedSources(ip netip.Prefix) netip.Prefix {
	if p.conf.masqAll {
		return netip.PrefixFrom(unspecified(nft.FamilyOf(ip.Addr())), 0)
	}
	return ip.Masked()
}

// markChain returns the name of the chain that packets for the address pass through before the
// translation, or "" if there is none.
func (p *portMap) markChain(ip netip.Prefix) string {
	if c, ok := p.conditionsChain(ip); ok {
		return c.name()
	}
	if p.conf.snat {
		return p.snatChain(ip).Name
	}
	return ""
}

func (p *portMap) snatChain(ip netip.Prefix) nft.Chain {
	return snatChain(p.owner().Network, p.masqueradedSources(ip), p.conf.markBit)
}

// conditionsChain returns the chain with the conditions for the family of the address. ok is false
// if there are no conditions.
func (p *portMap) conditionsChain(ip netip.Prefix) (c conditionsChain, ok bool) {
	words := p.conf.conditions[nft.FamilyOf(ip.Addr())]
	if len(words) == 0 {
		return conditionsChain{}, false
	}
	c = conditionsChain{network: p.owner().Network, text: strings.Join(words, " ")}
	if p.conf.snat {
		c.next = p.snatChain(ip).Name
	}
	return c, true
}

// mappedIPs returns the addresses of the container with mappings in their family. Only their elements
// jump to chains of the network.
func (p *portMap) mappedIPs() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(p.ips), func(ip netip.Prefix) bool { return len(p.conf.mappingsOf(nft.FamilyOf(ip.Addr()))) == 0 })
}

// layout returns the table with the chains that the attachment needs, except chains with conditions.
func (p *portMap) layout() nft.Layout {
	l := tableLayout()
	if !p.conf.snat {
		return l
	}
	l = l.WithChains(markedChain(p.conf.markBit))
	for _, ip := range p.mappedIPs() {
		l = l.WithChains(p.snatChain(ip))
	}
	return l
}
