package nft

import (
	"net/netip"
	"strings"
)

// Plumb is the table of this bundle for masquerade and port maps. Its layout is
// one, whichever plugin comes first to make it.
func Plumb() Layout {
	return Layout{
		Table:   Table{Inet, "plumb"},
		Version: 1,
		Sets: []Set{
			{Name: MasqSet(IPv4), Key: []Type{IPv4Addr}, Data: []Type{Verdict}},
			{Name: MasqSet(IPv6), Key: []Type{IPv6Addr}, Data: []Type{Verdict}},
			{Name: MasqOwners(IPv4), Key: []Type{IfName}, Data: []Type{IPv4Addr}},
			{Name: MasqOwners(IPv6), Key: []Type{IfName}, Data: []Type{IPv6Addr}},
		},
		Chains: []Chain{{
			Name: "postrouting",
			Hook: Hook{NAT, Postrouting, srcNAT},
			Rules: []Rule{
				{VerdictMap(MasqSet(IPv4), Saddr(IPv4))},
				{VerdictMap(MasqSet(IPv6), Saddr(IPv6))},
			},
		}},
		InitialChains: []Chain{guard()},
	}
}

// Guard is the part of table Plumb that keeps packets of others to 127/8 out.
func Guard() Layout {
	l := Plumb()
	l.Chains, l.InitialChains = l.InitialChains, nil
	return l
}

// guard drops what the kernel takes to 127/8 where route_localnet is set (CVE-2020-8558).
// Answers of containers are not of them: here they still have the address that they were
// masqueraded with. A VRF has a loopback of its own. A table has the chain from its
// beginning: route_localnet outlives a ruleset that was flushed.
func guard() Chain {
	return Chain{
		Name:  "localnet",
		Hook:  Hook{Filter, Prerouting, rawPriority},
		Rules: []Rule{{DaddrIn(netip.MustParsePrefix("127.0.0.0/8")), IifKindNot("vrf"), Drop()}},
	}
}

// srcNAT is NF_IP_PRI_NAT_SRC of linux/netfilter_ipv4.h, "srcnat" in nft.
const srcNAT = 100

// MasqSet is the map from an address whose packets are masqueraded to the chain of
// its network.
func MasqSet(f Family) string {
	if f == IPv6 {
		return "masq6"
	}
	return "masq4"
}

// MasqOwners is the map from the OwnerKeys of an attachment to its keys in MasqSet.
func MasqOwners(f Family) string {
	if f == IPv6 {
		return "masqowner6"
	}
	return "masqowner4"
}

// MasqChain is the chain that decides what of the packets from a subnet of a network
// is masqueraded: not what stays in the subnet, and no multicast. The name says all
// that is in it, so it is shared by all attachments and whoever comes first makes it.
func MasqChain(network string, subnet netip.Prefix) Chain {
	subnet = subnet.Masked()
	multicast := netip.MustParsePrefix("224.0.0.0/4")
	if subnet.Addr().Is6() {
		multicast = netip.MustParsePrefix("ff00::/8")
	}
	return Chain{
		// A name that can stand in a script of nft must not have colons.
		Name: MasqChainPrefix(network) + strings.ReplaceAll(subnet.String(), ":", "_"),
		Rules: []Rule{
			{DaddrIn(subnet), Return()},
			{DaddrIn(multicast), Return()},
			{Masquerade()},
		},
	}
}

// MasqChainPrefix is what the names of the network's chains begin with.
func MasqChainPrefix(network string) string { return "masq/" + NetworkPrefix(network) }
