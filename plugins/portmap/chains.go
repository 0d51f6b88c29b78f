package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The iptables backend adds the same rules to table nat as the reference plugin, so that each plugin can
// check and delete the rules of the other:
//
//	-A PREROUTING, -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
//	-A CNI-HOSTPORT-DNAT -p tcp <comment> -m multiport --dports 8080 -j CNI-DN-<hash>
//	-A CNI-DN-<hash> -s 10.88.0.0/16 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
//	-A CNI-DN-<hash> -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.88.0.2:80
//
// A rule in CNI-HOSTPORT-DNAT is an entry. The hash and the comment depend on the network and the
// container ID alone. Therefore the interfaces of a container in one network share the chain, and the
// first DEL deletes it.
const (
	chainPrefix   = "CNI-DN-" // the prefix of the containers' chains
	dnatChain     = "CNI-HOSTPORT-DNAT"
	setMarkChain  = "CNI-HOSTPORT-SETMARK"
	masqChain     = "CNI-HOSTPORT-MASQ"
	portsPerEntry = 15 // the limit of one multiport match
	maxComment    = 255
)

func chainName(container types.Attachment) string {
	return iptables.ContainerChain(chainPrefix, container)
}

func entryComment(container types.Attachment) string {
	text := fmt.Sprintf("dnat name: %q id: %q", container.Network, container.ContainerID)
	if len(text) > maxComment {
		return text[:maxComment-len("...")] + "..."
	}
	return text
}

// namesContainer reports whether the comment names the container, in any network.
func namesContainer(comment, containerID string) bool {
	return strings.HasSuffix(comment, fmt.Sprintf(" id: %q", containerID))
}

// sharedRules returns the rules that all containers need, as iptables-save prints them. A rule in POSTROUTING must
// be the first rule of that chain.
func (p *portMap) sharedRules() []string {
	rules := []string{
		"-A PREROUTING -m addrtype --dst-type LOCAL -j " + dnatChain,
		"-A OUTPUT -m addrtype --dst-type LOCAL -j " + dnatChain,
	}
	if !p.conf.snat || p.conf.externalMarkChain != "" {
		return rules
	}
	rules = append(rules,
		postrouting+`-m comment --comment "CNI portfwd requiring masquerade" -j `+masqChain,
		"-A "+masqChain+" -m mark --mark "+p.markAndMask()+" -j MASQUERADE")
	if p.conf.markBit == defaultMarkBit {
		rules = append(rules, "-A "+setMarkChain+` -m comment --comment "CNI portfwd masquerade mark" -j `+p.markTarget())
	}
	return rules
}

// postrouting is the prefix of a rule in POSTROUTING.
const postrouting = "-A POSTROUTING "

// markAndMask returns the packet mark and its mask, as iptables prints them.
func (p *portMap) markAndMask() string { return fmt.Sprintf("0x%x/0x%[1]x", uint32(1)<<p.conf.markBit) }

// markTarget returns the target that sets the mark.
func (p *portMap) markTarget() string { return "MARK --set-xmark " + p.markAndMask() }

// snatTarget returns the target of the rules for packets to masquerade. The chain
// CNI-HOSTPORT-SETMARK sets the default bit only, because all networks share it.
func (p *portMap) snatTarget() string {
	switch {
	case p.conf.externalMarkChain != "":
		return p.conf.externalMarkChain
	case p.conf.markBit != defaultMarkBit:
		return p.markTarget()
	}
	return setMarkChain
}

// match returns the match for the packets of the mapping, as iptables-save prints it.
func (m mapping) match() string {
	match := fmt.Sprintf("-p %s -m %[1]s --dport %d", m.proto, m.hostPort)
	if m.isAnyAddress() {
		return match
	}
	return fmt.Sprintf("-d %s %s", netip.PrefixFrom(m.hostIP, m.hostIP.BitLen()), match)
}

// containerRules returns the rules in the container's chain for one of its addresses, as iptables-save prints them.
func (p *portMap) containerRules(ip netip.Prefix) []string {
	var rules []string
	name := chainName(p.owner())
	for _, m := range p.conf.mappingsOf(nft.FamilyOf(ip.Addr())) {
		if p.conf.snat {
			for _, source := range p.sourceMatches(ip) {
				rules = append(rules, fmt.Sprintf("-A %s %s%s -j %s", name, source, m.match(), p.snatTarget()))
			}
		}
		rules = append(rules, fmt.Sprintf("-A %s %s -j DNAT --to-destination %s", name, m.match(), netip.AddrPortFrom(ip.Addr(), m.containerPort)))
	}
	return rules
}

// guardedMark returns a rule without a target for the container's chain. The rule records that plumb has added
// guardRule for the container. The reference plugin adds neither.
func (p *portMap) guardedMark() string {
	return fmt.Sprintf("-A %s -m comment --comment %s", chainName(p.owner()), iptables.Quote("needs: "+tables.GuardComment))
}

// sourceMatches returns the matches for the sources of packets to masquerade.
func (p *portMap) sourceMatches(ip netip.Prefix) []string {
	switch {
	case p.conf.masqAll:
		return []string{""}
	case ip.Addr().Is6():
		return []string{fmt.Sprintf("-s %s ", ip.Masked())}
	}
	return []string{fmt.Sprintf("-s %s ", ip.Masked()), "-s 127.0.0.1/32 "}
}

// An entry is a rule in CNI-HOSTPORT-DNAT that jumps to a container's chain.
type entry struct {
	proto      protocol
	ports      string // as iptables prints them
	conditions string // quoted words with a space before each; it is empty if there are no conditions
}

// rule returns the rule without the chain and the target.
func (e entry) rule(comment string) string {
	return fmt.Sprintf("-p %s -m comment --comment %s -m multiport --dports %s%s", e.proto, iptables.Quote(comment), e.ports, e.conditions)
}

// isRule reports whether r is the rule of the entry. It compares neither conditions, which iptables prints in
// another form, nor the comment.
func (e entry) isRule(r iptables.Rule) bool {
	return r.Option("-p") == e.proto.String() && r.Option("--dports") == e.ports
}

// entries returns the container's entries for a family, one per protocol and 15 ports. As in the
// reference plugin, they contain the ports of all mappings, whatever the family of hostIP is.
func (p *portMap) entries(f nft.Family) []entry {
	var conditions strings.Builder
	for _, word := range p.conf.conditions[f] {
		conditions.WriteString(" " + iptables.Quote(word))
	}
	var entries []entry
	for _, proto := range []protocol{sctp, tcp, udp} { // in the order of their names
		var ports []string
		for _, m := range p.conf.mappings {
			if port := strconv.Itoa(int(m.hostPort)); m.proto == proto && !slices.Contains(ports, port) {
				ports = append(ports, port)
			}
		}
		for chunk := range slices.Chunk(ports, portsPerEntry) {
			entries = append(entries, entry{proto, strings.Join(chunk, ","), conditions.String()})
		}
	}
	return entries
}
