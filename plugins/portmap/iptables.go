package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	xt "github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// lockWait is how long ADD waits for others who change the tables.
const lockWait = 10 * time.Second

// tool is the family's programs.
func (p *portMap) tool(f nft.Family) xt.Tool {
	if f == nft.IPv6 {
		return xt.Tool{Node: p.r.Node, Family: xt.V6}
	}
	return xt.Tool{Node: p.r.Node, Family: xt.V4}
}

// addIPTables runs iptables-save and iptables-restore once a family, and sets
// route_localnet, which stays.
func (p *portMap) addIPTables() error {
	for _, ip := range p.ips {
		tool := p.tool(familyOf(ip.Addr()))
		if err := tool.Find(); err != nil {
			return fmt.Errorf("port map: %w", err)
		}
		err := xt.Exclusive(p.r.Node, lockWait, func() error { return p.addFamily(tool, ip) })
		if err != nil {
			return fmt.Errorf("port map: %w", err)
		}
		p.r.Undo.Push("delete "+p.String(), func() error {
			_, err := p.delRules()
			return err
		})
	}
	return p.ensureLocalnet()
}

// addFamily adds what the table lacks. Programs that do not know our lock may come
// between: then once more.
func (p *portMap) addFamily(tool xt.Tool, ip netip.Prefix) error {
	const attempts = 5
	var err error
	for range attempts {
		saved, serr := tool.Save(xt.NAT)
		if serr != nil {
			return serr
		}
		table := xt.Parse(saved)
		script := xt.Script(xt.NAT, p.additions(table, ip)...)
		err = tool.Restore("add "+p.String(), p.guard(ip)+script)
		if errors.Is(err, xt.ErrRefused) && p.guard(ip) != "" {
			err = errors.Join(p.addGuard(tool), tool.Restore("add "+p.String(), script))
		}
		if !errors.Is(err, xt.ErrRefused) {
			p.warnOfFormer(table.Rules, ip)
			return err
		}
	}
	return types.Coded(types.CodeConfig, err)
}

// The guard of route_localnet (CVE-2020-8558): no packet from the interface is for
// 127/8. All pairs of containers share one.
const guardComment = "CNI portfwd localhost only from this host"

func (p *portMap) guardRule() string {
	dev := p.device
	switch {
	case dev == "":
		return ""
	case strings.HasPrefix(dev, "veth"):
		dev = "veth+"
	}
	return fmt.Sprintf("PREROUTING -d 127.0.0.0/8 -i %s -m comment --comment %s -j DROP", dev, xt.Quote(guardComment))
}

// guard is the script that fails when the guard is missing; empty: none is needed.
func (p *portMap) guard(ip netip.Prefix) string {
	rule := p.guardRule()
	if rule == "" || ip.Addr().Is6() {
		return ""
	}
	return xt.Script("raw", "-C "+rule)
}

func (p *portMap) addGuard(tool xt.Tool) error {
	err := tool.Restore("look for the guard of localhost", xt.Script("raw", "-C "+p.guardRule()))
	if errors.Is(err, xt.ErrRefused) {
		return tool.Restore("add the guard of localhost", xt.Script("raw", "-A "+p.guardRule()))
	}
	return err
}

// checkGuard is for what we made: the reference has no guard.
func (p *portMap) checkGuard(tool xt.Tool) error {
	err := tool.Restore("look for the guard of localhost", xt.Script("raw", "-C "+p.guardRule()))
	if errors.Is(err, xt.ErrRefused) {
		return fmt.Errorf("table raw of %s has no rule -A %s: what others send to 127.0.0.1 of the node is not kept out", tool.Family, p.guardRule())
	}
	return err
}

// ours are the interfaces that rules of ours in the container's chain are for.
func ours(rules []xt.Rule, chain string) []string {
	var names []string
	for _, r := range rules {
		if name, marked := markedIf(r.Comment); marked && r.Chain == chain {
			names = append(names, name)
		}
	}
	return names
}

// additions are the lines that the table lacks: what all share, each rule once, and
// what is the attachment's. The entries stand before those of others: the newest
// holder of a port has it.
func (p *portMap) additions(have xt.Table, ip netip.Prefix) []string {
	name := chainName(p.owner().Network, p.owner().ContainerID)
	lines := p.sharedAdditions(have)
	for _, r := range ownRules(have.Rules, p.owner(), p.ips).Rules {
		lines = append(lines, r.Deletion())
	}
	if !have.HasChain(name) {
		lines = append(lines, "-N "+name)
	}
	entries := p.portEntries(familyOf(ip.Addr()))
	block := p.ownRules(ip)
	for _, e := range entries {
		block = append(block, fmt.Sprintf("-A %s %s", name, e.rule(markComment(p.owner()))))
	}
	if endsUnmarked(have.Rules, name) { // with rules of the reference: they are to stay apart
		for i, line := range block {
			block[i] = fmt.Sprintf("-I %s %d%s", name, i+1, strings.TrimPrefix(line, "-A "+name))
		}
	}
	lines = append(lines, block...)
	for _, e := range entries {
		lines = append(lines, fmt.Sprintf("-I %s 1 %s -j %s", dnatChain, e.rule(entryComment(p.owner().Network, p.owner().ContainerID)), name))
	}
	return lines
}

// endsUnmarked reports whether nothing tells whose the last rules of the chain are.
func endsUnmarked(rules []xt.Rule, chain string) bool {
	unmarked := false
	for _, r := range rules {
		if r.Chain == chain {
			_, marked := markedIf(r.Comment)
			unmarked = !marked
		}
	}
	return unmarked
}

// sharedAdditions also takes away what a race of others has made twice.
func (p *portMap) sharedAdditions(have xt.Table) []string {
	var lines []string
	for _, name := range p.sharedChains() {
		if !have.HasChain(name) {
			lines = append(lines, "-N "+name)
		}
	}
	for _, rule := range p.sharedRules() {
		line := "-A " + rule.chain + " " + rule.spec
		count := 0
		for _, r := range have.Rules {
			if r.Line == line {
				count++
			}
		}
		for ; count > 1; count-- {
			lines = append(lines, "-D"+strings.TrimPrefix(line, "-A"))
		}
		switch {
		case count == 1:
		case rule.first:
			lines = append(lines, "-I "+rule.chain+" 1 "+rule.spec)
		default:
			lines = append(lines, line)
		}
	}
	return lines
}

// warnOfFormer names the containers whose entries are behind ours now.
func (p *portMap) warnOfFormer(rules []xt.Rule, ip netip.Prefix) {
	for _, m := range p.conf.forFamily(familyOf(ip.Addr())) {
		if holder := p.rival(rules, m); holder != "" {
			p.r.Warn("%s was held by %s, and is taken over", m.text(), holder)
		}
	}
}

// rival is the comment of the first entry of another container that has the mapping's
// port; empty: none. Where both name addresses of the node, and other ones, it is
// no rival.
func (p *portMap) rival(rules []xt.Rule, m mapping) string {
	name := chainName(p.owner().Network, p.owner().ContainerID)
	for _, r := range rules {
		if r.Chain == dnatChain && r.Jump == name && hasPort(r, m) {
			return "" // ours comes first
		}
		if r.Chain == dnatChain && r.Jump != name && hasPort(r, m) && reaches(rules, r.Jump, m) {
			return strings.TrimPrefix(r.Comment, "dnat ")
		}
	}
	return ""
}

// hasPort reports whether an entry is for the port of the mapping.
func hasPort(r xt.Rule, m mapping) bool {
	words := strings.Fields(r.Matches)
	i, k := slices.Index(words, "--dports"), slices.Index(words, "-p")
	if i < 0 || k < 0 || i+1 >= len(words) || k+1 >= len(words) || words[k+1] != m.proto.String() {
		return false
	}
	return slices.Contains(strings.Split(words[i+1], ","), strconv.Itoa(int(m.hostPort)))
}

// reaches reports whether a packet of the mapping is translated by the chain.
func reaches(rules []xt.Rule, chain string, m mapping) bool {
	for _, r := range rules {
		words := strings.Fields(r.Matches)
		i, d := slices.Index(words, "--dport"), slices.Index(words, "-d")
		if r.Chain != chain || r.Jump != "DNAT" || i < 0 || i+1 >= len(words) || words[i+1] != strconv.Itoa(int(m.hostPort)) {
			continue
		}
		if d < 0 || m.everywhere() || words[d+1] == netip.PrefixFrom(m.hostIP, m.hostIP.BitLen()).String() {
			return true
		}
	}
	return false
}

// checkIPTables names what is missing, and who has a port instead.
func (p *portMap) checkIPTables() error {
	var errs []error
	for _, ip := range p.ips {
		tool := p.tool(familyOf(ip.Addr()))
		missing := p.checkTables(tool, ip)
		if missing == nil {
			continue
		}
		// They may be in the older tables, which a look at would make if there were none.
		tool.Variant = xt.Legacy
		used, err := xt.InUse(p.r.Node, tool.Family, xt.NAT)
		if !used || err != nil || tool.Find() != nil || p.checkTables(tool, ip) != nil {
			errs = append(errs, missing)
		}
	}
	return errors.Join(errs...)
}

func (p *portMap) checkTables(tool xt.Tool, ip netip.Prefix) error {
	saved, err := tool.Save(xt.NAT)
	if err != nil {
		return err
	}
	rules := xt.Parse(saved).Rules
	lines := map[string]bool{}
	for _, r := range rules {
		lines[r.Line] = true
	}
	var errs []error
	want := p.ownRules(ip)
	for _, rule := range p.sharedRules() {
		want = append(want, "-A "+rule.chain+" "+rule.spec)
	}
	for _, line := range want {
		if !lines[line] {
			errs = append(errs, fmt.Errorf("table %s of %s has no rule %s", xt.NAT, tool.Family, line))
		}
	}
	name := chainName(p.owner().Network, p.owner().ContainerID)
	if slices.Contains(ours(rules, name), p.owner().IfName) && p.guard(ip) != "" {
		errs = append(errs, p.checkGuard(tool))
	}
	for _, m := range p.conf.forFamily(familyOf(ip.Addr())) {
		if holder := p.rival(rules, m); holder != "" {
			errs = append(errs, fmt.Errorf("%s belongs to %s now", m.text(), holder))
		} else if !slices.ContainsFunc(rules, func(r xt.Rule) bool { return r.Chain == dnatChain && r.Jump == name && hasPort(r, m) }) {
			errs = append(errs, fmt.Errorf("chain %s of %s leads %s nowhere", dnatChain, tool.Family, m.text()))
		}
	}
	return errors.Join(errs...)
}
