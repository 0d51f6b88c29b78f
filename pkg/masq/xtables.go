package masq

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// This file describes the masquerade rules of the reference plugins and of plumb in iptables. The
// rules are in nftables or in legacy tables. The reference plugins add these rules (for IPv4):
//
//	-A POSTROUTING -s 10.88.0.2/32 <comment> -j CNI-<hash>
//	-A CNI-<hash> -d 10.88.0.0/16 <comment> -j ACCEPT
//	-A CNI-<hash> ! -d 224.0.0.0/4 <comment> -j MASQUERADE
//
// The hash and the comment depend on the network and the container ID alone, so the interfaces
// of a container share the chain. plumb adds all ACCEPT rules before MASQUERADE, and its ACCEPT rules
// match the address (-s) and name the interface in their comments. Therefore plumb can delete the rules
// of one interface and keep the rules of the others, and the reference plugins can still delete all
// rules.

const (
	postrouting = "POSTROUTING"
	chainPrefix = "CNI-" // the prefix of the containers' chains
)

// chain returns the name of the container's chain.
func chain(container types.Attachment) string {
	return iptables.ContainerChain(chainPrefix, container)
}

// ownChains returns the chains that can contain rules of the owner.
func ownChains(owner types.Attachment) []string {
	return []string{postrouting, chain(owner)}
}

// comment returns the comment of the container's rules.
func comment(container types.Attachment) string {
	return truncate(fmt.Sprintf("name: %q id: %q", container.Network, container.ContainerID))
}

// ownComment returns the comment of the rules that plumb adds for one interface.
func ownComment(a types.Attachment) string {
	return truncate(comment(a) + fmt.Sprintf(" if: %q", a.IfName))
}

// truncate shortens a comment to the length that iptables allows (XT_MAX_COMMENT_LEN without the
// NUL).
func truncate(s string) string { return s[:min(len(s), 255)] }

// ownCleanup returns the Cleanup for the owner's rules.
func ownCleanup(owner types.Attachment, ips []netip.Prefix) iptables.Cleanup {
	return iptables.Cleanup{
		Tables: iptables.Tables(iptables.NAT),
		Chains: ownChains(owner),
		Select: func(rules []iptables.Rule) iptables.Selection { return ownRules(rules, owner, ips) },
	}
}

// staleChains returns the Cleanup for the chains of the network's containers without an attachment in keep.
func staleChains(network string, keep types.Set) iptables.Cleanup {
	return iptables.StaleChains(keep, postrouting, chainPrefix, fmt.Sprintf("name: %q id: ", network))
}

// ownRules selects the owner's rules of a table with the container's chain. It also selects the
// chain if no jump to the chain remains.
//
// A jump belongs to the owner if its source is one of the addresses, or is the source of a rule
// that plumb added for the interface. Only the reference plugins add jumps without such a rule. If no
// addresses are known, these jumps belong to the owner as well.
func ownRules(rules []iptables.Rule, owner types.Attachment, ips []netip.Prefix) (own iptables.Selection) {
	name := chain(owner)
	mine, others := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, ip := range ips {
		mine[netip.PrefixFrom(ip.Addr(), ip.Addr().BitLen())] = true
		mine[ip.Masked()] = true // early releases of the reference plugins used this form
	}
	prefix := comment(owner) + " if: "
	for _, r := range rules {
		switch {
		case r.Chain != name || !r.Source.IsValid():
		case r.Comment == ownComment(owner):
			mine[r.Source] = true
			own.Rules = append(own.Rules, r)
		case strings.HasPrefix(r.Comment, prefix):
			others[r.Source] = true
		}
	}
	remaining := 0
	for _, r := range rules {
		switch {
		case r.Jump != name:
		case (mine[r.Source] || len(ips) == 0) && !others[r.Source]:
			own.Rules = append(own.Rules, r)
		default:
			remaining++
		}
	}
	if remaining == 0 {
		own.Chains = []string{name}
	}
	return own
}

// covers reports whether the container's rules masquerade packets from the address to other subnets, except to exactly
// m.Except. Only plumb's ACCEPT rules have a source.
func (m Masq) covers(rules []iptables.Rule, ip netip.Prefix) bool {
	name := chain(m.Owner)
	ofSource := iptables.Where(rules, func(r iptables.Rule) bool { return !r.Source.IsValid() || r.Source.Contains(ip.Addr()) })
	applies := func(chain, jump string) bool {
		return slices.ContainsFunc(ofSource, func(r iptables.Rule) bool { return r.Chain == chain && r.Jump == jump })
	}
	var accepted []netip.Prefix
	for _, r := range ofSource {
		if r.Chain == name && r.Jump == "ACCEPT" && r.Source.IsValid() && r.Destination != ip.Masked() {
			accepted = append(accepted, r.Destination)
		}
	}
	slices.SortFunc(accepted, netip.Prefix.Compare)
	return applies(postrouting, name) && applies(name, "ACCEPT") && applies(name, "MASQUERADE") &&
		slices.Equal(accepted, m.exceptOf(ip))
}
