package iptables

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
)

// A Rule is a rule in a table. Parse reads rules from the output of iptables -S, and
// ReadNFT reads them from nftables.
type Rule struct {
	Chain       string
	Comment     string
	Jump        string       // the target of -j or -g; it is empty if the rule has neither
	Source      netip.Prefix // the prefix of -s; it is the zero Prefix if the rule has no -s
	Destination netip.Prefix // the prefix of -d; it is the zero Prefix if the rule has no -d
	Matches     string       // the matches without the comment; see also nft.ListedRule
	Line        string       // the whole line, set by Parse only

	found *nft.ListedRule // the rule in nftables; set by ReadNFT only
}

// A Table is the content of an iptables table, or a part of it.
type Table struct {
	Chains []string
	Closed []string // the chains whose policy is DROP
	Rules  []Rule
}

// HasChain reports whether the table contains a chain with the name.
func (t Table) HasChain(name string) bool { return slices.Contains(t.Chains, name) }

// NewChains returns the lines of a script that add the chains that the table lacks.
func (t Table) NewChains(names ...string) (lines []string) {
	for _, name := range names {
		if !t.HasChain(name) {
			lines = append(lines, "-N "+name)
		}
	}
	return lines
}

// Parse parses lines that iptables -S prints.
func Parse(lines ...string) Table {
	var t Table
	for _, line := range lines {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "-A "):
			t.Rules = append(t.Rules, parseRule(strings.TrimSpace(line)))
		case strings.HasPrefix(line, "-P ") && len(words) == 3 && words[2] == "DROP":
			t.Closed = append(t.Closed, words[1])
		}
	}
	return t
}

func parseRule(line string) Rule {
	r := Rule{Line: line}
	var matches []string
	words := append(Words(line), "", "") // an option may lack its value
	for i := 0; i < len(words)-2; i++ {
		switch value := words[i+1]; {
		case words[i] == "-A":
			r.Chain = value
		case words[i] == "--comment":
			r.Comment = value
		case words[i] == "-j", words[i] == "-g":
			r.Jump = value
			i = len(words) // the rest are options of the target
		case words[i] == "-m" && value == "comment":
		default:
			matches = append(matches, words[i])
			continue
		}
		i++
	}
	prefix := func(option string) (p netip.Prefix) {
		if i := slices.Index(matches, option); i >= 0 && i+1 < len(matches) && (i == 0 || matches[i-1] != "!") {
			p, _ = netip.ParsePrefix(matches[i+1])
		}
		return p
	}
	r.Source, r.Destination, r.Matches = prefix("-s"), prefix("-d"), strings.Join(matches, " ")
	return r
}

// ListedRules returns the rules of a chain of a table from Parse, with what nft.DropsAll reads.
func (t Table) ListedRules(chain string) (all []nft.ListedRule, err error) {
	for _, r := range t.Rules {
		if r.Chain == chain {
			all = append(all, nft.ListedRule{Chain: chain, Jump: r.Jump, Target: r.Jump, Matches: strings.Fields(r.Matches)})
		}
	}
	return all, nil
}

// ReadNFT returns the rules of these chains of an nftables table or, without chains, all rules of the
// table. It runs no program. A missing table or chain is not an error.
func ReadNFT(c *nft.Conn, t nft.Table, chains ...string) ([]Rule, error) {
	if len(chains) == 0 {
		chains = []string{""}
	}
	var rules []Rule
	for _, chain := range chains {
		found, err := c.Rules(t, chain)
		if err != nil {
			return nil, err
		}
		for i := range found {
			r := &found[i]
			rules = append(rules, Rule{Chain: r.Chain, Comment: r.Comment, Jump: cmp.Or(r.Jump, r.Target), Source: r.Saddr, Destination: r.Daddr,
				Matches: strings.Join(r.Matches, " "), found: r})
		}
	}
	return rules, nil
}

// ReadAll returns the rules of these chains of a table of iptables in nftables, if c is not nil, and of the legacy table.
// It runs programs only for a legacy table.
func ReadAll(host *ns.Handle, c *nft.Conn, t nft.Table, chains ...string) (rules, legacy []Rule, err error) {
	if c != nil {
		rules, err = ReadNFT(c, t, chains...)
	}
	tool, found, legacyErr := LegacyTool(host, t.Family, t.Name)
	var table Table
	if found {
		table, legacyErr = tool.Read(Part{Table: t.Name, Chains: chains})
	}
	return rules, table.Rules, errors.Join(err, legacyErr)
}

// Option returns the word after an option of the rule's matches, or "" if there is none.
func (r Rule) Option(name string) string {
	words := strings.Fields(r.Matches)
	if i := slices.Index(words, name); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// Mentions reports whether the rule contains the address in a match, or in an option of its target,
// where a port may follow.
func (r Rule) Mentions(a netip.Addr) bool {
	if r.found != nil {
		return r.found.Mentions(a)
	}
	text := a.String()
	if a.Is6() {
		text = "[" + text + "]"
	}
	return slices.ContainsFunc(Words(r.Line), func(w string) bool { return w == text || strings.HasPrefix(w, text+":") })
}

// Addition returns the line of a script that adds a rule from Parse. It is the Line of the rule, with
// quotes around the names of interfaces that need them.
func (r Rule) Addition() string {
	var quoted []string
	option, needed := "", false
	for _, word := range Words(r.Line) {
		needed = needed || isInterfaceOption(option) && strings.Contains(word, `"`)
		quoted, option = append(quoted, Quote(word)), word
	}
	if !needed {
		return r.Line
	}
	return "-A " + strings.Join(quoted[1:], " ")
}

// Insertion returns the line of a script that inserts a rule from Parse into its chain at this
// position, where 1 is the first.
func (r Rule) Insertion(position int) string {
	_, rest, _ := strings.Cut(strings.TrimPrefix(r.Addition(), "-A "), " ")
	return fmt.Sprintf("-I %s %d %s", r.Chain, position, rest)
}

// Deletion returns the line of a script that deletes a rule from Parse.
func (r Rule) Deletion() string { return "-D" + strings.TrimPrefix(r.Addition(), "-A") }

// Deletions returns the lines of a script that delete rules from Parse.
func Deletions(rules []Rule) (lines []string) {
	for _, r := range rules {
		lines = append(lines, r.Deletion())
	}
	return lines
}

// Script returns a script for Restore that executes the lines on a table. Without lines, the script is empty.
func Script(table string, lines ...string) string {
	if len(lines) == 0 {
		return ""
	}
	return "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
}
