package masq

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// FuzzStale checks that DEL selects only rules in the container's chain and jumps to it, and that GC
// selects only chains of containers that are not kept and jumps to them, for any content of the table.
func FuzzStale(f *testing.F) {
	owner := types.Attachment{Network: "net1", ContainerID: "cid1", IfName: "eth0"}
	name := chain(owner)
	isName := regexp.MustCompile(`^CNI-[0-9a-f]{24}$`).MatchString
	f.Add(":" + name + " - [0:0]\n-A POSTROUTING -s 10.88.0.2/32 -m comment --comment \"name: \\\"net1\\\" id: \\\"cid1\\\"\" -j " + name + "\n-A " + name + " -d 10.88.0.0/16 -j ACCEPT\n")
	f.Add("-A POSTROUTING -s x -j " + name + "\n-A " + name + " -s 10.0.0.1 -m comment --comment \"name: \\\"net1\\\" id: \\\"cid1\\\" if: \\\"eth1\\\"\" -j ACCEPT\n-A -s -j")
	// An administrator has copied a comment.
	f.Add("-A POSTROUTING -j CNI-ADMINX\n-A CNI-ADMINX -m comment --comment \"name: \\\"net1\\\" id: \\\"cid2\\\"\" -j ACCEPT\n")
	f.Fuzz(func(t *testing.T, saved string) {
		rules := iptables.Parse(strings.Split(saved, "\n")...).Rules
		for _, r := range ownRules(rules, owner, nil).Rules {
			if r.Chain != name && r.Jump != name {
				t.Errorf("%q is selected as the owner's", r.Line)
			}
		}
		stale := staleChains(owner.Network, types.Set{owner: true}).Select(rules)
		for _, chain := range stale.Chains {
			if chain == name || !isName(chain) {
				t.Errorf("chain %s is selected as stale", chain)
			}
		}
		for _, r := range stale.Rules {
			if !slices.Contains(stale.Chains, r.Jump) {
				t.Errorf("%q is selected as stale", r.Line)
			}
		}
	})
}
