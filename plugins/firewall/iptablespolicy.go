package main

import (
	"errors"
	"slices"
	"strings"

	xt "github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
)

// The reference plugin's policies are rules in iptables. Its first chain passes each packet from a bridge with a policy to
// the second chain, which drops packets to such bridges:
//
//	-A FORWARD -j CNI-ISOLATION-STAGE-1
//	-A CNI-ISOLATION-STAGE-1 -i cni0 -o cni0 -j DROP                            isolated only
//	-A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 -j CNI-ISOLATION-STAGE-2
//	-A CNI-ISOLATION-STAGE-1 -j RETURN
//	-A CNI-ISOLATION-STAGE-2 -o cni0 -j DROP
//	-A CNI-ISOLATION-STAGE-2 -j RETURN
//
// plumb adds no such rules. ADD deletes the rules of its bridge, whose policy it has added to nftables. It also adds the
// other bridges to nftables, because only policies in the same place isolate two bridges from each other.
const (
	stage1       = "CNI-ISOLATION-STAGE-1"
	stage2       = "CNI-ISOLATION-STAGE-2"
	policyPrefix = "CNI firewall plugin rules"
)

// isPolicyRule reports whether the comment marks a rule of the reference plugin.
func isPolicyRule(r xt.Rule) bool { return strings.HasPrefix(r.Comment, policyPrefix) }

// bridgesOf returns the names of the bridges in a policy rule, or nil for any other rule.
func bridgesOf(r xt.Rule) []string {
	if r.Chain != stage1 && r.Chain != stage2 || !isPolicyRule(r) {
		return nil
	}
	return slices.DeleteFunc([]string{r.Option("-i"), r.Option("-o")}, func(name string) bool { return name == "" })
}

func (f *firewall) isAboutDevice(r xt.Rule) bool { return slices.Contains(bridgesOf(r), f.device) }

// policyIn returns the policy of a bridge in the rules.
func policyIn(rules []xt.Rule, name string) string {
	contains := func(chain, matches, jump string) bool {
		return slices.ContainsFunc(rules, func(r xt.Rule) bool { return r.Chain == chain && r.Matches == matches && r.Jump == jump })
	}
	switch {
	case !contains(stage1, "-i "+name+" ! -o "+name, stage2) || !contains(stage2, "-o "+name, "DROP"):
		return open
	case contains(stage1, "-i "+name+" -o "+name, "DROP"):
		return isolated
	}
	return sameBridge
}

// policyRules returns the reference plugin's rules of both families.
func (f *firewall) policyRules() (rules []xt.Rule, err error) {
	for _, t := range xt.Tables(filter) {
		inNFT, legacy, readErr := xt.ReadAll(f.r.HostNS, f.c, t, stage1, stage2)
		rules, err = slices.Concat(rules, inNFT, legacy), errors.Join(err, readErr)
	}
	return rules, err
}

// otherBridges returns the elements of the other bridges with a policy in the rules. It omits deleted bridges, and bridges
// whose policies are already in found. Without a policy of its own, ADD needs no other bridge.
func (f *firewall) otherBridges(rules []xt.Rule, found []nft.SetElement) (all []nft.SetElement, err error) {
	if f.conf.policy == open {
		return nil, nil
	}
	names := []string{f.device}
	for _, e := range found {
		names = append(names, bridgeOf(e.Key))
	}
	for _, r := range rules {
		for _, name := range bridgesOf(r) {
			if slices.Contains(names, name) {
				continue
			}
			names = append(names, name)
			gone, err := f.isGone(name)
			if err != nil {
				return nil, err
			}
			if !gone {
				all = append(all, policyElements(name, policyIn(rules, name), policyPrefix)...)
			}
		}
	}
	return all, nil
}

// deletePolicyRules deletes the rules of the bridge from iptables.
func (f *firewall) deletePolicyRules() error {
	return f.deleteSelected("delete ingress policy of "+f.device, func(rules []xt.Rule) []xt.Rule {
		return xt.Where(rules, f.isAboutDevice)
	}, stage1, stage2)
}

// isOfReference reports whether the reference plugin added the attachment with the same policy. iptables then contains
// its rules of all addresses, without plumb's markers, and of the policy.
func (f *firewall) isOfReference() bool {
	isMarked := func(r xt.Rule) bool { return f.isOwn(r.Comment) }
	return len(f.addrs) > 0 && !f.conf.published && f.checkIPTables(func(tool xt.Tool, table xt.Table) error {
		accepts, isolates := jumpAt(table.Rules, "FORWARD", forwardChain), jumpAt(table.Rules, "FORWARD", stage1)
		if isolates == 0 || isolates > accepts || policyIn(table.Rules, f.device) != f.conf.policy || slices.ContainsFunc(table.Rules, isMarked) {
			return errors.New("the rules differ from the reference plugin's")
		}
		return f.checkRules(tool, table)
	}) == nil
}
