package masq

import (
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
)

// Layout returns the table inet plumb with the maps and the base chain of masquerade. The
// plugins share the table: port maps (plugins/portmap) add their maps and chains to this
// layout, so the table is the same whichever plugin creates it.
func Layout() nft.Layout {
	return nft.Layout{
		Table:   nft.Table{Family: nft.Inet, Name: "plumb"},
		Version: 2,
		Sets: []nft.Set{
			{Name: addressMap(nft.IPv4), Key: []nft.Type{nft.IPv4Addr}, Data: []nft.Type{nft.Verdict}},
			{Name: addressMap(nft.IPv6), Key: []nft.Type{nft.IPv6Addr}, Data: []nft.Type{nft.Verdict}},
		},
		Chains: []nft.Chain{{
			Name: "postrouting",
			Hook: nft.Hook{Type: nft.NAT, At: nft.Postrouting, Priority: nft.PrioritySrcNAT},
			Rules: []nft.Rule{
				{nft.VerdictMap(addressMap(nft.IPv4), nft.Saddr(nft.IPv4))},
				{nft.VerdictMap(addressMap(nft.IPv6), nft.Saddr(nft.IPv6))},
			},
		}},
		InitialChains: []nft.Chain{LocalnetGuard()},
	}
}

// LocalnetGuard returns the chain that drops packets to 127/8 from virtual interfaces. The kernel
// accepts such packets where route_localnet is set (CVE-2020-8558). The chain does not drop
// answers of containers: at this hook, the destination of an answer is still the address that the
// request was masqueraded with. It does not drop packets from a VRF, which has a loopback address
// of its own, nor from lo and network cards, which have no kind (see nft.IifKindNot). Every plugin
// that creates the table creates this chain as well, because route_localnet stays 1 when the
// ruleset is flushed.
func LocalnetGuard() nft.Chain {
	return nft.Chain{
		Name:  "localnet",
		Hook:  nft.Hook{Type: nft.Filter, At: nft.Prerouting, Priority: nft.PriorityRaw},
		Rules: []nft.Rule{{nft.DaddrIn(netip.MustParsePrefix("127.0.0.0/8")), nft.IifKindNot("vrf"), nft.Drop()}},
	}
}

// addressMap returns the name of the map whose keys are the addresses to masquerade. The value of
// an address is a jump to the chain of its subnet.
func addressMap(f nft.Family) string {
	if f == nft.IPv6 {
		return "masq6"
	}
	return "masq4"
}

// subnetChain returns the chain that masquerades the packets from a subnet of a network,
// except those that stay in the subnet and those to a multicast address. All attachments in
// the subnet share the chain. Its name contains everything that its rules depend on.
func subnetChain(network string, subnet netip.Prefix) nft.Chain {
	subnet = subnet.Masked()
	return nft.Chain{
		// A colon cannot be part of a name in a script of nft.
		Name: subnetChainPrefix(network) + strings.ReplaceAll(subnet.String(), ":", "_"),
		Rules: []nft.Rule{
			{nft.DaddrIn(subnet), nft.Return()},
			{nft.DaddrIn(netip.MustParsePrefix(multicast(nft.FamilyOf(subnet.Addr())))), nft.Return()},
			{nft.Masquerade()},
		},
	}
}

// subnetChainPrefix returns what the names of all subnetChains of the network begin with.
func subnetChainPrefix(network string) string { return "masq/" + nft.NetworkPrefix(network) }
