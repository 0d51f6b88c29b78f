package masq

import (
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/v2/pkg/claims"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
)

// store returns the store of the owner's elements, with the chains for the subnets of the addresses.
// ips may be empty if the addresses are not known.
func (m Masq) store(c *nft.Conn, ips []netip.Prefix) *claims.Store {
	s := &claims.Store{
		Conn:        c,
		Layout:      baseLayout(),
		Groups:      []claims.Group{{tables.Masquerade(nft.IPv4)}, {tables.Masquerade(nft.IPv6)}},
		Chains:      []string{chainKind, exceptKind},
		LongChains:  []string{exceptKind},
		Owner:       m.Owner,
		Description: m.String(),
		Warn:        m.Warn,
		OnlyFree:    m.OnlyFree,
	}
	for _, ip := range ips {
		set, chain := tables.Masquerade(nft.FamilyOf(ip.Addr())), subnetChain(m.Owner.Network, ip, m.exceptOf(ip))
		s.Layout = s.Layout.WithChains(chain)
		s.Claims = append(s.Claims, claims.Claim{
			Description: "the masquerade of " + ip.Addr().String(),
			Elements: []nft.SetElement{{Set: set, Element: nft.Element{
				Key: nft.AddrKey(ip.Addr()), Jump: chain.Name,
			}}},
		})
	}
	return s
}

// baseLayout returns table inet plumb with the maps and the base chain of masquerade.
func baseLayout() nft.Layout {
	return tables.Inet(tables.MasqueradeSets()...).WithChains(nft.Chain{
		Name: "postrouting",
		Hook: nft.Hook{Type: nft.NAT, At: nft.Postrouting, Priority: nft.PrioritySrcNAT},
		Rules: []nft.Rule{
			{nft.VerdictMap(tables.Masquerade(nft.IPv4), nft.Saddr(nft.IPv4))},
			{nft.VerdictMap(tables.Masquerade(nft.IPv6), nft.Saddr(nft.IPv6))},
		},
	})
}

// The kinds of the chains that masquerade (see nft.NetworkChain), without and with ipMasqExcept.
const (
	chainKind  = "masq"
	exceptKind = "masq_except"
)

// subnetChain returns the chain that masquerades the packets from a subnet of a network, except packets
// to the subnet, to a multicast address or to one of the prefixes. All attachments in the subnet share
// the chain. Its name contains everything that its rules depend on.
func subnetChain(network string, subnet netip.Prefix, except []netip.Prefix) nft.Chain {
	subnet = subnet.Masked()
	c := nft.Chain{Name: nft.NetworkChain(chainKind, network, subnet.String())}
	if len(except) > 0 {
		c.Name = nft.NetworkChain(exceptKind, network, subnet.String()+"/"+digest(fmt.Sprint(except)))
	}
	for _, p := range append([]netip.Prefix{subnet, netip.MustParsePrefix(multicast(nft.FamilyOf(subnet.Addr())))}, except...) {
		c.Rules = append(c.Rules, nft.Rule{nft.DaddrIn(p), nft.Return()})
	}
	c.Rules = append(c.Rules, nft.Rule{nft.Masquerade()})
	return c
}
