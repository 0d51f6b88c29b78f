package main

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	xt "github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// What the iptables backend keeps, in table nat, is what the reference plugin keeps, so
// that either deletes and checks what the other made:
//
//	-A PREROUTING, -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
//	-A CNI-HOSTPORT-DNAT -p tcp <comment> -m multiport --dports 8080 -j CNI-DN-<hash>
//	-A CNI-DN-<hash> -s 10.88.0.0/16 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
//	-A CNI-DN-<hash> -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.88.0.2:80
//
// Hash and comment are of network and container alone: the interfaces of a container
// share the chain. So behind its rules each interface of ours has one more for each
// of its entries in CNI-HOSTPORT-DNAT, which wants the same of a packet, does nothing
// and has the interface in its comment. By it DEL tells whose the rules before it are,
// and which entries.
const (
	chainPrefix   = "CNI-DN-" // of the chains of containers
	dnatChain     = "CNI-HOSTPORT-DNAT"
	markChain     = "CNI-HOSTPORT-SETMARK"
	masqChain     = "CNI-HOSTPORT-MASQ"
	portsPerEntry = 15 // as many as one multiport match takes
	maxComment    = 255
)

// chainName is the name of the container's chain.
func chainName(network, containerID string) string {
	sum := sha512.Sum512([]byte(network + containerID))
	return chainPrefix + hex.EncodeToString(sum[:])[:21]
}

// entryComment is the text on a container's entries.
func entryComment(network, containerID string) string {
	text := fmt.Sprintf("dnat name: %q id: %q", network, containerID)
	if len(text) > maxComment {
		return text[:maxComment-len("...")] + "..."
	}
	return text
}

// ifMark is how the comment of a rule that tells the interface ends.
func ifMark(ifName string) string { return fmt.Sprintf(" if: %q", ifName) }

// markComment is the text on the rules that tell the interface.
func markComment(a types.Attachment) string {
	text, mark := entryComment(a.Network, a.ContainerID), ifMark(a.IfName)
	return text[:min(len(text), maxComment-len(mark))] + mark
}

// markedIf reads the interface out of such a comment.
func markedIf(comment string) (ifName string, ok bool) {
	i := strings.LastIndex(comment, ` if: "`)
	if i < 0 || !strings.HasSuffix(comment, `"`) {
		return "", false
	}
	return comment[i+len(` if: "`) : len(comment)-1], true
}

// ofNetwork reports whether the comment is on an entry of a container in the network.
func ofNetwork(comment, network string) bool {
	return strings.HasPrefix(comment, fmt.Sprintf("dnat name: %q id: ", network))
}

// A shared rule is one that all containers need.
type sharedRule struct {
	chain string
	spec  string // as iptables-save prints it, without the chain
	first bool   // it has to be the first of its chain
}

// sharedChains are those that have to be there.
func (p *portMap) sharedChains() []string {
	switch {
	case !p.conf.snat || p.conf.setMark != "":
		return []string{dnatChain}
	case p.conf.markBit != defaultMarkBit:
		return []string{dnatChain, masqChain}
	}
	return []string{dnatChain, masqChain, markChain}
}

func (p *portMap) sharedRules() []sharedRule {
	rules := []sharedRule{
		{chain: "PREROUTING", spec: "-m addrtype --dst-type LOCAL -j " + dnatChain},
		{chain: "OUTPUT", spec: "-m addrtype --dst-type LOCAL -j " + dnatChain},
	}
	if !p.conf.snat || p.conf.setMark != "" {
		return rules
	}
	bit := p.markBits()
	rules = append(rules,
		sharedRule{chain: "POSTROUTING", spec: `-m comment --comment "CNI portfwd requiring masquerade" -j ` + masqChain, first: true},
		sharedRule{chain: masqChain, spec: "-m mark --mark " + bit + " -j MASQUERADE"})
	if p.conf.markBit == defaultMarkBit {
		rules = append(rules, sharedRule{chain: markChain, spec: `-m comment --comment "CNI portfwd masquerade mark" -j ` + p.markTarget()})
	}
	return rules
}

func (p *portMap) markBits() string { return fmt.Sprintf("0x%x/0x%[1]x", uint32(1)<<p.conf.markBit) }

func (p *portMap) markTarget() string { return "MARK --set-xmark " + p.markBits() }

// marker is the target that marks a packet for masquerade. CNI-HOSTPORT-SETMARK sets
// the usual bit only: a chain that sets those of all networks would set too many.
func (p *portMap) marker() string {
	switch {
	case p.conf.setMark != "":
		return p.conf.setMark
	case p.conf.markBit != defaultMarkBit:
		return p.markTarget()
	}
	return markChain
}

// ownRules are those in the container's chain, for one of its addresses, as
// iptables-save prints them.
func (p *portMap) ownRules(ip netip.Prefix) []string {
	var rules []string
	f := familyOf(ip.Addr())
	name := chainName(p.owner().Network, p.owner().ContainerID)
	for _, m := range p.conf.forFamily(f) {
		match := fmt.Sprintf("-p %s -m %[1]s --dport %d", m.proto, m.hostPort)
		if !m.everywhere() {
			match = fmt.Sprintf("-d %s %s", netip.PrefixFrom(m.hostIP, m.hostIP.BitLen()), match)
		}
		if p.conf.snat {
			for _, source := range p.markedSources(ip) {
				rules = append(rules, fmt.Sprintf("-A %s %s%s -j %s", name, source, match, p.marker()))
			}
		}
		rules = append(rules, fmt.Sprintf("-A %s %s -j DNAT --to-destination %s", name, match, netip.AddrPortFrom(ip.Addr(), m.containerPort)))
	}
	return rules
}

// markedSources are the matches of those whose packets are masqueraded.
func (p *portMap) markedSources(ip netip.Prefix) []string {
	switch {
	case p.conf.masqAll:
		return []string{""}
	case ip.Addr().Is6():
		return []string{fmt.Sprintf("-s %s ", ip.Masked())}
	}
	return []string{fmt.Sprintf("-s %s ", ip.Masked()), "-s 127.0.0.1/32 "}
}

// portEntry is one entry of the container: what it wants of a packet, but for the
// comment, which stands between the two.
type portEntry struct {
	proto protocol
	ports []uint16
	rest  string // conditions
}

// rule is the entry as a rule of a chain.
func (e portEntry) rule(comment string) string {
	texts := make([]string, len(e.ports))
	for i, port := range e.ports {
		texts[i] = fmt.Sprint(port)
	}
	return fmt.Sprintf("-p %s -m comment --comment %s -m multiport --dports %s%s",
		e.proto, xt.Quote(comment), strings.Join(texts, ","), e.rest)
}

// portEntries are the container's entries: of each protocol the ports, at most fifteen
// together, whatever the family of their hostIP, as with the reference plugin.
func (p *portMap) portEntries(f nft.Family) []portEntry {
	var rest strings.Builder
	for _, token := range p.conf.tokens[f] {
		rest.WriteString(" " + xt.Quote(token))
	}
	var entries []portEntry
	for _, proto := range []protocol{sctp, tcp, udp} { // sorted by name
		var ports []uint16
		for _, m := range p.conf.mappings {
			if m.proto == proto && !slices.Contains(ports, m.hostPort) {
				ports = append(ports, m.hostPort)
			}
		}
		for some := range slices.Chunk(ports, portsPerEntry) {
			entries = append(entries, portEntry{proto, some, rest.String()})
		}
	}
	return entries
}
