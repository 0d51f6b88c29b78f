package nft

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The port map part of the table. A packet to an address of the node goes through
// chain hostports, which looks its protocol and port up four times: for the mappings
// of its very address first, then for those of any address; each time first for what
// the mapping's network wants beside the translation (a verdict), then for the
// container to send it to.
//
//	map policy4     { tcp . 8080 : jump snat/net1/10.88.0.0/16 }
//	map hostport4   { tcp . 8080 : 10.88.0.2 . 80 }
//
// Whether the source is masqueraded is known here only, where the packet still has
// its port, and so it is marked, as by the iptables backend: a set of what
// postrouting could see would take in what a Service brings to the same container.

// Priorities of base chains (linux/netfilter_ipv4.h).
const (
	rawPriority = -300
	// afterDNAT is one behind "dstnat": what kube-proxy's Services decided is final.
	afterDNAT = -99
)

// PortMaps is the part of table Plumb for port maps. It comes to the table when the
// first container with one does.
func PortMaps() Layout {
	l := Plumb()
	l.Chains, l.InitialChains = nil, nil
	hostports := Chain{Name: "hostports"}
	for _, f := range []Family{IPv4, IPv6} {
		l.Sets = append(l.Sets, hostportSets(f)...)
		at, any := []Field{Daddr(f), L4Proto(), Dport()}, []Field{L4Proto(), Dport()}
		hostports.Rules = append(hostports.Rules,
			Rule{VerdictMap(PolicySetIP(f), at...)},
			Rule{DNATMap(f, HostportSetIP(f), at...)},
			Rule{OnlyFamily(f), VerdictMap(PolicySet(f), any...)},
			Rule{DNATMap(f, HostportSet(f), any...)},
		)
	}
	return l.WithChains(
		hostports,
		Chain{
			Name:  "prerouting",
			Hook:  Hook{NAT, Prerouting, afterDNAT},
			Rules: []Rule{{ToLocal(), Jump(hostports.Name)}},
		},
		Chain{
			Name: "output",
			Hook: Hook{NAT, Output, afterDNAT},
			Rules: []Rule{
				// The kernel knows no way back to ::1 from another interface than lo. A
				// listener of the node's own there stays within reach.
				{DaddrIn(netip.MustParsePrefix("::1/128")), Return()},
				{ToLocal(), Jump(hostports.Name)},
			},
		},
		guard(),
	)
}

// hostportSets are the maps of one family.
func hostportSets(f Family) []Set {
	addr := addrType(f)
	at, any := []Type{addr, InetProto, InetService}, []Type{InetProto, InetService}
	return []Set{
		{Name: HostportSet(f), Key: any, Data: []Type{addr, InetService}},
		{Name: HostportSetIP(f), Key: at, Data: []Type{addr, InetService}},
		{Name: PolicySet(f), Key: any, Data: []Type{Verdict}},
		{Name: PolicySetIP(f), Key: at, Data: []Type{Verdict}},
		{Name: HostportOwners(f), Key: []Type{IfName}, Data: []Type{addr, InetProto, InetService, addr}},
	}
}

func addrType(f Family) Type {
	if f == IPv6 {
		return IPv6Addr
	}
	return IPv4Addr
}

// digit tells the sets of the two families apart.
func digit(f Family) string {
	if f == IPv6 {
		return "6"
	}
	return "4"
}

// HostportSet is the map from protocol and port of the node to address and port of
// the container.
func HostportSet(f Family) string { return "hostport" + digit(f) }

// HostportSetIP is HostportSet for the ports of one address of the node.
func HostportSetIP(f Family) string { return HostportSet(f) + "ip" }

// PolicySet is the map from the keys of HostportSet to the chain that the packet goes
// through before it is translated.
func PolicySet(f Family) string { return "policy" + digit(f) }

// PolicySetIP is the same for HostportSetIP.
func PolicySetIP(f Family) string { return PolicySet(f) + "ip" }

// HostportOwners is the map from the OwnerKeys of an attachment to its mappings:
// address of the node (unspecified: any), protocol, port, address of the container.
func HostportOwners(f Family) string { return "hostportowner" + digit(f) }

// SNATChain marks packets of a mapping that are to be masqueraded: those of the
// container's own subnet, whose answers would not pass the node, and those of the
// node's 127/8. A prefix of length 0 stands for all sources.
func SNATChain(network string, sources netip.Prefix, bit int) Chain {
	sources = sources.Masked()
	ch := Chain{Name: SNATChainPrefix(network) + strings.ReplaceAll(sources.String(), ":", "_")}
	if bit != DefaultMarkBit {
		ch.Name += "/bit" + strconv.Itoa(bit)
	}
	if sources.Bits() == 0 {
		ch.Rules = []Rule{{SetMarkBit(bit)}}
		return ch
	}
	ch.Rules = []Rule{{SaddrIn(sources), SetMarkBit(bit)}}
	if sources.Addr().Is4() {
		ch.Rules = append(ch.Rules, Rule{SaddrIn(netip.MustParsePrefix("127.0.0.0/8")), SetMarkBit(bit)})
	}
	return ch
}

// SNATChainPrefix is what the names of the network's SNATChains begin with.
func SNATChainPrefix(network string) string { return "snat/" + inScript(network) }

// inScript is NetworkPrefix as it can stand in a script of nft.
func inScript(network string) string { return strings.ReplaceAll(NetworkPrefix(network), "~", "_") }

// DefaultMarkBit is the bit that the reference plugin marks with by default.
const DefaultMarkBit = 13

// MarkedChain masquerades what SNATChain marked.
func MarkedChain(bit int) Chain {
	return Chain{
		Name:  fmt.Sprintf("marked/bit%d", bit),
		Hook:  Hook{NAT, Postrouting, srcNAT},
		Rules: []Rule{{HasMarkBit(bit), DestinationTranslated(), Masquerade()}},
	}
}

// ConditionsChainPrefix is what the names of the network's chains with conditions
// begin with.
func ConditionsChainPrefix(network string) string { return "conditions/" + inScript(network) }
