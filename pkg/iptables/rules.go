package iptables

import (
	"net/netip"
	"slices"
	"strings"
)

// A Rule is a line of what iptables-save printed, as far as it tells whose it is.
type Rule struct {
	Chain   string
	Comment string
	Jump    string // the target; empty: none
	Matches string // what it wants of a packet, the comment left out
	Line    string // as printed; empty: the rule stands for a chain without rules
}

// Parse reads what Save gave of a table.
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
			i = len(words) // what follows belongs to the target
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

// Mentions reports whether the address is an argument of the rule's target, with or
// without a port.
func (r Rule) Mentions(a netip.Addr) bool {
	text := a.String()
	if a.Is6() {
		text = "[" + text + "]"
	}
	return slices.ContainsFunc(Words(r.Line), func(w string) bool { return w == text || strings.HasPrefix(w, text+":") })
}

// Deletion is the line of a script that deletes the rule.
func (r Rule) Deletion() string { return "-D" + strings.TrimPrefix(r.Line, "-A") }

// Script is lines as a transaction on a table.
func Script(table string, lines ...string) string {
	return "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
}
