package masq

import (
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/tables"
)

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

// chainKind is the kind of the chains that masquerade (see nft.NetworkChain).
const chainKind = "masq"

// subnetChain returns the chain that masquerades the packets from a subnet of a network, except packets
// to the subnet or to a multicast address. All attachments in the subnet share the chain. Its name
// contains everything that its rules depend on.
func subnetChain(network string, subnet netip.Prefix) nft.Chain {
	subnet = subnet.Masked()
	return nft.Chain{
		Name: nft.NetworkChain(chainKind, network, subnet.String()),
		Rules: []nft.Rule{
			{nft.DaddrIn(subnet), nft.Return()},
			{nft.DaddrIn(netip.MustParsePrefix(multicast(nft.FamilyOf(subnet.Addr())))), nft.Return()},
			{nft.Masquerade()},
		},
	}
}
