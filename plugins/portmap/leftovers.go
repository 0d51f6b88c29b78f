package main

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"

	xt "github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// What an iptables, or the reference plugin, left for an attachment. Rules of an
// iptables that speaks to nf_tables are seen, and deleted, without a program.

// A rule is what matters of a rule, wherever it is: exactly one of found and text is
// set.
type rule struct {
	chain, comment, jump string
	found                *nft.ListedRule
	text                 *xt.Rule
}

func (r rule) mentions(ips []netip.Prefix) bool {
	for _, ip := range ips {
		if r.found != nil && r.found.Mentions(ip.Addr()) || r.text != nil && r.text.Mentions(ip.Addr()) {
			return true
		}
	}
	return false
}

func (r rule) sameMatches(o rule) bool {
	if r.found != nil && o.found != nil {
		return r.found.SameMatches(*o.found)
	}
	return r.text != nil && o.text != nil && r.text.Matches == o.text.Matches
}

func textRules(rules []xt.Rule) []rule {
	var out []rule
	for i := range rules {
		r := &rules[i]
		if r.Line != "" {
			out = append(out, rule{chain: r.Chain, comment: r.Comment, jump: r.Jump, text: r})
		}
	}
	return out
}

func foundRules(rules []nft.ListedRule) []rule {
	var out []rule
	for i := range rules {
		r := &rules[i]
		out = append(out, rule{chain: r.Chain, comment: r.Comment, jump: r.Jump, found: r})
	}
	return out
}

// staleRules picks the owner's of the rules of its container; all tells that nothing
// is left for others, and the chain is to go too.
//
// In the chain, what stands before a rule that tells an interface is that interface's.
// Rules that no such one follows are the reference's: the owner's, unless the owner
// has rules of ours besides, or they are known to be for another address.
func staleRules(rules []rule, owner types.Attachment, ips []netip.Prefix) (own []rule, all bool) {
	name := chainName(owner.Network, owner.ContainerID)
	var block, marks []rule
	others := 0
	for _, r := range rules {
		if r.chain != name {
			continue
		}
		block = append(block, r)
		ifName, ok := markedIf(r.comment)
		switch {
		case !ok:
			continue
		case ifName == owner.IfName:
			own, marks = append(own, block...), append(marks, r)
		default:
			others += len(block)
		}
		block = nil
	}
	theirs := len(ips) == 0
	for _, r := range block {
		theirs = theirs || r.mentions(ips)
	}
	if len(own) == 0 && theirs {
		own = append(own, block...)
	} else {
		others += len(block)
	}
	return append(own, entriesOf(rules, name, marks, others == 0)...), others == 0
}

// entriesOf picks the entries that lead to the chain: all of them, or one for each mark.
func entriesOf(rules []rule, chain string, marks []rule, all bool) []rule {
	var entries []rule
	for _, r := range rules {
		if r.jump != chain {
			continue
		}
		if all {
			entries = append(entries, r)
			continue
		}
		for i, m := range marks {
			if m.sameMatches(r) {
				entries, marks = append(entries, r), append(marks[:i:i], marks[i+1:]...)
				break
			}
		}
	}
	return entries
}

// xtables are the tables that an iptables of today keeps in nf_tables.
func xtables() []nft.Table {
	return []nft.Table{{Family: nft.IPv4, Name: natTable}, {Family: nft.IPv6, Name: natTable}}
}

// delXTables deletes what an iptables left in nf_tables for the owner. That there is
// nothing costs one look by the chain's name.
func delXTables(c *nft.Conn, tx *nft.Tx, owner types.Attachment, ips []netip.Prefix) error {
	name := chainName(owner.Network, owner.ContainerID)
	for _, tab := range xtables() {
		err := c.HasChain(tab, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var rules []rule
		for _, chain := range []string{dnatChain, name} {
			found, err := c.Rules(tab, chain)
			if err != nil {
				return err
			}
			rules = append(rules, foundRules(found)...)
		}
		own, all := staleRules(rules, owner, ips)
		for _, r := range own {
			tx.DelRule(tab, *r.found)
		}
		if all {
			tx.DelChain(tab, name)
		}
	}
	return nil
}

// delLegacy is delXTables for the tables before nf_tables.
func delLegacy(p *portMap) error {
	name := chainName(p.owner().Network, p.owner().ContainerID)
	return xt.EachLegacy(p.r.Node, natTable, func(tool xt.Tool, saved string) error {
		rules := xt.Parse(saved)
		if !hasChain(rules, name) {
			return nil
		}
		own, all := staleRules(textRules(rules), p.owner(), p.ips)
		return restoreDeletions(tool, "delete "+p.String(), deletions(own, name, all))
	})
}

func restoreDeletions(tool xt.Tool, what string, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	return tool.Restore(what, xt.Script(natTable, lines...))
}

// deletions are the lines that delete rules, and the chain if all of it goes.
func deletions(rules []rule, chain string, all bool) []string {
	var lines []string
	for _, r := range rules {
		lines = append(lines, r.text.Deletion())
	}
	if all {
		lines = append(lines, "-X "+chain)
	}
	return lines
}

// A staleChain is what GC has found of a container: the whole chain, or some of its
// interfaces.
type staleChain struct {
	name string
	own  []rule
	all  bool
}

// staleChains sorts out, of all rules of a table, those of the network that are not
// to be kept.
func staleChains(rules []rule, network string, keep types.Set) []staleChain {
	ids := map[string]string{} // container of each chain that is kept
	for a := range keep {
		ids[chainName(a.Network, a.ContainerID)] = a.ContainerID
	}
	names := map[string]bool{}
	for _, r := range rules {
		if r.chain == dnatChain && strings.HasPrefix(r.jump, "CNI-DN-") && ofNetwork(r.comment, network) {
			names[r.jump] = true
		}
	}
	var out []staleChain
	for name := range names {
		if id, ok := ids[name]; ok {
			out = append(out, staleInterfaces(rules, types.Attachment{Network: network, ContainerID: id}, keep)...)
			continue
		}
		s := staleChain{name: name, all: true}
		for _, r := range rules {
			if r.chain == name || r.jump == name {
				s.own = append(s.own, r)
			}
		}
		out = append(out, s)
	}
	return out
}

// staleInterfaces is for a container of which some interface is to be kept.
func staleInterfaces(rules []rule, container types.Attachment, keep types.Set) []staleChain {
	name := chainName(container.Network, container.ContainerID)
	seen := map[string]bool{}
	var out []staleChain
	for _, r := range rules {
		ifName, ok := markedIf(r.comment)
		owner := types.Attachment{Network: container.Network, ContainerID: container.ContainerID, IfName: ifName}
		if r.chain != name || !ok || seen[ifName] || keep[owner] {
			continue
		}
		seen[ifName] = true
		own, all := staleRules(rules, owner, nil)
		out = append(out, staleChain{name, own, all})
	}
	return out
}

// gcXTables is delXTables for all of a network that is not to be kept.
func gcXTables(c *nft.Conn, tx *nft.Tx, network string, keep types.Set) error {
	for _, tab := range xtables() {
		err := c.HasChain(tab, dnatChain)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		found, err := c.Rules(tab, "")
		if err != nil {
			return err
		}
		for _, s := range staleChains(foundRules(found), network, keep) {
			for _, r := range s.own {
				tx.DelRule(tab, *r.found)
			}
			if s.all {
				tx.DelChain(tab, s.name)
			}
		}
	}
	return nil
}

// gcLegacy is gcXTables for the tables before nf_tables.
func gcLegacy(p *portMap, network string, keep types.Set) error {
	return xt.EachLegacy(p.r.Node, natTable, func(tool xt.Tool, saved string) error {
		var lines []string
		for _, s := range staleChains(textRules(xt.Parse(saved)), network, keep) {
			lines = append(lines, deletions(s.own, s.name, s.all)...)
		}
		return restoreDeletions(tool, "delete stale port maps of network "+network, lines)
	})
}

// The reference's nftables backend keeps its rules in tables of its own. Their comment
// is the container ID and nothing else: with addresses known, those of other
// networks are told apart by them. GC cannot, and leaves them.
func referenceTables() []nft.Table {
	return []nft.Table{{Family: nft.IPv4, Name: "cni_hostport"}, {Family: nft.IPv6, Name: "cni_hostport"}}
}

func (p *portMap) referenceRules(c *nft.Conn, tab nft.Table) ([]nft.ListedRule, error) {
	rules, err := c.Rules(tab, "")
	var own []nft.ListedRule
	for _, r := range foundRules(rules) {
		if r.comment == p.owner().ContainerID && (len(p.ips) == 0 || r.mentions(p.ips)) {
			own = append(own, *r.found)
		}
	}
	return own, err
}

func (p *portMap) delReference(c *nft.Conn, tx *nft.Tx) error {
	for _, tab := range referenceTables() {
		rules, err := p.referenceRules(c, tab)
		if err != nil {
			return err
		}
		for _, r := range rules {
			tx.DelRule(tab, r)
		}
	}
	return nil
}

// hasReference reports whether the reference's nftables rules translate to each of
// the container's addresses, once a mapping at least.
func (p *portMap) hasReference(c *nft.Conn) (bool, error) {
	for _, ip := range p.ips {
		f := familyOf(ip.Addr())
		rules, err := p.referenceRules(c, nft.Table{Family: f, Name: "cni_hostport"})
		if err != nil {
			return false, err
		}
		count := 0
		for _, r := range rules {
			if r.Chain == "hostports" && r.Mentions(ip.Addr()) {
				count++
			}
		}
		if count < len(p.conf.forFamily(f)) {
			return false, nil
		}
	}
	return true, nil
}
