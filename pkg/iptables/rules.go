package iptables

import (
	"net/netip"
	"slices"
	"strings"
)

// A Rule is one line of the output of iptables-save: a rule, or a chain.
type Rule struct {
	Chain   string
	Comment string
	Jump    string // the target of -j or -g; empty: none
	Matches string // the matches, without the comment
	Line    string // the whole line; empty: the line declares a chain
}

// Parse parses what Save returned.
func Parse(saved string) []Rule {
	var rules []Rule
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, ":"); ok {
			name, _, _ = strings.Cut(name, " ")
			rules = append(rules, Rule{Chain: name})
		}
		if strings.HasPrefix(line, "-A ") {
			rules = append(rules, parseRule(line))
		}
	}
	return rules
}

func parseRule(line string) Rule {
	r := Rule{Line: line}
	var matches []string
	words := Words(line)
	for i := 0; i < len(words); i++ {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		switch {
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
	r.Matches = strings.Join(matches, " ")
	return r
}

// Mentions reports whether the address is a word of the rule, with or without a port, as in the
// options of its target.
func (r Rule) Mentions(a netip.Addr) bool {
	text := a.String()
	if a.Is6() {
		text = "[" + text + "]"
	}
	return slices.ContainsFunc(Words(r.Line), func(w string) bool { return w == text || strings.HasPrefix(w, text+":") })
}

// Deletion returns the line of a script that deletes the rule.
func (r Rule) Deletion() string { return "-D" + strings.TrimPrefix(r.Line, "-A") }

// Script returns a script for Restore that executes the lines on a table.
func Script(table string, lines ...string) string {
	return "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
}
