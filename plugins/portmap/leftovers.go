package main

import (
	"net/netip"
	"slices"
	"strings"

	xt "github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// This file finds the rules that the iptables backend or the reference plugin made for an
// attachment.

// ownCleanup returns the Cleanup for the owner's rules in table nat.
func ownCleanup(owner types.Attachment, ips []netip.Prefix) xt.Cleanup {
	name := chainName(owner.Network, owner.ContainerID)
	return xt.Cleanup{
		Required: name,
		Chains:   []string{dnatChain, name},
		Select:   func(rules []xt.Rule) xt.Selection { return ownRules(rules, owner, ips) },
	}
}

// staleCleanup returns the Cleanup for the rules of the network's attachments that are not in
// keep.
func staleCleanup(network string, keep types.Set) xt.Cleanup {
	return xt.Cleanup{
		Required: dnatChain,
		Select:   func(rules []xt.Rule) xt.Selection { return staleRules(rules, network, keep) },
	}
}

// ownRules selects the owner's rules of a table with the container's chain. It also selects the
// chain if no rules of others remain in it.
//
// A rule in the chain whose comment names an interface ends the rules of that interface. The
// reference plugin makes no such rules, so its rules are those after the last one. They belong
// to the owner if the chain has no rules of plumb for the owner, and if one of them mentions
// an address of the container or no addresses are known.
func ownRules(rules []xt.Rule, owner types.Attachment, ips []netip.Prefix) (own xt.Selection) {
	name := chainName(owner.Network, owner.ContainerID)
	var block, marks []xt.Rule // the rules since the last mark, and the owner's marks
	others := 0
	for _, r := range rules {
		if r.Chain != name {
			continue
		}
		block = append(block, r)
		ifName, ok := markedIf(r.Comment)
		switch {
		case !ok:
			continue
		case ifName == owner.IfName:
			own.Rules, marks = append(own.Rules, block...), append(marks, r)
		default:
			others += len(block)
		}
		block = nil
	}
	if len(own.Rules) == 0 && (len(ips) == 0 || slices.ContainsFunc(block, mentions(ips))) {
		own.Rules = append(own.Rules, block...)
	} else {
		others += len(block)
	}
	if others == 0 {
		own.Chains = []string{name}
		own.Rules = append(own.Rules, jumps(rules, name)...)
		return own
	}
	own.Rules = append(own.Rules, markedEntries(jumps(rules, name), marks)...)
	return own
}

// mentions returns a function that reports whether a rule mentions one of the addresses.
func mentions(ips []netip.Prefix) func(r xt.Rule) bool {
	return func(r xt.Rule) bool {
		return slices.ContainsFunc(ips, func(ip netip.Prefix) bool { return r.Mentions(ip.Addr()) })
	}
}

// jumps returns the rules that jump to the chain.
func jumps(rules []xt.Rule, chain string) []xt.Rule {
	return xt.Where(func(r xt.Rule) bool { return r.Jump == chain })(rules).Rules
}

// markedEntries returns one entry for each mark: the first that matches the same packets.
func markedEntries(entries, marks []xt.Rule) (marked []xt.Rule) {
	for _, mark := range marks {
		if i := slices.IndexFunc(entries, mark.SameMatches); i >= 0 {
			marked = append(marked, entries[i])
			entries = slices.Delete(entries, i, i+1)
		}
	}
	return marked
}

// staleRules selects the rules of the network's attachments that are not in keep.
func staleRules(rules []xt.Rule, network string, keep types.Set) (stale xt.Selection) {
	kept := map[string]types.Attachment{} // by chain
	for a := range keep {
		kept[chainName(a.Network, a.ContainerID)] = a
	}
	seen := map[string]bool{}
	for _, r := range rules {
		if r.Chain != dnatChain || seen[r.Jump] || !strings.HasPrefix(r.Jump, chainPrefix) || !ofNetwork(r.Comment, network) {
			continue
		}
		seen[r.Jump] = true
		if container, ok := kept[r.Jump]; ok {
			of := staleInterfaces(rules, container, keep)
			stale.Rules, stale.Chains = append(stale.Rules, of.Rules...), append(stale.Chains, of.Chains...)
			continue
		}
		stale.Rules, stale.Chains = append(stale.Rules, jumps(rules, r.Jump)...), append(stale.Chains, r.Jump)
	}
	return stale
}

// staleInterfaces selects the rules of the container's interfaces that are not in keep.
func staleInterfaces(rules []xt.Rule, owner types.Attachment, keep types.Set) (stale xt.Selection) {
	name, remaining := chainName(owner.Network, owner.ContainerID), slices.Clone(rules)
	for _, r := range rules {
		var ok bool
		owner.IfName, ok = markedIf(r.Comment)
		if r.Chain != name || !ok || keep[owner] || !slices.Contains(remaining, r) {
			continue
		}
		own := ownRules(remaining, owner, nil)
		for _, r := range own.Rules { // no rule is deleted twice
			i := slices.Index(remaining, r)
			remaining = slices.Delete(remaining, i, i+1)
		}
		stale.Rules, stale.Chains = append(stale.Rules, own.Rules...), append(stale.Chains, own.Chains...)
	}
	return stale
}

// referenceTable returns a table of the reference plugin's nftables backend.
func referenceTable(f nft.Family) nft.Table { return nft.Table{Family: f, Name: "cni_hostport"} }

// ownsReference returns a function that reports whether a rule of the reference plugin's
// nftables backend is for this attachment. The comment of such a rule is the container ID alone.
// The rules for other networks mention other addresses, which matters only if the addresses are
// known. So GC cannot know the network, and keeps these rules.
func (p *portMap) ownsReference() func(r xt.Rule) bool {
	mentioned := mentions(p.ips)
	return func(r xt.Rule) bool {
		return r.Comment == p.owner().ContainerID && (len(p.ips) == 0 || mentioned(r))
	}
}

// ownReference returns the Cleanup for the reference plugin's rules for the owner.
func (p *portMap) ownReference() xt.Cleanup {
	return xt.Cleanup{
		Tables: []nft.Table{referenceTable(nft.IPv4), referenceTable(nft.IPv6)},
		Select: xt.Where(p.ownsReference()),
	}
}

// hasReference reports whether rules of the reference plugin's nftables backend translate to
// each address of the container, at least as many as the address has mappings.
func (p *portMap) hasReference(c *nft.Conn) (bool, error) {
	for _, ip := range p.ips {
		f := familyOf(ip.Addr())
		rules, err := xt.ReadNFT(c, referenceTable(f), referenceHostports)
		if err != nil {
			return false, err
		}
		own := xt.Where(p.ownsReference())(rules).Rules
		own = slices.DeleteFunc(own, func(r xt.Rule) bool { return !r.Mentions(ip.Addr()) })
		if len(own) < len(p.conf.forFamily(f)) {
			return false, nil
		}
	}
	return true, nil
}

// referenceHostports is the chain of a referenceTable with the rules that translate.
const referenceHostports = "hostports"
