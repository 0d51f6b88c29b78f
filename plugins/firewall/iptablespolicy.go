package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	xt "github.com/plumb-cni/plumb/v2/pkg/iptables"
)

// With iptables, the policies consist of the reference plugin's rules. The first chain passes each packet
// from a bridge with a policy to the second chain, which drops packets to such bridges:
//
//	-A FORWARD -j CNI-ISOLATION-STAGE-1
//	-A CNI-ISOLATION-STAGE-1 -i cni0 -o cni0 -j DROP                            isolated only
//	-A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 -j CNI-ISOLATION-STAGE-2
//	-A CNI-ISOLATION-STAGE-1 -j RETURN
//	-A CNI-ISOLATION-STAGE-2 -o cni0 -j DROP
//	-A CNI-ISOLATION-STAGE-2 -j RETURN
//
// For published ports, plumb adds two rules before these rules. The comment of each rule names its policy.
const (
	stage1 = "CNI-ISOLATION-STAGE-1"
	stage2 = "CNI-ISOLATION-STAGE-2"
)

func policyComment(policy string) string {
	return comment(fmt.Sprintf("%s (ingressPolicy: %s)", policyPrefix, policy))
}

const policyPrefix = "CNI firewall plugin rules"

const bothPolicies = sameBridge + "|" + isolated

// policyRules returns the rules of the bridge's policy. If nf_tables contains that policy, policyRules
// returns rules only if the policy of another bridge is in iptables but not in nf_tables. See setPolicy.
func (f *firewall) policyRules(rules []xt.Rule) []xt.Rule {
	inIPTablesOnly := func(r xt.Rule) bool {
		return slices.ContainsFunc(bridgesOf(r), func(name string) bool { return name != f.device && !slices.Contains(f.nftBridges, name) })
	}
	if f.conf.policy == open || f.device == "" || !f.usesIPTables() && !slices.ContainsFunc(rules, inIPTablesOnly) {
		return nil
	}
	var lines []string
	name, own, both := f.device, policyComment(f.conf.policy), policyComment(bothPolicies)
	if f.conf.published {
		lines = append(lines, fmt.Sprintf("-A %s -o %s -m conntrack --ctstate DNAT --ctdir ORIGINAL %s -j RETURN", stage1, name, own),
			fmt.Sprintf("-A %s -i %s -m conntrack --ctstate DNAT --ctdir REPLY %s -j RETURN", stage1, name, own))
	}
	if f.conf.policy == isolated {
		lines = append(lines, fmt.Sprintf("-A %s -i %s -o %[2]s %s -j DROP", stage1, name, own))
	}
	lines = append(lines, fmt.Sprintf("-A %s -i %s ! -o %[2]s %s -j %s", stage1, name, own, stage2), fmt.Sprintf("-A %s %s -j RETURN", stage1, both),
		fmt.Sprintf("-A %s -o %s %s -j DROP", stage2, name, both), fmt.Sprintf("-A %s %s -j RETURN", stage2, both))
	return xt.Parse(lines...).Rules
}

// differences returns the policyRules that the table lacks, and the rules of the bridge's former policy.
func (f *firewall) differences(want, rules []xt.Rule, same func(a, b xt.Rule) bool) (missing, stale []xt.Rule) {
	isIn := func(rules []xt.Rule, r xt.Rule) bool {
		return slices.ContainsFunc(rules, func(other xt.Rule) bool { return same(other, r) })
	}
	missing = xt.Where(want, func(r xt.Rule) bool { return !isIn(rules, r) })
	return missing, xt.Where(rules, func(r xt.Rule) bool { return f.isAboutDevice(r) && !isIn(want, r) })
}

// policyLines returns the lines that add the bridge's policy and delete its former policy. In REPAIR, it keeps the
// rules of another policy, because the last ADD may have set it, and adds none besides them.
func (f *firewall) policyLines(table xt.Table) (lines []string) {
	rules := table.Rules
	policy := f.policyRules(rules)
	if len(policy) > 0 {
		lines = table.NewChains(stage1, stage2)
		// The jump must come first, because an ACCEPT in CNI-FORWARD ends the evaluation of the rules.
		at, accepts := jumpAt(rules, "FORWARD", stage1), jumpAt(rules, "FORWARD", forwardChain)
		if at > accepts && accepts > 0 {
			lines = append(lines, rulesIn("FORWARD", rules)[at-1].Deletion())
			at = 0
		}
		if at == 0 {
			lines = append(lines, fmt.Sprintf("-I FORWARD 1 %s -j %s", policyComment(bothPolicies), stage1))
		}
	}
	missing, stale := f.differences(policy, rules, isSameRule)
	if f.r.IsRepair() && len(stale) > 0 {
		f.hasOtherPolicy = true
		return lines
	}
	for _, chain := range []string{stage1, stage2} {
		got := rulesIn(chain, rules)
		want := mergeRules(xt.Where(got, func(r xt.Rule) bool { return !slices.Contains(stale, r) }), rulesIn(chain, missing))
		if slices.Equal(got, want) {
			continue
		}
		// The flag -F would also delete a rule that the reference plugin adds in the meantime.
		lines = append(lines, xt.Deletions(got)...)
		for _, r := range want {
			lines = append(lines, r.Addition())
		}
	}
	return lines
}

// mergeRules returns the rules of an isolation chain together with the missing policy rules. It inserts the missing
// rules before the existing policy rules, as the reference plugin does, and sorts all policy rules by rank. The rules
// of other programs keep their places.
func mergeRules(rules, missing []xt.Rule) []xt.Rule {
	first := slices.IndexFunc(rules, isPolicyRule)
	if first < 0 {
		first = len(rules)
	}
	all := slices.Concat(rules[:first], missing, rules[first:])
	sorted := xt.Where(all, isPolicyRule)
	slices.SortStableFunc(sorted, func(a, b xt.Rule) int { return rank(a) - rank(b) })
	for i, r := range all {
		if isPolicyRule(r) {
			all[i], sorted = sorted[0], sorted[1:]
		}
	}
	return all
}

// isPolicyRule reports whether the comment marks a policy rule of plumb or of the reference plugin.
func isPolicyRule(r xt.Rule) bool { return strings.HasPrefix(r.Comment, policyPrefix) }

// rulesIn returns the rules in the chain.
func rulesIn(chain string, rules []xt.Rule) []xt.Rule {
	return xt.Where(rules, func(r xt.Rule) bool { return r.Chain == chain })
}

// rank returns the number by which mergeRules sorts a policy rule. The rules for published ports come first, even if
// the reference plugin has inserted a rule before them.
func rank(r xt.Rule) int {
	switch {
	case strings.Contains(r.Matches, "--ctstate DNAT"):
		return 0
	case r.Matches == "" && r.Jump == "RETURN":
		return 2
	}
	return 1
}

// isSameRule reports whether two rules have the same effect and the same comment.
func isSameRule(a, b xt.Rule) bool { return hasSameEffect(a, b) && a.Comment == b.Comment }

// hasSameEffect reports whether two rules have the same effect. Some comments of the reference plugin differ from
// plumb's.
func hasSameEffect(a, b xt.Rule) bool {
	return a.Chain == b.Chain && a.Matches == b.Matches && a.Jump == b.Jump
}

// bridgesOf returns the names of the bridges in a policy rule, or nil for any other rule.
func bridgesOf(r xt.Rule) []string {
	if r.Chain != stage1 && r.Chain != stage2 || !isPolicyRule(r) {
		return nil
	}
	return slices.DeleteFunc([]string{r.Option("-i"), r.Option("-o")}, func(name string) bool { return name == "" })
}

func (f *firewall) isAboutDevice(r xt.Rule) bool { return slices.Contains(bridgesOf(r), f.device) }

// deleteIPTablesPolicy deletes the bridge's policy from iptables if the policy is in nf_tables, except the rules that
// policyRules returns.
func (f *firewall) deleteIPTablesPolicy() error {
	if f.device == "" || f.usesIPTables() {
		return nil
	}
	return f.eachTable(isPolicyRule, func(tool xt.Tool) error {
		return tool.Change(part(), "delete ingress policy of "+f.device, func(table xt.Table) (string, error) {
			return xt.Script(filter, f.policyLines(table)...), nil
		})
	}, stage1, stage2)
}

// stalePolicies returns the lines that delete the policies of bridges that no longer exist.
func (f *firewall) stalePolicies(rules []xt.Rule) ([]string, error) {
	var errs []error
	stale := xt.Where(rules, func(r xt.Rule) bool {
		return slices.ContainsFunc(bridgesOf(r), func(name string) bool {
			gone, err := f.isGone(name)
			errs = append(errs, err)
			return gone
		})
	})
	return xt.Deletions(stale), errors.Join(errs...)
}

// checkPolicyRules returns an error that lists the lines that would correct the rules of the bridge's policy. If the
// policy is in nf_tables, it accepts rules that the reference plugin added for the bridge, which have the same effect.
func (f *firewall) checkPolicyRules(tool xt.Tool, table xt.Table) error {
	var errs []error
	want := f.policyRules(table.Rules)
	missing, stale := f.differences(want, table.Rules, hasSameEffect)
	var lines []string
	if f.usesIPTables() || f.conf.policy == open {
		lines = xt.Deletions(stale)
	}
	for _, r := range missing {
		lines = append(lines, r.Line)
	}
	for _, line := range lines {
		errs = append(errs, fmt.Errorf("table %s of %s differs from ingressPolicy %q: want %s", filter, tool.Name(), f.conf.policy, line))
	}
	if len(want) > 0 && jumpAt(table.Rules, "FORWARD", stage1) == 0 {
		errs = append(errs, fmt.Errorf("chain FORWARD in table %s of %s does not jump to %s", filter, tool.Name(), stage1))
	}
	return errors.Join(errs...)
}
