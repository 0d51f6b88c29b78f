package main

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// This file finds the rules that the iptables backend or the reference plugin made for an
// attachment.

// ownCleanup returns the Cleanup for the owner's rules in table nat.
func ownCleanup(owner types.Attachment, ips []netip.Prefix) iptables.Cleanup {
	name := chainName(owner)
	return iptables.Cleanup{
		Required: name,
		Chains:   []string{dnatChain, name},
		Select:   func(rules []iptables.Rule) iptables.Selection { return ownRules(rules, owner, ips) },
	}
}

// staleCleanup returns the Cleanup for the rules of the network's attachments that are not in
// keep.
func staleCleanup(network string, keep types.Set) iptables.Cleanup {
	return iptables.Cleanup{
		Required: dnatChain,
		Select:   func(rules []iptables.Rule) iptables.Selection { return staleRules(rules, network, keep) },
	}
}

// ownRules selects the owner's rules of a table with the container's chain. It also selects the
// chain if no rules of others remain in it.
//
// The rules of an interface end with a label. The reference plugin makes no labels, so its rules are
// those after the last label. They belong to the owner if the chain has no label of the owner,
// and if one of them mentions an address of the container or no addresses are known.
func ownRules(rules []iptables.Rule, owner types.Attachment, ips []netip.Prefix) (own iptables.Selection) {
	name := chainName(owner)
	var block, labels []iptables.Rule // the rules since the last label, and the owner's labels
	others := 0                       // the number of rules of other interfaces
	for _, r := range rules {
		if r.Chain != name {
			continue
		}
		block = append(block, r)
		ifName, ok := labelInterface(r.Comment)
		switch {
		case !ok:
			continue
		case ifName == owner.IfName:
			own.Rules, labels = append(own.Rules, block...), append(labels, r)
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
	own.Rules = append(own.Rules, labeledEntries(jumps(rules, name), labels)...)
	return own
}

// mentions returns a function that reports whether a rule mentions one of the addresses.
func mentions(ips []netip.Prefix) func(r iptables.Rule) bool {
	return func(r iptables.Rule) bool {
		return slices.ContainsFunc(ips, func(ip netip.Prefix) bool { return r.Mentions(ip.Addr()) })
	}
}

// jumps returns the rules that jump to the chain.
func jumps(rules []iptables.Rule, chain string) []iptables.Rule {
	return iptables.Where(func(r iptables.Rule) bool { return r.Jump == chain })(rules).Rules
}

// labeledEntries returns one entry for each label: the first that matches the same packets.
func labeledEntries(entries, labels []iptables.Rule) (labeled []iptables.Rule) {
	for _, label := range labels {
		if i := slices.IndexFunc(entries, label.SameMatches); i >= 0 {
			labeled = append(labeled, entries[i])
			entries = slices.Delete(entries, i, i+1)
		}
	}
	return labeled
}

// staleRules selects the rules of the network's attachments that are not in keep.
func staleRules(rules []iptables.Rule, network string, keep types.Set) (stale iptables.Selection) {
	kept := map[string]types.Attachment{} // by chain
	for a := range keep {
		kept[chainName(a)] = a
	}
	seen := map[string]bool{}
	for _, r := range rules {
		if r.Chain != dnatChain || seen[r.Jump] || !strings.HasPrefix(r.Jump, chainPrefix) || !isOfNetwork(r.Comment, network) {
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
func staleInterfaces(rules []iptables.Rule, owner types.Attachment, keep types.Set) (stale iptables.Selection) {
	name, remaining := chainName(owner), slices.Clone(rules)
	for _, r := range rules {
		var ok bool
		owner.IfName, ok = labelInterface(r.Comment)
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
func (p *portMap) ownsReference() func(r iptables.Rule) bool {
	mentioned := mentions(p.ips)
	return func(r iptables.Rule) bool {
		return r.Comment == p.owner().ContainerID && (len(p.ips) == 0 || mentioned(r))
	}
}

// ownReference returns the Cleanup for the reference plugin's rules for the owner.
func (p *portMap) ownReference() iptables.Cleanup {
	return iptables.Cleanup{
		Tables: []nft.Table{referenceTable(nft.IPv4), referenceTable(nft.IPv6)},
		Select: iptables.Where(p.ownsReference()),
	}
}

// hasReferenceRules reports whether rules of the reference plugin's nftables backend translate to
// each address of the container, at least as many as the address has mappings.
func (p *portMap) hasReferenceRules(c *nft.Conn) (bool, error) {
	for _, ip := range p.ips {
		f := nft.FamilyOf(ip.Addr())
		rules, err := iptables.ReadNFT(c, referenceTable(f), referenceHostports)
		if err != nil {
			return false, err
		}
		own := iptables.Where(p.ownsReference())(rules).Rules
		own = slices.DeleteFunc(own, func(r iptables.Rule) bool { return !r.Mentions(ip.Addr()) })
		if len(own) < len(p.conf.mappingsOf(f)) {
			return false, nil
		}
	}
	return true, nil
}

// referenceHostports is the chain of a referenceTable with the rules that translate.
const referenceHostports = "hostports"
