package iptables

import (
	"net/netip"
	"strings"
	"testing"
)

// FuzzParse checks that each rule is a line of the input, that its deletion contains the words of its
// addition, and that its line parses to the same rule.
func FuzzParse(f *testing.F) {
	f.Add("-P POSTROUTING DROP\n-A POSTROUTING -s 10.88.0.2/32 -m comment --comment \"name: \\\"net1\\\" id: \\\"c\\\"\" -j CNI-1\n")
	f.Add("-A\n-A x\n-A x --comment\n-A x -j \"\n-P\n-P \n-A \\")
	f.Fuzz(func(t *testing.T, saved string) {
		for _, r := range Parse(strings.Split(saved, "\n")...).Rules {
			if !strings.Contains(saved, r.Line) || strings.Contains(r.Line, "\n") || !strings.HasPrefix(r.Line, "-A ") {
				t.Errorf("%q is not a line of %q", r.Line, saved)
			}
			if rest, ok := strings.CutPrefix(r.Deletion(), "-D "); !ok || "-A "+rest != r.Addition() {
				t.Errorf("%q deletes %q", r.Deletion(), r.Line)
			}
			if got := Parse(r.Line).Rules; len(got) != 1 || got[0] != r {
				t.Errorf("parsed %+v again, got %+v", r, got)
			}
			_ = r.Mentions(netip.IPv6Loopback())
		}
	})
}
