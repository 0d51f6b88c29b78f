package main

import (
	"errors"
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

func (p *portMap) tool(f nft.Family) iptables.Tool {
	return iptables.Tool{HostNS: p.r.HostNS, Family: f}
}

// holders returns the entries of table nat, and the chains of containers with an entry for a host port of the attachment.
func (p *portMap) holders(f nft.Family) iptables.Part {
	mappings := p.conf.mappingsOf(f)
	return iptables.Part{Table: iptables.NAT, Chains: []string{dnatChain}, Follow: func(r iptables.Rule) bool {
		return r.Chain == dnatChain && slices.ContainsFunc(mappings, func(m mapping) bool { return matchesPort(r, m) })
	}}
}

// part returns holders together with the chains in which the attachment has rules.
func (p *portMap) part(f nft.Family) iptables.Part {
	part := p.holders(f)
	part.Chains = append(part.Chains, chainName(p.owner()))
	for _, line := range p.sharedRules() {
		part.Chains = append(part.Chains, strings.Fields(line)[1])
	}
	return part
}

// addIPTables adds the rules and pushes their deletion. It reads the rules and runs
// iptables-restore once per family. REPAIR skips a family whose rules are complete.
func (p *portMap) addIPTables() error {
	if p.conf.onConflict != "" {
		c, err := nft.OpenIfSupported(p.r.HostNS)
		if err == nil {
			err = p.checkConflicts(c, true)
		}
		if err != nil {
			return err
		}
	}
	for _, ip := range p.ips {
		if p.r.IsRepair() && p.checkFamily(ip) == nil {
			continue
		}
		if err := p.addFamily(p.tool(nft.FamilyOf(ip.Addr())), ip); err != nil {
			return err
		}
	}
	return nil
}

// addFamily adds the missing rules for one address. iptables-restore rejects the script if guardRule is missing, and in that
// case the next attempt adds guardRule first. The undo, which comes first because a program that fails may have applied its
// changes, restores the replaced rules of the container.
func (p *portMap) addFamily(tool iptables.Tool, ip netip.Prefix) error {
	var before iptables.Table
	attempt := 0
	p.r.Undo.Push("delete "+p.String(), func() error {
		if attempt == 0 {
			return nil
		}
		return tool.Change(p.part(tool.Family), "delete "+p.String(), func(table iptables.Table) (string, error) {
			return iptables.Script(iptables.NAT, p.removals(table, before, ip)...), nil
		})
	})
	err := tool.Change(p.part(tool.Family), "add "+p.String(), func(table iptables.Table) (string, error) {
		if p.conf.onConflict == failOnConflict && !p.r.IsRepair() {
			if err := conflictError(p.ruleHolders(table.Rules, nft.FamilyOf(ip.Addr()))); err != nil {
				return "", err
			}
		}
		before, attempt = table, attempt+1
		script := iptables.Script(iptables.NAT, p.additions(table, ip)...)
		if !p.needsGuard(ip) {
			return script, nil
		}
		if attempt > 1 {
			if err := p.addGuard(tool); err != nil {
				return "", err
			}
		}
		return p.guardScript("-C") + script, nil
	})
	if err == nil && !p.r.IsRepair() {
		p.warnOfTakeover(before.Rules, ip)
	}
	return err
}

// guardRule returns the rule that drops packets to 127/8 that the host receives from the interface with
// route_localnet (CVE-2020-8558), as iptables prints it, or "" if there is no such interface. All veth interfaces share
// one rule.
func (p *portMap) guardRule() string {
	dev := p.localnetDevice
	switch {
	case dev == "":
		return ""
	case strings.HasPrefix(dev, "veth"):
		dev = "veth+"
	}
	return fmt.Sprintf("-A PREROUTING -d 127.0.0.0/8 -i %s -m comment --comment %s -j DROP", dev, iptables.Quote(tables.GuardComment))
}

// guardScript returns a script that adds guardRule (-A), or that iptables-restore rejects if it is missing (-C).
func (p *portMap) guardScript(option string) string {
	return iptables.Script("raw", option+strings.TrimPrefix(iptables.Parse(p.guardRule()).Rules[0].Addition(), "-A"))
}

// needsGuard reports whether the address needs guardRule.
func (p *portMap) needsGuard(ip netip.Prefix) bool { return p.localnetDevice != "" && ip.Addr().Is4() }

func (p *portMap) hasGuard(tool iptables.Tool) (bool, error) {
	table, err := tool.Read(iptables.Part{Table: "raw", Chains: []string{"PREROUTING"}})
	return slices.ContainsFunc(table.Rules, func(r iptables.Rule) bool { return r.Line == p.guardRule() }), err
}

func (p *portMap) addGuard(tool iptables.Tool) error {
	found, err := p.hasGuard(tool)
	if found || err != nil {
		return err
	}
	return tool.Restore("add the guard of localhost", p.guardScript("-A"))
}

// additions returns the lines that add the missing shared rules, and the rules of the attachment. The
// entries of the attachment come before all other entries, so that the newest attachment with a host
// port gets its packets. REPAIR keeps the attachment's entries where they are, and adds missing entries after all
// others, so that it takes no packets from another container.
func (p *portMap) additions(table iptables.Table, ip netip.Prefix) []string {
	name, position := chainName(p.owner()), "-I "+dnatChain+" 1"
	replacedRules := p.replacedRules(table.Rules, ip)
	var kept []iptables.Rule
	if p.r.IsRepair() {
		position = "-A " + dnatChain
		kept = iptables.Where(replacedRules, func(r iptables.Rule) bool { return r.Chain == dnatChain })
		replacedRules = iptables.Where(replacedRules, func(r iptables.Rule) bool { return r.Chain != dnatChain })
	}
	lines := append(p.sharedAdditions(table), iptables.Deletions(replacedRules)...)
	lines = append(lines, table.NewChains(name)...)
	if isMark := func(r iptables.Rule) bool { return r.Line == p.guardedMark() }; p.needsGuard(ip) && !slices.ContainsFunc(table.Rules, isMark) {
		lines = append(lines, p.guardedMark())
	}
	lines = append(lines, p.containerRules(ip)...)
	for _, e := range p.entries(nft.FamilyOf(ip.Addr())) {
		if !slices.ContainsFunc(kept, e.isRule) {
			lines = append(lines, fmt.Sprintf("%s %s -j %s", position, e.rule(entryComment(p.owner())), name))
		}
	}
	return lines
}

// replacedRules returns the rules of the table that ADD replaces. They are the container's entries for the
// same ports, and the rules in its chain for the same packets, even if they forward to another address, or for other
// packets to the same address.
func (p *portMap) replacedRules(rules []iptables.Rule, ip netip.Prefix) []iptables.Rule {
	f, name := nft.FamilyOf(ip.Addr()), chainName(p.owner())
	mappings, entries := p.conf.mappingsOf(f), p.entries(f)
	return iptables.Where(rules, func(r iptables.Rule) bool {
		switch {
		case r.Chain == name:
			match := strings.TrimPrefix(r.Matches, "-s "+r.Source.String()+" ")
			return r.Mentions(ip.Addr()) || slices.ContainsFunc(mappings, func(m mapping) bool { return m.match() == match })
		case r.Chain == dnatChain && r.Jump == name:
			return slices.ContainsFunc(entries, func(e entry) bool { return e.isRule(r) })
		}
		return false
	})
}

// removals returns the lines that delete the rules from additions, and restore the replaced rules.
func (p *portMap) removals(table, before iptables.Table, ip netip.Prefix) []string {
	replacedRules := p.replacedRules(table.Rules, ip)
	lines := iptables.Deletions(replacedRules)
	for _, r := range p.replacedRules(before.Rules, ip) {
		if r.Chain == dnatChain {
			lines = append(lines, r.Insertion(1)) // the newest entry comes first
		} else {
			lines = append(lines, r.Addition())
		}
	}
	name := chainName(p.owner())
	isOther := func(r iptables.Rule) bool { // another interface of the container
		return r.Chain == name && r.Line != p.guardedMark() && !slices.Contains(replacedRules, r)
	}
	if !before.HasChain(name) && table.HasChain(name) && !slices.ContainsFunc(table.Rules, isOther) {
		lines = append(lines, "-F "+name, "-X "+name)
	}
	return lines
}

// sharedAdditions returns the lines that add the missing shared chains and rules. They also delete
// duplicates of shared rules, which concurrent calls of other programs can add.
func (p *portMap) sharedAdditions(table iptables.Table) []string {
	lines := table.NewChains(dnatChain)
	for _, line := range p.sharedRules() {
		if chain := strings.Fields(line)[1]; strings.HasPrefix(chain, "CNI-") {
			lines = append(lines, table.NewChains(chain)...)
		}
	}
	for _, line := range p.sharedRules() {
		same := iptables.Where(table.Rules, func(r iptables.Rule) bool { return r.Line == line })
		rest, first := strings.CutPrefix(line, postrouting)
		switch {
		case len(same) > 0:
			lines = append(lines, iptables.Deletions(same[1:])...)
		case first:
			lines = append(lines, "-I POSTROUTING 1 "+rest)
		default:
			lines = append(lines, line)
		}
	}
	return lines
}

// warnOfTakeover prints a warning for each host port that another container held. rules are the rules
// before ADD changed them.
func (p *portMap) warnOfTakeover(rules []iptables.Rule, ip netip.Prefix) {
	for _, m := range p.conf.mappingsOf(nft.FamilyOf(ip.Addr())) {
		if other := p.otherOwner(rules, m); other != "" {
			p.r.Warn("%s was held by %s, and is taken over", m, other)
		}
	}
}

// otherOwner returns the network and container ID of another container that gets the packets of the
// mapping, as in the comment of its entry, or "" if there is none. Two mappings for different addresses
// of the host do not exclude each other.
func (p *portMap) otherOwner(rules []iptables.Rule, m mapping) string {
	name := chainName(p.owner())
	for _, r := range rules {
		switch {
		case r.Chain != dnatChain || !matchesPort(r, m):
		case r.Jump == name: // the first entry counts
			return ""
		case !translates(rules, r.Jump, m):
		case namesContainer(r.Comment, p.owner().ContainerID):
			return ""
		default:
			return strings.TrimPrefix(r.Comment, "dnat ")
		}
	}
	return ""
}

// matchesPort reports whether an entry matches protocol and port of the mapping.
func matchesPort(r iptables.Rule, m mapping) bool {
	ports := strings.Split(r.Option("--dports"), ",")
	return r.Option("-p") == m.proto.String() && slices.Contains(ports, strconv.Itoa(int(m.hostPort)))
}

// translates reports whether a rule in the chain translates packets of the mapping.
func translates(rules []iptables.Rule, chain string, m mapping) bool {
	for _, r := range rules {
		if r.Chain != chain || r.Jump != "DNAT" || r.Option("--dport") != strconv.Itoa(int(m.hostPort)) {
			continue
		}
		address := r.Option("-d")
		if address == "" || m.isAnyAddress() || address == netip.PrefixFrom(m.hostIP, m.hostIP.BitLen()).String() {
			return true
		}
	}
	return false
}

// checkIPTables returns an error that lists the missing rules and the containers that have taken over a
// port.
func (p *portMap) checkIPTables() error {
	var errs []error
	for _, ip := range p.ips {
		errs = append(errs, p.checkFamily(ip))
	}
	return errors.Join(errs...)
}

// checkFamily checks the rules for one address, which can be in a legacy table.
func (p *portMap) checkFamily(ip netip.Prefix) error {
	tool := p.tool(nft.FamilyOf(ip.Addr()))
	tableErr := p.checkTable(tool, ip)
	if tableErr == nil {
		return nil
	}
	legacy, found, err := iptables.LegacyTool(p.r.HostNS, tool.Family, iptables.NAT)
	if !found || err != nil || p.checkTable(legacy, ip) != nil {
		return tableErr
	}
	return nil
}

// checkTable checks one table nat for one address.
func (p *portMap) checkTable(tool iptables.Tool, ip netip.Prefix) error {
	table, err := tool.Read(p.part(tool.Family))
	if err != nil {
		return err
	}
	rules := table.Rules
	lines := map[string]bool{}
	for _, r := range rules {
		lines[r.Line] = true
	}
	var errs []error
	for _, line := range slices.Concat(p.containerRules(ip), p.sharedRules()) {
		if !lines[line] {
			errs = append(errs, fmt.Errorf("table %s of %s has no rule %s", iptables.NAT, tool.Name(), line))
		}
	}
	name := chainName(p.owner())
	if lines[p.guardedMark()] && p.needsGuard(ip) { // the reference plugin adds neither
		found, err := p.hasGuard(tool)
		if !found && err == nil {
			err = fmt.Errorf("table raw of %s has no rule %s: other hosts and containers can reach 127.0.0.1 of the host", tool.Name(), p.guardRule())
		}
		errs = append(errs, err)
	}
	for _, m := range p.conf.mappingsOf(nft.FamilyOf(ip.Addr())) {
		if other := p.otherOwner(rules, m); other != "" {
			errs = append(errs, types.Conflict(m.String(), other).Errorf("%s belongs to %s now", m, other))
		} else if !slices.ContainsFunc(rules, func(r iptables.Rule) bool { return r.Chain == dnatChain && r.Jump == name && matchesPort(r, m) }) {
			errs = append(errs, fmt.Errorf("chain %s of %s has no rule for %s", dnatChain, tool.Name(), m))
		}
	}
	return errors.Join(errs...)
}
