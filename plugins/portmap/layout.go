package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
)

// This file describes the maps and chains of port maps in table inet plumb. A packet to an
// address of the host passes through the chain hostports. If the address belongs to a Service (services.go),
// the packet leaves the chain. Otherwise, the chain looks up the packet's protocol and port among the mappings of that one address, and after that among the mappings of all addresses of
// the host. Each time it looks into two maps. The first map contains the chain that the packet passes
// through before the translation, and the second map contains the container's address and port.
//
//	map hostport4_chain { tcp . 8080 : jump setmark/net1/10.88.0.0/16 }
//	map hostport4       { tcp . 8080 : 10.88.0.2 . 80 }
//
// The chain in the first map marks packets to masquerade. It runs before the translation, which
// replaces the port of the host. After that, in the hook postrouting, the packet looks the same as a
// packet that reached the container through a Service.

// afterDNAT is the priority of the chains for port maps. It is after "dstnat", so that translations for
// Services by kube-proxy come first.
const afterDNAT = nft.PriorityDstNAT + 1

// tableLayout returns the table with the maps and base chains of port maps. The first container
// with host ports adds them to the table.
func tableLayout() nft.Layout {
	hostports := nft.Chain{Name: tables.HostPorts}
	for _, f := range nft.Families() {
		withAddress, withoutAddress := []nft.Field{nft.Daddr(f), nft.L4Proto(), nft.Dport()}, []nft.Field{nft.L4Proto(), nft.Dport()}
		hostports.Rules = append(hostports.Rules,
			nft.Rule{nft.InSet(tables.ServiceAddrs(f), nft.Daddr(f)), nft.Return()},
			nft.Rule{nft.VerdictMap(tables.HostPortIPChain(f), withAddress...)},
			nft.Rule{nft.DNATMap(f, tables.HostPortIP(f), withAddress...)},
			nft.Rule{nft.OnlyFamily(f), nft.VerdictMap(tables.HostPortChain(f), withoutAddress...)},
			nft.Rule{nft.DNATMap(f, tables.HostPort(f), withoutAddress...)},
		)
	}
	l := tables.Inet(slices.Concat(tables.MasqueradeSets(), tables.HostPortSets(), tables.ServiceSets())...)
	return tables.WithGuard(l.WithChains(
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
				// The kernel routes packets from ::1 only through lo. Without this rule, a server
				// of the host that listens on ::1 would be unreachable.
				{nft.DaddrIn(netip.MustParsePrefix("::1/128")), nft.Return()},
				{nft.ToLocal(), nft.Jump(hostports.Name)},
			},
		},
	))
}

// snatChain returns the chain that marks the packets to masquerade, which come from these sources or
// from the host's 127/8. A prefix of length 0 stands for all sources.
func snatChain(network string, masqueradedSources netip.Prefix, bit int) nft.Chain {
	masqueradedSources = masqueradedSources.Masked()
	ch := nft.Chain{Name: nft.NetworkChain(snatKind, network, masqueradedSources.String())}
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

// The kinds of chains that the attachments of a network share (see nft.NetworkChain).
const (
	snatKind       = "setmark"
	conditionsKind = "conditions"
)

// defaultMarkBit is the default of markMasqBit, as in the reference plugin.
const defaultMarkBit = 13

// markedChain returns the chain that masquerades the packets that a snatChain marked.
func markedChain(bit int) nft.Chain {
	return nft.Chain{
		Name:  fmt.Sprintf("masq_mark%d", bit),
		Hook:  nft.Hook{Type: nft.NAT, At: nft.Postrouting, Priority: nft.PrioritySrcNAT},
		Rules: []nft.Rule{{nft.HasMarkBit(bit), nft.DestinationTranslated(), nft.Masquerade()}},
	}
}
