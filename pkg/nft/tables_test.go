package nft_test

import (
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
)

// tableLayout returns a table like the masquerade table, with maps from addresses to chains and a base
// chain.
func tableLayout() nft.Layout {
	return nft.Layout{
		Table:   table,
		Version: 1,
		Sets: []nft.Set{
			{Name: "masq4", Key: []nft.Type{nft.IPv4Addr}, Data: []nft.Type{nft.Verdict}},
			{Name: "masq6", Key: []nft.Type{nft.IPv6Addr}, Data: []nft.Type{nft.Verdict}},
		},
		Chains: []nft.Chain{{
			Name: "postrouting",
			Hook: nft.Hook{Type: nft.NAT, At: nft.Postrouting, Priority: nft.PrioritySrcNAT},
			Rules: []nft.Rule{
				{nft.VerdictMap("masq4", nft.Saddr(nft.IPv4))},
				{nft.VerdictMap("masq6", nft.Saddr(nft.IPv6))},
			},
		}},
	}
}

// subnetChain returns the chain to which the elements of a subnet jump.
func subnetChain(subnet netip.Prefix) nft.Chain {
	multicast := netip.MustParsePrefix("224.0.0.0/4")
	if subnet.Addr().Is6() {
		multicast = netip.MustParsePrefix("ff00::/8")
	}
	return nft.Chain{
		Name: "masq/net1/" + strings.ReplaceAll(subnet.String(), ":", "_"),
		Rules: []nft.Rule{
			{nft.DaddrIn(subnet), nft.Return()},
			{nft.DaddrIn(multicast), nft.Return()},
			{nft.Masquerade()},
		},
	}
}
