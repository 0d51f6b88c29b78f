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

// program returns the iptables family for a family of nftables.
func program(f nft.Family) iptables.Family {
	if f == nft.IPv6 {
		return iptables.V6
	}
	return iptables.V4
}

// multicast returns the multicast prefix of a family. Packets to it are never masqueraded.
func multicast(f nft.Family) string {
	if f == nft.IPv6 {
		return "ff00::/8"
	}
	return "224.0.0.0/4"
}

// addIPTables adds the masquerade rules for the addresses and pushes their removal to u. It
// runs iptables-restore once per family.
func addIPTables(u *undo.Stack, m Masq, ips []netip.Prefix) error {
	for _, f := range families() {
		var familyIPs []netip.Prefix
		for _, ip := range ips {
			if family(ip.Addr()) == f {
				familyIPs = append(familyIPs, ip)
			}
		}
		if len(familyIPs) == 0 {
			continue
		}
		if err := addFamily(iptables.Tool{Node: m.Node, Family: program(f)}, m.Owner, familyIPs); err != nil {
			return fmt.Errorf("masquerade: %w", err)
		}
		u.Push("delete "+m.String(), func() error { return Del(m, familyIPs) })
	}
	return nil
}

// addFamily adds the masquerade rules for addresses of one family. The first script assumes
// that the container has no chain yet. If iptables-restore refuses that script, addFamily
// reads the table and runs a script that fits the existing rules: the container may have
// another interface in the network, or an earlier DEL did not succeed.
func addFamily(tool iptables.Tool, owner types.Attachment, ips []netip.Prefix) error {
	description := "add masquerade of " + joinAddresses(ips)
	err := tool.Restore(description, script(addition(owner, ips, nil)))
	if !errors.Is(err, iptables.ErrRefused) {
		return err
	}
	saved, saveErr := tool.Save(natTable)
	if saveErr != nil {
		return errors.Join(err, saveErr)
	}
	return tool.Restore(description, script(addition(owner, ips, parse(saved))))
}

// script returns a script that applies the lines to the table nat in one transaction.
func script(lines []string) string {
	return "*" + natTable + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
}

// addition returns the lines that add the owner's rules to a table with the existing rules.
// It inserts the ACCEPT rules at the head of the chain, before MASQUERADE. Otherwise, for a
// second subnet, packets that stay within that subnet would be masqueraded.
func addition(owner types.Attachment, ips []netip.Prefix, existing []rule) []string {
	name := chain(owner.Network, owner.ContainerID)
	text := iptables.Quote(comment(owner.Network, owner.ContainerID))
	own, _ := stale(existing, owner, append([]netip.Prefix{}, ips...))
	lines := deletions(own)
	chainExists, hasMasquerade := false, false
	for _, r := range existing {
		chainExists = chainExists || r.chain == name
		hasMasquerade = hasMasquerade || r.chain == name && r.jump == "MASQUERADE"
	}
	if !chainExists {
		lines = append(lines, "-N "+name)
	}
	for _, ip := range ips {
		lines = append(lines, fmt.Sprintf("-I %s 1 -s %s -d %s -m comment --comment %s -j ACCEPT",
			name, ip.Addr(), ip.Masked(), iptables.Quote(ownComment(owner))))
	}
	if !hasMasquerade {
		lines = append(lines, fmt.Sprintf("-A %s ! -d %s -m comment --comment %s -j MASQUERADE",
			name, multicast(family(ips[0].Addr())), text))
	}
	for _, ip := range ips {
		lines = append(lines, fmt.Sprintf("-A %s -s %s -m comment --comment %s -j %s", postrouting, ip.Addr(), text, name))
	}
	return lines
}

// deletions returns the lines that delete rules. The rules must come from iptables-save.
func deletions(rules []rule) []string {
	var lines []string
	for _, r := range rules {
		lines = append(lines, "-D"+strings.TrimPrefix(r.line, "-A"))
	}
	return lines
}

// chainDeletion returns the lines that delete the chain of that name and all jumps to it.
func chainDeletion(rules []rule, name string) []string {
	var lines []string
	for _, r := range rules {
		if r.jump == name {
			lines = append(lines, deletions([]rule{r})...)
		}
	}
	return append(lines, "-F "+name, "-X "+name)
}

// parse returns the rules of a table that iptables-save printed. For each chain, it also
// returns a rule in which only the field chain is set, so that chains without rules are known.
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

// parseRule returns the rule of a line that begins with "-A".
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

// parsePrefix returns the prefix of a text. An address is a prefix of full length. If the text
// is neither, the prefix is invalid.
func parsePrefix(s string) netip.Prefix {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen())
	}
	p, _ := netip.ParsePrefix(s)
	return p
}

// eachLegacy calls visit once per family that has a legacy table nat (see
// iptables.EachLegacy), with the rules of the table.
func eachLegacy(node *ns.Handle, visit func(iptables.Tool, []rule) error) error {
	return iptables.EachLegacy(node, natTable, func(tool iptables.Tool, saved string) error { return visit(tool, parse(saved)) })
}

// delLegacy deletes the owner's rules in the legacy tables, as delXTables does in nf_tables.
func delLegacy(m Masq, ips []netip.Prefix) error {
	name := chain(m.Owner.Network, m.Owner.ContainerID)
	return eachLegacy(m.Node, func(tool iptables.Tool, rules []rule) error {
		if !hasChain(rules, name) {
			return nil
		}
		own, chainUnused := stale(rules, m.Owner, ips)
		lines := deletions(own)
		if chainUnused {
			lines = append(lines, "-F "+name, "-X "+name)
		}
		if len(lines) == 0 {
			return nil
		}
		return tool.Restore("delete "+m.String(), script(lines))
	})
}

// gcLegacy deletes stale chains in the legacy tables, as gcXTables does in nf_tables.
func gcLegacy(m Masq, keep types.Set) error {
	return eachLegacy(m.Node, func(tool iptables.Tool, rules []rule) error {
		var lines []string
		for name := range staleChains(rules, m.Owner.Network, keep) {
			lines = append(lines, chainDeletion(rules, name)...)
		}
		if len(lines) == 0 {
			return nil
		}
		return tool.Restore("delete stale masquerade of network "+m.Owner.Network, script(lines))
	})
}

// hasChain reports whether the table of the rules has a chain of that name.
func hasChain(rules []rule, name string) bool {
	for _, r := range rules {
		if r.chain == name {
			return true
		}
	}
	return false
}

// uncovered returns the addresses that neither iptables rules nor the nftables rules of the
// reference plugin masquerade. Such rules exist on a node that was upgraded to plumb while
// containers ran. c is nil if the kernel has no nf_tables.
func uncovered(c *nft.Conn, m Masq, ips []netip.Prefix) ([]netip.Prefix, error) {
	rules := map[nft.Family][]rule{}
	err := eachLegacy(m.Node, func(tool iptables.Tool, found []rule) error {
		for _, f := range families() {
			if program(f) == tool.Family {
				rules[f] = found
			}
		}
		return nil
	})
	var missing []netip.Prefix
	for _, ip := range ips {
		f := family(ip.Addr())
		covered := covers(rules[f], m.Owner, ip)
		if !covered && c != nil {
			found, rulesErr := containerRules(c, nft.Table{Family: f, Name: natTable}, m.Owner)
			byReference, referenceErr := referenceCovers(c, m, ip)
			covered = byReference || covers(found, m.Owner, ip)
			err = errors.Join(err, rulesErr, referenceErr)
		}
		if !covered {
			missing = append(missing, ip)
		}
	}
	return missing, err
}

// missingRules returns the error of Check for an address that the iptables backend does not
// masquerade.
func missingRules(m Masq, ip netip.Prefix) error {
	return fmt.Errorf("%s for %s is missing: chain %s of table %s of %s, its rules, or the jump to it from %s do not exist",
		m, ip.Addr(), chain(m.Owner.Network, m.Owner.ContainerID), natTable, program(family(ip.Addr())), postrouting)
}

// statusIPTables returns an error if the iptables programs are not installed.
func statusIPTables(node *ns.Handle) error {
	return iptables.Tool{Node: node, Family: iptables.V4}.Find()
}
