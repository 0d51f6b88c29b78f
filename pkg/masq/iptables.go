package masq

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// program is the family's iptables.
func program(f nft.Family) iptables.Family {
	if f == nft.IPv6 {
		return iptables.V6
	}
	return iptables.V4
}

// multicast is never masqueraded.
func multicast(f nft.Family) string {
	if f == nft.IPv6 {
		return "ff00::/8"
	}
	return "224.0.0.0/4"
}

// addIPTables runs iptables-restore once a family.
func addIPTables(u *undo.Stack, m Masq, ips []netip.Prefix) error {
	for _, f := range families() {
		var of []netip.Prefix
		for _, ip := range ips {
			if family(ip.Addr()) == f {
				of = append(of, ip)
			}
		}
		if len(of) == 0 {
			continue
		}
		if err := addFamily(iptables.Tool{Node: m.Node, Family: program(f)}, m.Owner, of); err != nil {
			return fmt.Errorf("masquerade: %w", err)
		}
		u.Push("delete "+m.String(), func() error { return Del(m, of) })
	}
	return nil
}

// addFamily takes it that the container has no chain yet. When it has one, because it
// has another interface in the network or was not deleted properly, the script is
// made to fit what is there.
func addFamily(tool iptables.Tool, owner types.Attachment, ips []netip.Prefix) error {
	what := "add masquerade of " + list(ips)
	err := tool.Restore(what, script(addition(owner, ips, nil)))
	if !errors.Is(err, iptables.ErrRefused) {
		return err
	}
	saved, serr := tool.Save(natTable)
	if serr != nil {
		return errors.Join(err, serr)
	}
	return tool.Restore(what, script(addition(owner, ips, parse(saved))))
}

// script is the lines as a transaction on the table nat.
func script(lines []string) string {
	return "*" + natTable + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
}

// addition is the lines that give the owner its rules in a table that has the rules
// given. The ACCEPTs go to the head of the chain: with a second subnet behind
// MASQUERADE, what stays within that subnet would be masqueraded.
func addition(owner types.Attachment, ips []netip.Prefix, have []rule) []string {
	name := chain(owner.Network, owner.ContainerID)
	text := iptables.Quote(comment(owner.Network, owner.ContainerID))
	own, _ := stale(have, owner, append([]netip.Prefix{}, ips...))
	lines := deletions(own)
	exists, masquerades := false, false
	for _, r := range have {
		exists = exists || r.chain == name
		masquerades = masquerades || r.chain == name && r.jump == "MASQUERADE"
	}
	if !exists {
		lines = append(lines, "-N "+name)
	}
	for _, ip := range ips {
		lines = append(lines, fmt.Sprintf("-I %s 1 -s %s -d %s -m comment --comment %s -j ACCEPT",
			name, ip.Addr(), ip.Masked(), iptables.Quote(ownComment(owner))))
	}
	if !masquerades {
		lines = append(lines, fmt.Sprintf("-A %s ! -d %s -m comment --comment %s -j MASQUERADE",
			name, multicast(family(ips[0].Addr())), text))
	}
	for _, ip := range ips {
		lines = append(lines, fmt.Sprintf("-A %s -s %s -m comment --comment %s -j %s", postrouting, ip.Addr(), text, name))
	}
	return lines
}

// deletions is the lines that delete rules which iptables-save printed.
func deletions(rules []rule) []string {
	var lines []string
	for _, r := range rules {
		lines = append(lines, "-D"+strings.TrimPrefix(r.line, "-A"))
	}
	return lines
}

// removals is the lines that delete a chain and all jumps to it.
func removals(rules []rule, name string) []string {
	var lines []string
	for _, r := range rules {
		if r.jump == name {
			lines = append(lines, deletions([]rule{r})...)
		}
	}
	return append(lines, "-F "+name, "-X "+name)
}

// parse reads what iptables-save printed of a table. A chain without rules is a rule
// without anything but the chain.
func parse(saved string) []rule {
	var rules []rule
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, ":"); ok {
			name, _, _ = strings.Cut(name, " ")
			rules = append(rules, rule{chain: name})
		}
		if strings.HasPrefix(line, "-A ") {
			rules = append(rules, parseRule(line))
		}
	}
	return rules
}

func parseRule(line string) rule {
	r := rule{line: line}
	words := iptables.Words(line)
	for i := 0; i+1 < len(words); i++ {
		value := words[i+1]
		switch words[i] {
		case "-A":
			r.chain = value
		case "-s":
			r.saddr = parsePrefix(value)
		case "--comment":
			r.comment = value
		case "-j", "-g":
			r.jump = value
		default:
			continue
		}
		i++
	}
	return r
}

// parsePrefix reads a prefix, or an address, which is a prefix of its whole length.
func parsePrefix(s string) netip.Prefix {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen())
	}
	p, _ := netip.ParsePrefix(s)
	return p
}

// legacy lists the tables before nf_tables that the namespace has, with their rules.
func legacy(node *ns.Handle, visit func(iptables.Tool, []rule) error) error {
	return iptables.EachLegacy(node, natTable, func(tool iptables.Tool, saved string) error { return visit(tool, parse(saved)) })
}

// delLegacy is delXTables for the older tables.
func delLegacy(m Masq, ips []netip.Prefix) error {
	name := chain(m.Owner.Network, m.Owner.ContainerID)
	return legacy(m.Node, func(tool iptables.Tool, rules []rule) error {
		if !has(rules, name) {
			return nil
		}
		own, all := stale(rules, m.Owner, ips)
		lines := deletions(own)
		if all {
			lines = append(lines, "-F "+name, "-X "+name)
		}
		if len(lines) == 0 {
			return nil
		}
		return tool.Restore("delete "+m.String(), script(lines))
	})
}

// gcLegacy is gcXTables for the older tables.
func gcLegacy(m Masq, keep types.Set) error {
	return legacy(m.Node, func(tool iptables.Tool, rules []rule) error {
		var lines []string
		for name := range staleChains(rules, m.Owner.Network, keep) {
			lines = append(lines, removals(rules, name)...)
		}
		if len(lines) == 0 {
			return nil
		}
		return tool.Restore("delete stale masquerade of network "+m.Owner.Network, script(lines))
	})
}

func has(rules []rule, name string) bool {
	for _, r := range rules {
		if r.chain == name {
			return true
		}
	}
	return false
}

// uncovered lists the addresses that are not masqueraded in another way either: by
// iptables, or by the reference, as before an upgrade of a running node. c nil: the
// kernel has no nf_tables.
func uncovered(c *nft.Conn, m Masq, ips []netip.Prefix) ([]netip.Prefix, error) {
	rules := map[nft.Family][]rule{}
	err := legacy(m.Node, func(tool iptables.Tool, found []rule) error {
		for _, f := range families() {
			if program(f) == tool.Family {
				rules[f] = found
			}
		}
		return nil
	})
	var bare []netip.Prefix
	for _, ip := range ips {
		f := family(ip.Addr())
		covered := covers(rules[f], m.Owner, ip)
		if !covered && c != nil {
			found, ferr := containerRules(c, nft.Table{Family: f, Name: natTable}, m.Owner)
			reference, rerr := referenceCovers(c, m, ip)
			covered = reference || covers(found, m.Owner, ip)
			err = errors.Join(err, ferr, rerr)
		}
		if !covered {
			bare = append(bare, ip)
		}
	}
	return bare, err
}

// missingRules is what Check says of an address under the iptables backend.
func missingRules(m Masq, ip netip.Prefix) error {
	return fmt.Errorf("%s for %s is missing: chain %s of table %s of %s, or what leads there from %s, is gone or lacks rules",
		m, ip.Addr(), chain(m.Owner.Network, m.Owner.ContainerID), natTable, program(family(ip.Addr())), postrouting)
}

// statusIPTables looks for the programs.
func statusIPTables(node *ns.Handle) error {
	return iptables.Tool{Node: node, Family: iptables.V4}.Find()
}
