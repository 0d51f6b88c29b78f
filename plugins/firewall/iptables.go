package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	xt "github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The rules in table filter are the same as the reference plugin's. Therefore either plugin can check and
// delete the other's rules:
//
//	-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
//	-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
//	-A CNI-FORWARD -d 10.88.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//	-A CNI-FORWARD -s 10.88.0.2/32 -j ACCEPT
//
// These rules do not name their owner. Therefore plumb adds a marker after the two rules of an address. A
// marker is a rule without a target, whose comment names the attachment.
const (
	filter       = "filter"
	forwardChain = "CNI-FORWARD"
	markerPrefix = "firewall: "
)

// nftTool returns the tool for the tables in nftables. iptables before version 1.8 has no variants.
func (f *firewall) nftTool(fam nft.Family) xt.Tool {
	t := xt.Tool{HostNS: f.r.HostNS, Family: fam, Variant: xt.NFT}
	if t.Find() != nil {
		t.Variant = xt.Default
	}
	return t
}

// part returns the part of table filter that contains rules of this plugin or of the reference plugin.
func part() xt.Part {
	return xt.Part{Table: filter, Chains: []string{"FORWARD", forwardChain, stage1, stage2}}
}

// addRules adds the rules for the attachment's addresses of one family.
func (f *firewall) addRules(tool xt.Tool) error {
	// A program that fails may have applied its changes, for example if it was killed.
	f.r.Undo.Push("delete rules of "+f.r.Attachment().String(), func() error { return f.deleteRules(nil) })
	return tool.Change(part(), "add rules of "+f.r.Attachment().String(), func(table xt.Table) (string, error) {
		return xt.Script(filter, f.additions(table, f.addrsOf(tool.Family))...), nil
	})
}

// addrsOf returns the attachment's addresses of one family.
func (f *firewall) addrsOf(fam nft.Family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(f.addrs), func(a netip.Addr) bool { return nft.FamilyOf(a) != fam })
}

// additions returns the lines that add the missing rules and markers for the addresses, and delete the
// attachment's rules for other addresses.
func (f *firewall) additions(table xt.Table, addrs []netip.Addr) []string {
	lines, rules := f.missingLines(table, addrs), table.Rules
	isMarkerOf := func(r xt.Rule, a netip.Addr) bool { return f.isOwn(r.Comment) && r.Source == host(a) }
	former := xt.Where(rules, func(r xt.Rule) bool {
		return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return isMarkerOf(r, a) })
	})
	lines = append(lines, xt.Deletions(ownRules(former, f.isOwn, nil))...)
	for _, a := range addrs {
		if !slices.ContainsFunc(rules, func(r xt.Rule) bool { return isMarkerOf(r, a) }) {
			lines = append(lines, fmt.Sprintf("-A %s -s %s %s", forwardChain, host(a), comment(marker(f.r.Attachment()))))
		}
	}
	return lines
}

// missingLines returns the lines that add the missing chains, jumps, and rules for the addresses, but no markers.
func (f *firewall) missingLines(table xt.Table, addrs []netip.Addr) []string {
	lines := f.jumps(table)
	for _, a := range addrs {
		for _, matches := range acceptMatches(a) {
			if !slices.ContainsFunc(table.Rules, func(r xt.Rule) bool { return isAccept(r) && r.Matches == matches }) {
				lines = append(lines, fmt.Sprintf("-A %s %s -j ACCEPT", forwardChain, matches))
			}
		}
	}
	return lines
}

// jumps returns the lines that add the missing shared chains and the jumps to them. The jump to
// CNI-FORWARD follows the jump to CNI-ISOLATION-STAGE-1, because an ACCEPT in CNI-FORWARD ends the
// evaluation of the rules.
func (f *firewall) jumps(table xt.Table) []string {
	lines := table.NewChains(forwardChain, f.conf.adminChain)
	if jumpAt(table.Rules, "FORWARD", forwardChain) == 0 {
		lines = append(lines, fmt.Sprintf("-I FORWARD %d %s -j %s", 1+jumpAt(table.Rules, "FORWARD", stage1), comment(policyPrefix), forwardChain))
	}
	if jumpAt(table.Rules, forwardChain, f.conf.adminChain) == 0 {
		lines = append(lines, fmt.Sprintf("-I %s 1 %s -j %s", forwardChain, comment("CNI firewall plugin admin overrides"), f.conf.adminChain))
	}
	return lines
}

// comment returns a match with a comment.
func comment(text string) string { return "-m comment --comment " + xt.Quote(text) }

// jumpAt returns the position of the first unconditional jump between two chains, where 1 is the first
// rule. It returns 0 if there is none.
func jumpAt(rules []xt.Rule, from, to string) int {
	at := 0
	for _, r := range rules {
		if r.Chain != from {
			continue
		}
		at++
		if r.Jump == to && r.Matches == "" {
			return at
		}
	}
	return 0
}

// host returns the prefix that contains only the address.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// acceptMatches returns the matches of the reference plugin's rules for an address, as iptables prints them.
func acceptMatches(a netip.Addr) []string {
	return []string{fmt.Sprintf("-d %s -m conntrack --ctstate RELATED,ESTABLISHED", host(a)), fmt.Sprintf("-s %s", host(a))}
}

// isAccept reports whether the rule can be the reference plugin's rule for an address.
func isAccept(r xt.Rule) bool {
	return r.Chain == forwardChain && r.Comment == "" && r.Jump == "ACCEPT"
}

// marker returns the comment of the attachment's markers.
func marker(a types.Attachment) string { return markerPrefix + nft.Owner(a) }

// isOwn reports whether a marker with the comment belongs to the attachment.
func (f *firewall) isOwn(comment string) bool { return comment == marker(f.r.Attachment()) }

// isMarker reports whether the rule is a marker of any attachment. The source of a marker is the address.
func isMarker(r xt.Rule) bool {
	return r.Chain == forwardChain && r.Jump == "" && r.Source.IsValid() && strings.HasPrefix(r.Comment, markerPrefix)
}

// ownRules returns the markers for which match returns true, the rules of the markers' addresses, and the rules of the
// unmarked addresses. It omits the rules of an address that is also in a marker for which match returns false.
func ownRules(rules []xt.Rule, match func(comment string) bool, unmarked []netip.Addr) []xt.Rule {
	isOwn := func(r xt.Rule) bool { return isMarker(r) && match(r.Comment) }
	isOther := func(r xt.Rule) bool { return isMarker(r) && !match(r.Comment) }
	stale := map[string]bool{} // by the matches of the rule
	note := func(a netip.Addr, isStale bool) {
		for _, matches := range acceptMatches(a) {
			stale[matches] = isStale
		}
	}
	for _, a := range unmarked {
		note(a, true)
	}
	for _, r := range xt.Where(rules, isOwn) {
		note(r.Source.Addr(), true)
	}
	for _, r := range xt.Where(rules, isOther) {
		note(r.Source.Addr(), false)
	}
	return xt.Where(rules, func(r xt.Rule) bool { return isAccept(r) && stale[r.Matches] || isOwn(r) })
}

// deleteSelected deletes the selected rules of these chains of table filter. It runs programs only for a legacy table.
func (f *firewall) deleteSelected(description string, selectRules func(rules []xt.Rule) []xt.Rule, chains ...string) error {
	return xt.Delete(f.r.HostNS, description, []xt.Cleanup{{
		Tables: xt.Tables(filter),
		Chains: chains,
		Select: func(rules []xt.Rule) xt.Selection { return xt.Selection{Rules: selectRules(rules)} },
	}})
}

// deleteRules deletes the attachment's rules in iptables, and the rules of the unmarked addresses.
func (f *firewall) deleteRules(unmarked []netip.Addr) error {
	return f.deleteSelected("delete rules of "+f.r.Attachment().String(), func(rules []xt.Rule) []xt.Rule {
		return ownRules(rules, f.isOwn, unmarked)
	}, forwardChain)
}

// gcRules deletes the rules of the network's attachments that are not in keep, and the policies of
// bridges that no longer exist.
func (f *firewall) gcRules(keep types.Set) error {
	isStaleOwner := nft.StaleOwner(f.r.Conf.Name, keep)
	isStale := func(comment string) bool {
		owner, isMarker := strings.CutPrefix(comment, markerPrefix)
		return isMarker && isStaleOwner(owner)
	}
	var errs []error
	isGone := func(name string) bool {
		gone, err := f.isGone(name)
		errs = append(errs, err)
		return gone
	}
	err := f.deleteSelected("delete stale rules of network "+f.r.Conf.Name, func(rules []xt.Rule) []xt.Rule {
		return append(ownRules(rules, isStale, nil), xt.Where(rules, func(r xt.Rule) bool { return slices.ContainsFunc(bridgesOf(r), isGone) })...)
	}, stage1, stage2, forwardChain)
	return errors.Join(append(errs, err)...)
}

// checkRules returns an error that names the first of the rules and chains that ADD would add, and their number. It ignores
// markers, which the reference plugin does not add.
func (f *firewall) checkRules(tool xt.Tool, table xt.Table) error {
	lines := f.missingLines(table, f.addrsOf(tool.Family))
	switch len(lines) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("table %s of %s lacks what ADD adds: %s", filter, tool.Name(), lines[0])
	}
	return fmt.Errorf("table %s of %s lacks what ADD adds: %s, and %d more chains and rules", filter, tool.Name(), lines[0], len(lines)-1)
}
