package main

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
)

// This file has functions without side effects: they compute the elements of an attachment in
// table inet plumb from the configuration and the addresses. ADD makes these elements, CHECK
// compares them, and DEL deletes them.

// An endpoint is what a mapping listens at: address, protocol and port of the node. At each
// endpoint, one attachment at a time has a mapping.
type endpoint struct {
	family nft.Family
	hostIP netip.Addr // unspecified: all addresses
	proto  protocol
	port   uint16
}

// endpoint returns the endpoint of the mapping in a family.
func (m mapping) endpoint(f nft.Family) endpoint {
	e := endpoint{f, m.hostIP, m.proto, m.hostPort}
	if m.anyAddress() {
		e.hostIP = unspecified(f)
	}
	return e
}

// unspecified returns the unspecified address of a family.
func unspecified(f nft.Family) netip.Addr {
	if f == nft.IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// protoPortSize is the size in bytes of the concatenation of a protocol and a port.
const protoPortSize = 8

// addrSize returns the size of an address in bytes.
func addrSize(f nft.Family) int { return len(nft.AddrKey(unspecified(f))) }

// key returns the key of the endpoint in hostportMap or hostportMapIP.
func (e endpoint) key() nft.Key {
	port := nft.Concat(nft.ProtoKey(uint8(e.proto)), nft.PortKey(e.port))
	if e.hostIP.IsUnspecified() {
		return port
	}
	return nft.Concat(nft.AddrKey(e.hostIP), port)
}

// refs returns where the two elements of the endpoint are. The value of target is the address and port
// of the container to which packets are sent. policy is optional: it jumps to a chain that packets go
// through first.
func (e endpoint) refs() (target, policy nft.ElementRef) {
	key := e.key()
	if e.hostIP.IsUnspecified() {
		return nft.ElementRef{Set: hostportMap(e.family), Key: key}, nft.ElementRef{Set: policyMap(e.family), Key: key}
	}
	return nft.ElementRef{Set: hostportMapIP(e.family), Key: key}, nft.ElementRef{Set: policyMapIP(e.family), Key: key}
}

// endpointAt returns the endpoint whose target has this key in this map. It is the inverse of refs.
func endpointAt(f nft.Family, set string, key nft.Key) endpoint {
	hostIP := unspecified(f)
	if set == hostportMapIP(f) {
		hostIP, key = key[:len(key)-protoPortSize].Addr(), key[len(key)-protoPortSize:]
	}
	return endpoint{f, hostIP, protocol(key[0]), uint16(key[4])<<8 | uint16(key[5])}
}

// ownerData returns the data of the element in ownerMap that lists the endpoint. containerIP is the
// address that packets are sent to.
func (e endpoint) ownerData(containerIP netip.Addr) nft.Key {
	return nft.Concat(nft.AddrKey(e.hostIP), nft.ProtoKey(uint8(e.proto)), nft.PortKey(e.port), nft.AddrKey(containerIP))
}

// parseOwnerData returns the endpoint of ownerData. ok is false if the data has another length.
func parseOwnerData(f nft.Family, k nft.Key) (e endpoint, ok bool) {
	size := addrSize(f)
	if len(k) != 2*size+protoPortSize {
		return endpoint{}, false
	}
	return endpoint{f, k[:size].Addr(), protocol(k[size]), uint16(k[size+4])<<8 | uint16(k[size+5])}, true
}

// claims returns the claims of the attachment, with their elements.
func (p *portMap) claims() []nft.Claim {
	all := make([]nft.Claim, 0, 2*len(p.conf.mappings)+1)
	comment := nft.Owner(p.owner())
	for _, ip := range p.ips {
		f, containerIP := nft.FamilyOf(ip.Addr()), ip.Addr()
		policyChain := p.policyChain(ip)
		for _, m := range p.conf.mappingsOf(f) {
			e := m.endpoint(f)
			target, policy := e.refs()
			c := e.claim(containerIP)
			c.Elements = []nft.SetElement{{Set: target.Set, Element: nft.Element{
				Key: target.Key, Data: nft.Concat(nft.AddrKey(containerIP), nft.PortKey(m.containerPort)), Comment: comment,
			}}}
			if policyChain != "" {
				c.Elements = append(c.Elements, nft.SetElement{Set: policy.Set, Element: nft.Element{Key: policy.Key, Jump: policyChain, Comment: comment}})
			}
			all = append(all, c)
		}
	}
	if p.hasLocalnetElement {
		all = append(all, nft.Claim{
			Description: localnetName(p.localnetDevice),
			OwnerMap:    localnetOwnerMap,
			OwnerEntry:  nft.Element{Jump: localnetChain(p.localnetDevice)},
		})
	}
	return all
}

// claim returns the claim to the endpoint, without its elements.
func (e endpoint) claim(containerIP netip.Addr) nft.Claim {
	return nft.Claim{Description: e, OwnerMap: ownerMap(e.family), OwnerEntry: nft.Element{Data: e.ownerData(containerIP)}, PerContainer: true}
}

// hints returns the claims that the attachment probably has: those for the mappings of this call. If
// the call has addresses of the container, hints returns claims only for the families of these
// addresses. The claims have an unspecified containerIP, which is not needed to find their elements.
func (p *portMap) hints() []nft.Claim {
	var all []nft.Claim
	for _, f := range nft.Families() {
		if !p.mayHaveFamily(f) {
			continue
		}
		for _, m := range p.conf.mappingsOf(f) {
			all = append(all, m.endpoint(f).claim(unspecified(f)))
		}
	}
	return all
}

// kinds returns the kinds of claims that portmap has in the table.
func kinds() []nft.ClaimKind {
	all := []nft.ClaimKind{{OwnerMap: localnetOwnerMap}}
	for _, f := range nft.Families() {
		all = append(all, nft.ClaimKind{
			OwnerMap:    ownerMap(f),
			PrimarySets: []string{hostportMap(f), hostportMapIP(f)},
			OtherSets:   []string{policyMap(f), policyMapIP(f)},
			ElementRefs: func(ownerData nft.Key) []nft.ElementRef {
				e, ok := parseOwnerData(f, ownerData)
				if !ok {
					return nil
				}
				target, policy := e.refs()
				return []nft.ElementRef{target, policy}
			},
		})
	}
	return all
}

// masqueradedSources returns the prefix of the source addresses whose packets to the mappings are
// masqueraded. With masqAll, the prefix has all addresses. Otherwise it is the container's own subnet,
// which includes the container itself: the container would send its answers to that subnet directly,
// and not through the node, so that the node could not translate them back.
func (p *portMap) masqueradedSources(ip netip.Prefix) netip.Prefix {
	if p.conf.masqAll {
		return netip.PrefixFrom(unspecified(nft.FamilyOf(ip.Addr())), 0)
	}
	return ip.Masked()
}

// policyChain returns the name of the chain that packets for the address go through before they
// are translated. It is empty if there is none.
func (p *portMap) policyChain(ip netip.Prefix) string {
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

// mappedIPs returns the addresses of the container that have mappings. Only their elements jump to chains
// of the network.
func (p *portMap) mappedIPs() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(p.ips), func(ip netip.Prefix) bool { return len(p.conf.mappingsOf(nft.FamilyOf(ip.Addr()))) == 0 })
}

// layout returns the table with the chains that the attachment needs, except those with conditions.
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
