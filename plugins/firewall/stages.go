package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	xt "github.com/plumb-cni/plumb/pkg/iptables"
)

// With iptables, the policies consist of the reference plugin's rules. The first chain sends a packet
// from a bridge with a policy to the second chain, which drops it if it leaves through such a bridge:
//
//	-A FORWARD -j CNI-ISOLATION-STAGE-1
//	-A CNI-ISOLATION-STAGE-1 -i cni0 -o cni0 -j DROP                            isolated only
//	-A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 -j CNI-ISOLATION-STAGE-2
//	-A CNI-ISOLATION-STAGE-1 -j RETURN
//	-A CNI-ISOLATION-STAGE-2 -o cni0 -j DROP
//	-A CNI-ISOLATION-STAGE-2 -j RETURN
//
// For published ports, two additional rules of plumb come first. The comment of each rule names its
// policy.
const (
	stage1 = "CNI-ISOLATION-STAGE-1"
	stage2 = "CNI-ISOLATION-STAGE-2"
)

// policyComment returns the match with the comment of a policy's rules.
func policyComment(policy string) string {
	return fmt.Sprintf(`-m comment --comment "%s (ingressPolicy: %s)"`, policyPrefix, policy)
}

const policyPrefix = "CNI firewall plugin rules"

const bothPolicies = sameBridge + "|" + isolated

// A stage consists of one of the two chains and the rules that the bridge needs in it.
type stage struct {
	chain string
	rules []xt.Rule
}

// newStage returns the stage with these rules, which iptables-save prints behind "-A" and the chain.
func newStage(chain string, rules ...string) stage {
	s := stage{chain: chain}
	for _, rule := range rules {
		s.rules = append(s.rules, xt.Parse("-A "+chain+" "+rule).Rules...)
	}
	return s
}

// stages returns the stages of the bridge's policy. If nf_tables contains the policy, they contain rules
// only while the policy of another bridge is in iptables only.
func (f *firewall) stages(rules []xt.Rule) []stage {
	inIPTablesOnly := func(r xt.Rule) bool {
		return slices.ContainsFunc(bridgesOf(r), func(name string) bool { return name != f.device && !slices.Contains(f.inNFT, name) })
	}
	if f.conf.policy == open || f.device == "" || !f.byStages() && !slices.ContainsFunc(rules, inIPTablesOnly) {
		return []stage{newStage(stage1), newStage(stage2)}
	}
	var first []string
	name := f.device
	if f.conf.published {
		first = append(first, fmt.Sprintf("-o %s -m conntrack --ctstate DNAT --ctdir ORIGINAL %s -j RETURN", name, policyComment(f.conf.policy)),
			fmt.Sprintf("-i %s -m conntrack --ctstate DNAT --ctdir REPLY %s -j RETURN", name, policyComment(f.conf.policy)))
	}
	if f.conf.policy == isolated {
		first = append(first, fmt.Sprintf("-i %s -o %[1]s %s -j DROP", name, policyComment(isolated)))
	}
	first = append(first, fmt.Sprintf("-i %s ! -o %[1]s %s -j %s", name, policyComment(f.conf.policy), stage2))
	return []stage{newStage(stage1, first...), newStage(stage2, fmt.Sprintf("-o %s %s -j DROP", name, policyComment(bothPolicies)))}
}

// stageLines returns the lines that add the bridge's policy, and delete its former policy.
func (f *firewall) stageLines(table xt.Table) []string {
	rules := table.Rules
	stages := f.stages(rules)
	var lines []string
	if len(stages[0].rules) > 0 {
		lines = table.NewChains(stage1, stage2)
		// The jump must come first, because an ACCEPT in CNI-FORWARD ends the evaluation of the rules.
		at, accepts := jumpAt(rules, "FORWARD", stage1), jumpAt(rules, "FORWARD", forwardChain)
		if at > accepts && accepts > 0 {
			lines = append(lines, nthRule(rules, "FORWARD", at).Deletion())
			at = 0
		}
		if at == 0 {
			lines = append(lines, fmt.Sprintf("-I FORWARD 1 %s -j %s", policyComment(bothPolicies), stage1))
		}
	}
	for _, s := range stages {
		lines = append(append(lines, s.moves(rules)...), s.lines(rules, f.isAboutDevice, isSame)...)
		isLast := func(r xt.Rule) bool { return r.Chain == s.chain && r.Matches == "" && r.Jump == "RETURN" }
		if len(s.rules) > 0 && !slices.ContainsFunc(rules, isLast) {
			lines = append(lines, fmt.Sprintf("-A %s %s -j RETURN", s.chain, policyComment(bothPolicies)))
		}
	}
	return lines
}

// nthRule returns the n-th rule of a chain, where 1 is the first.
func nthRule(rules []xt.Rule, chain string, n int) xt.Rule {
	inChain := slices.DeleteFunc(slices.Clone(rules), func(r xt.Rule) bool { return r.Chain != chain })
	return inChain[n-1]
}

// lines returns the lines that add the missing rules of the stage, and delete other rules for which
// match returns true. New rules come first, as with the reference plugin, but after the rules for
// published ports.
func (s stage) lines(rules []xt.Rule, match func(xt.Rule) bool, same func(a, b xt.Rule) bool) (lines []string) {
	isIn := func(rules []xt.Rule, r xt.Rule) bool {
		return slices.ContainsFunc(rules, func(other xt.Rule) bool { return same(other, r) })
	}
	position := 1
	for _, r := range rules {
		switch {
		case r.Chain != s.chain:
		case match(r) && !isIn(s.rules, r):
			lines = append(lines, r.Deletion())
		case isForPublished(r):
			position++
		}
	}
	for _, r := range slices.Backward(s.rules) {
		if isIn(rules, r) {
			continue
		}
		if isForPublished(r) {
			position = 1
		}
		lines = append(lines, r.Insertion(position))
	}
	return lines
}

// moves returns the lines that move the rules for published ports before rules that the reference
// plugin has inserted.
func (s stage) moves(rules []xt.Rule) (lines []string) {
	position, isBehind := 1, false
	for _, r := range rules {
		switch {
		case r.Chain != s.chain:
		case !isForPublished(r):
			isBehind = true
		case isBehind:
			lines = append(lines, r.Deletion(), r.Insertion(position))
			position++
		default:
			position++
		}
	}
	return lines
}

// isSame reports whether two rules have the same effect and the same comment.
func isSame(a, b xt.Rule) bool { return doesSame(a, b) && a.Comment == b.Comment }

// doesSame reports whether two rules have the same effect. Some comments of the reference plugin differ
// from plumb's.
func doesSame(a, b xt.Rule) bool {
	return a.Chain == b.Chain && a.Matches == b.Matches && a.Jump == b.Jump
}

// isForPublished reports whether the rule is for published ports.
func isForPublished(r xt.Rule) bool { return strings.Contains(r.Matches, "--ctstate DNAT") }

// bridgesOf returns the bridges that a rule names if it is a rule of a policy.
func bridgesOf(r xt.Rule) (names []string) {
	words := xt.Words(r.Line)
	for i := range len(words) - 1 {
		if words[i] == "-i" || words[i] == "-o" {
			names = append(names, words[i+1])
		}
	}
	if !strings.HasPrefix(r.Comment, policyPrefix) {
		return nil
	}
	return names
}

// isAboutDevice reports whether the rule belongs to the policy of the device.
func (f *firewall) isAboutDevice(r xt.Rule) bool { return slices.Contains(bridgesOf(r), f.device) }

// clearStages deletes the bridge's policy from iptables if nf_tables contains it, as far as stages does
// not return its rules.
func (f *firewall) clearStages() error {
	if f.device == "" || f.byStages() {
		return nil
	}
	return f.eachTable(stage1, func(tool xt.Tool) error {
		return tool.Change(filter, "delete ingress policy of "+f.device, func(table xt.Table) (string, error) {
			return xt.Script(filter, f.stageLines(table)...), nil
		})
	})
}

// gonePolicies returns the lines that delete the policies of bridges that do not exist anymore.
func (f *firewall) gonePolicies(rules []xt.Rule) (lines []string, err error) {
	var errs []error
	for _, chain := range []string{stage1, stage2} {
		lines = append(lines, stage{chain: chain}.lines(rules, func(r xt.Rule) bool {
			for _, name := range bridgesOf(r) {
				gone, err := f.isGone(name)
				if errs = append(errs, err); gone {
					return true
				}
			}
			return false
		}, isSame)...)
	}
	return lines, errors.Join(errs...)
}

// checkStages returns an error that lists the lines that would correct the rules of the bridge's policy.
func (f *firewall) checkStages(tool xt.Tool, rules []xt.Rule) error {
	var errs []error
	for _, s := range f.stages(rules) {
		for _, line := range s.lines(rules, f.isAboutDevice, doesSame) {
			errs = append(errs, fmt.Errorf("table %s of %s differs from ingressPolicy %q: want %s", filter, tool.Name(), f.conf.policy, line))
		}
	}
	if f.conf.policy != open && jumpAt(rules, "FORWARD", stage1) == 0 {
		errs = append(errs, fmt.Errorf("chain FORWARD in table %s of %s does not jump to %s", filter, tool.Name(), stage1))
	}
	return errors.Join(errs...)
}
