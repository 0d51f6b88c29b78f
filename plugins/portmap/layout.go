package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/nft"
)

// This file describes the maps and chains of port maps in table inet plumb. A packet to an
// address of the node goes through the chain hostports. The chain looks up the packet's
// protocol and port: first among the mappings of that one address, then among the mappings of
// all addresses of the node. Each time it looks into two maps: the first says which chain the
// packet goes through before it is translated, the second says to which container it is sent.
//
//	map hostport4_chain { tcp . 8080 : jump setmark/net1/10.88.0.0/16 }
//	map hostport4       { tcp . 8080 : 10.88.0.2 . 80 }
//
// The chain of the first map decides whether the packet is masqueraded, and marks it. That is
// decided before the translation, because later the packet no longer has the port of the node:
// in the hook postrouting, it looks the same as a packet that reached the container by a
// Service.

// afterDNAT is the priority of the chains for port maps: after the chains with the priority
// "dstnat", so that translations for Services by kube-proxy come first.
const afterDNAT = nft.PriorityDstNAT + 1

// tableLayout returns the table with the maps and base chains of port maps. The first container
// with host ports adds them to the table.
func tableLayout() nft.Layout {
	l := masq.Layout()
	l.Chains, l.InitialChains = nil, nil
	hostports := nft.Chain{Name: "hostports"}
	for _, f := range nft.Families() {
		l.Sets = append(l.Sets, hostportSets(f)...)
		withAddress, withoutAddress := []nft.Field{nft.Daddr(f), nft.L4Proto(), nft.Dport()}, []nft.Field{nft.L4Proto(), nft.Dport()}
		hostports.Rules = append(hostports.Rules,
			nft.Rule{nft.VerdictMap(chainMapIP(f), withAddress...)},
			nft.Rule{nft.DNATMap(f, hostportMapIP(f), withAddress...)},
			nft.Rule{nft.OnlyFamily(f), nft.VerdictMap(chainMap(f), withoutAddress...)},
			nft.Rule{nft.DNATMap(f, hostportMap(f), withoutAddress...)},
		)
	}
	return l.WithChains(
		hostports,
		nft.Chain{
			Name:  "prerouting",
			Hook:  nft.Hook{Type: nft.NAT, At: nft.Prerouting, Priority: afterDNAT},
			Rules: []nft.Rule{{nft.ToLocal(), nft.Jump(hostports.Name)}},
		},
		nft.Chain{
			Name: "output",
			Hook: nft.Hook{Type: nft.NAT, At: nft.Output, Priority: afterDNAT},
			Rules: []nft.Rule{
				// The kernel does not route packets from ::1 out of another interface than
				// lo. Without this rule, a server of the node that listens on ::1 would be
				// unreachable.
				{nft.DaddrIn(netip.MustParsePrefix("::1/128")), nft.Return()},
				{nft.ToLocal(), nft.Jump(hostports.Name)},
			},
		},
		masq.LocalnetGuard(),
	)
}

// guardLayout returns the table with LocalnetGuard alone.
func guardLayout() nft.Layout {
	l := masq.Layout()
	l.Chains, l.InitialChains = []nft.Chain{masq.LocalnetGuard()}, nil
	return l
}

// table returns the table that has the elements.
func table() nft.Table { return masq.Layout().Table }

// hostportSets returns the maps of one family.
func hostportSets(f nft.Family) []nft.Set {
	addr := addrType(f)
	withAddress, withoutAddress := []nft.Type{addr, nft.InetProto, nft.InetService}, []nft.Type{nft.InetProto, nft.InetService}
	return []nft.Set{
		{Name: hostportMap(f), Key: withoutAddress, Data: []nft.Type{addr, nft.InetService}},
		{Name: hostportMapIP(f), Key: withAddress, Data: []nft.Type{addr, nft.InetService}},
		{Name: chainMap(f), Key: withoutAddress, Data: []nft.Type{nft.Verdict}},
		{Name: chainMapIP(f), Key: withAddress, Data: []nft.Type{nft.Verdict}},
	}
}

func addrType(f nft.Family) nft.Type {
	if f == nft.IPv6 {
		return nft.IPv6Addr
	}
	return nft.IPv4Addr
}

// hostportMap returns the name of the map from protocol and port of the node to address and
// port of the container.
func hostportMap(f nft.Family) string { return "hostport" + version(f) }

// hostportMapIP returns the name of the map from address, protocol and port of the node to
// address and port of the container.
func hostportMapIP(f nft.Family) string { return hostportMap(f) + "ip" }

// chainMap returns the name of the map from a key of hostportMap to the chain that the packet
// goes through before it is translated.
func chainMap(f nft.Family) string { return hostportMap(f) + "_chain" }

// chainMapIP is chainMap for the keys of hostportMapIP.
func chainMapIP(f nft.Family) string { return hostportMap(f) + "_addr" }

// version returns the IP version of a family.
func version(f nft.Family) string {
	if f == nft.IPv6 {
		return "6"
	}
	return "4"
}

// snatChain returns the chain that marks the packets that are to be masqueraded: those from
// sources, and those from the node's 127/8. A prefix of length 0 stands for all sources.
func snatChain(network string, masqueradedSources netip.Prefix, bit int) nft.Chain {
	masqueradedSources = masqueradedSources.Masked()
	ch := nft.Chain{Name: snatChainPrefix(network) + strings.ReplaceAll(masqueradedSources.String(), ":", "_")}
	if bit != defaultMarkBit {
		ch.Name += "/bit" + strconv.Itoa(bit)
	}
	if masqueradedSources.Bits() == 0 {
		ch.Rules = []nft.Rule{{nft.SetMarkBit(bit)}}
		return ch
	}
	ch.Rules = []nft.Rule{{nft.SaddrIn(masqueradedSources), nft.SetMarkBit(bit)}}
	if masqueradedSources.Addr().Is4() {
		ch.Rules = append(ch.Rules, nft.Rule{nft.SaddrIn(netip.MustParsePrefix("127.0.0.0/8")), nft.SetMarkBit(bit)})
	}
	return ch
}

// snatChainPrefix returns what the names of all snatChains of the network begin with.
func snatChainPrefix(network string) string { return "setmark/" + scriptName(network) }

// scriptName returns NetworkPrefix without the characters that a name in a script of nft cannot
// have.
func scriptName(network string) string {
	return strings.ReplaceAll(nft.NetworkPrefix(network), "~", "_")
}

// defaultMarkBit is the default of markMasqBit, the same as that of the reference plugin.
const defaultMarkBit = 13

// markedChain returns the chain that masquerades the packets that a snatChain marked.
func markedChain(bit int) nft.Chain {
	return nft.Chain{
		Name:  fmt.Sprintf("masq_mark%d", bit),
		Hook:  nft.Hook{Type: nft.NAT, At: nft.Postrouting, Priority: nft.PrioritySrcNAT},
		Rules: []nft.Rule{{nft.HasMarkBit(bit), nft.DestinationTranslated(), nft.Masquerade()}},
	}
}
