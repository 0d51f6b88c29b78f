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

// acceptPart returns the part of table filter that contains the rules of addresses, and their markers.
func acceptPart() xt.Part { return xt.Part{Table: filter, Chains: []string{forwardChain}} }

// addRules adds the rules for the attachment's addresses of one family.
func (f *firewall) addRules(tool xt.Tool) error {
	what := "rules of " + f.r.Attachment().String()
	// A program that fails may have applied its changes, for example if it was killed.
	f.r.Undo.Push("delete "+what, func() error {
		return tool.Change(acceptPart(), "delete "+what, func(table xt.Table) (string, error) {
			return xt.Script(filter, deletions(table.Rules, f.isOwn, nil)...), nil
		})
	})
	return tool.Change(part(), "add "+what, func(table xt.Table) (string, error) {
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
	lines = append(lines, deletions(former, f.isOwn, nil)...)
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
		for _, line := range acceptRules(a) {
			if !hasLine(table.Rules, line) {
				lines = append(lines, line)
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

func hasLine(rules []xt.Rule, line string) bool {
	return slices.ContainsFunc(rules, func(r xt.Rule) bool { return r.Line == line })
}

// host returns the prefix that contains only the address.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// acceptRules returns the reference plugin's rules for an address, as iptables-save prints them.
func acceptRules(a netip.Addr) []string {
	return []string{
		fmt.Sprintf("-A %s -d %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", forwardChain, host(a)),
		fmt.Sprintf("-A %s -s %s -j ACCEPT", forwardChain, host(a)),
	}
}

// marker returns the comment of the attachment's markers.
func marker(a types.Attachment) string { return markerPrefix + nft.Owner(a) }

// isOwn reports whether a marker with the comment belongs to the attachment.
func (f *firewall) isOwn(comment string) bool { return comment == marker(f.r.Attachment()) }

// isMarker reports whether the rule is a marker of any attachment. The source of a marker is the address.
func isMarker(r xt.Rule) bool {
	return r.Chain == forwardChain && r.Jump == "" && r.Source.IsValid() && strings.HasPrefix(r.Comment, markerPrefix)
}

// deletions returns the lines that delete the markers for which match returns true, the rules of the
// markers' addresses, and the rules of the unmarked addresses. The rules of an address stay if a marker
// for which match returns false names the address as well.
func deletions(rules []xt.Rule, match func(comment string) bool, unmarked []netip.Addr) []string {
	isOwn := func(r xt.Rule) bool { return isMarker(r) && match(r.Comment) }
	isOther := func(r xt.Rule) bool { return isMarker(r) && !match(r.Comment) }
	stale := map[string]bool{} // by line
	note := func(a netip.Addr, isStale bool) {
		for _, line := range acceptRules(a) {
			stale[line] = isStale
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
	return xt.Deletions(xt.Where(rules, func(r xt.Rule) bool { return stale[r.Line] || isOwn(r) }))
}

// eachTable calls visit for each legacy table filter, and for each nftables table filter in whose chains match
// returns true for a rule. It runs no program, so that a rule of another program does not require one.
func (f *firewall) eachTable(match func(xt.Rule) bool, visit func(tool xt.Tool) error, chains ...string) error {
	var errs []error
	for _, fam := range nft.Families() {
		if f.c != nil {
			rules, err := xt.ReadNFT(f.c, nft.Table{Family: fam, Name: filter}, chains...)
			if slices.ContainsFunc(rules, match) {
				err = visit(f.nftTool(fam))
			}
			errs = append(errs, err)
		}
		legacy, found, err := xt.LegacyTool(f.r.HostNS, fam, filter)
		if found {
			err = visit(legacy)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// delRules deletes the attachment's rules in iptables.
func (f *firewall) delRules() error {
	concerns := func(r xt.Rule) bool { return f.isOwn(r.Comment) || slices.ContainsFunc(f.addrs, r.Mentions) }
	return f.eachTable(concerns, func(tool xt.Tool) error {
		return tool.Change(acceptPart(), "delete rules of "+f.r.Attachment().String(), func(table xt.Table) (string, error) {
			return xt.Script(filter, deletions(table.Rules, f.isOwn, f.addrsOf(tool.Family))...), nil
		})
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
	concerns := func(r xt.Rule) bool { return isStale(r.Comment) || isPolicyRule(r) && r.Chain != forwardChain }
	return f.eachTable(concerns, func(tool xt.Tool) error {
		return tool.Change(part(), "delete stale rules of network "+f.r.Conf.Name, func(table xt.Table) (string, error) {
			policies, err := f.stalePolicies(table.Rules)
			return xt.Script(filter, append(deletions(table.Rules, isStale, nil), policies...)...), err
		})
	}, forwardChain, stage1, stage2)
}

// checkRules returns an error that lists what ADD would add, except markers, which the reference plugin does not add.
func (f *firewall) checkRules(tool xt.Tool, table xt.Table) error {
	var errs []error
	for _, line := range f.missingLines(table, f.addrsOf(tool.Family)) {
		errs = append(errs, fmt.Errorf("table %s of %s differs from the table after ADD: want %s", filter, tool.Name(), line))
	}
	return errors.Join(errs...)
}
