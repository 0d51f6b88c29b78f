package nstest

import (
	"cmp"
	"math/rand/v2"
)

// RepairSweep injects a fault into each step k = 1, 2, 3, … of REPAIR in turn, as FaultSweep does for ADD and DEL. The
// attachment of c must exist. Before each call, damage removes something. After the call, a REPAIR without a fault must
// restore what state returned at first.
func (b *Bed) RepairSweep(c Call, damage func(), state func() string) {
	b.tb.Helper()
	before, stride := state(), SweepStride()
	for k := 1 + rand.IntN(stride); ; k += stride {
		refused, lost, killed := &fault{at: k}, &fault{at: k}, &fault{at: k, kill: true}
		for name, faulty := range map[string]Call{
			"refused": c.withFaults(refused.inject, nil), "outcome lost": c.withFaults(nil, lost.inject), "killed": c.withFaults(killed.inject, nil),
		} {
			damage()
			b.Run("REPAIR", faulty)
			b.OK("REPAIR", c)
			if after := state(); after != before {
				b.tb.Fatalf("REPAIR, step %d (%s) %s, and REPAIR: %s", k, cmp.Or(refused.step, lost.step, killed.step), name, Compare(before, after))
			}
		}
		if refused.step == "" {
			return
		}
	}
}

func (c Call) withFaults(before, after func(step string) error) Call {
	c.Before, c.After = before, after
	return c
}
