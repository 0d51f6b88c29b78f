package nft_test

import (
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
)

// tableLayout returns a table like that of masquerade: maps from addresses to chains and from
// owners to addresses, and a base chain.
func tableLayout() nft.Layout {
	return nft.Layout{
		Table:   table,
		Version: 1,
		Sets: []nft.Set{
			{Name: "masq4", Key: []nft.Type{nft.IPv4Addr}, Data: []nft.Type{nft.Verdict}},
			{Name: "masq6", Key: []nft.Type{nft.IPv6Addr}, Data: []nft.Type{nft.Verdict}},
			{Name: "masqowner4", Key: []nft.Type{nft.IfName}, Data: []nft.Type{nft.IPv4Addr}},
			{Name: "masqowner6", Key: []nft.Type{nft.IfName}, Data: []nft.Type{nft.IPv6Addr}},
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

// portLayout returns a table like that of port maps: the maps hostport4 and policy4 have the
// elements of a claim, and hostportowner4 lists the claims of an owner.
func portLayout() nft.Layout {
	port := []nft.Type{nft.InetProto, nft.InetService}
	return nft.Layout{
		Table:   table,
		Version: 1,
		Sets: []nft.Set{
			{Name: "hostport4", Key: port, Data: []nft.Type{nft.IPv4Addr, nft.InetService}},
			{Name: "policy4", Key: port, Data: []nft.Type{nft.Verdict}},
			{Name: "hostportowner4", Key: []nft.Type{nft.IfName}, Data: []nft.Type{nft.IPv4Addr, nft.InetProto, nft.InetService, nft.IPv4Addr}},
		},
		Chains: []nft.Chain{{
			Name: "prerouting",
			Hook: nft.Hook{Type: nft.NAT, At: nft.Prerouting, Priority: nft.PriorityDstNAT},
			Rules: []nft.Rule{
				{nft.VerdictMap("policy4", nft.L4Proto(), nft.Dport())},
				{nft.DNATMap(nft.IPv4, "hostport4", nft.L4Proto(), nft.Dport())},
			},
		}, policy()},
	}
}

// policy returns the chain to which the elements of policy4 jump.
func policy() nft.Chain {
	return nft.Chain{Name: "policy/net", Rules: []nft.Rule{{nft.SaddrIn(subnet), nft.SetMarkBit(13)}}}
}
