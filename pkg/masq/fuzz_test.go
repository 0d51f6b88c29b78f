package masq

import (
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/pkg/types"
)

// FuzzStale checks for any content of the table that only rules of the container's chain, and
// jumps to it, are deleted, and that GC deletes only chains of other containers.
func FuzzStale(f *testing.F) {
	owner := types.Attachment{Network: "net1", ContainerID: "cid1", IfName: "eth0"}
	name := chain(owner.Network, owner.ContainerID)
	f.Add(":" + name + " - [0:0]\n-A POSTROUTING -s 10.88.0.2/32 -m comment --comment \"name: \\\"net1\\\" id: \\\"cid1\\\"\" -j " + name + "\n-A " + name + " -d 10.88.0.0/16 -j ACCEPT\n")
	f.Add("-A POSTROUTING -s x -j " + name + "\n-A " + name + " -s 10.0.0.1 -m comment --comment \"name: \\\"net1\\\" id: \\\"cid1\\\" if: \\\"eth1\\\"\" -j ACCEPT\n-A -s -j")
	f.Fuzz(func(t *testing.T, saved string) {
		rules := parse(saved)
		own, _ := stale(rules, owner, nil)
		for _, r := range own {
			if r.chain != name && r.jump != name || !strings.Contains(saved, r.line) {
				t.Errorf("%q is taken for the owner's", r.line)
			}
		}
		for chain := range staleChains(rules, owner.Network, types.Set{owner: true}) {
			if chain == name || !strings.HasPrefix(chain, "CNI-") {
				t.Errorf("chain %s is collected", chain)
			}
		}
		for _, line := range deletions(rules) {
			if strings.Contains(line, "\n") || !strings.HasPrefix(line, "-D") {
				t.Errorf("%q deletes a rule", line)
			}
		}
	})
}
