package nstest

import "math/rand/v2"

// RepairSweep injects a fault into the steps of REPAIR, one at a time, as FaultSweep does for ADD and DEL. Each kind of fault
// hits a sample of the steps, and with all faults each step. The attachment of c must exist. Before each call, damage removes
// something. After the call, a REPAIR without a fault must restore what state returned at first.
func (b *Bed) RepairSweep(c Call, damage func(), state func() string) {
	b.tb.Helper()
	before := state()
	damage()
	recorded, steps := c.RecordSteps()
	b.OK("REPAIR", recorded)
	stride := 3 * SweepStride() // each kind hits other steps
	if AllFaults() {
		stride = 1
	}
	for kind, withFault := range map[string]func(*fault) Call{
		"refused":      func(f *fault) Call { return c.withFaults(f.inject, nil) },
		"outcome lost": func(f *fault) Call { return c.withFaults(nil, f.inject) },
		"killed":       func(f *fault) Call { f.kill = true; return c.withFaults(f.inject, nil) },
	} {
		for k := 1 + rand.IntN(min(stride, len(*steps))); k <= len(*steps); k += stride {
			f := &fault{at: k}
			damage()
			b.Run("REPAIR", withFault(f))
			b.OK("REPAIR", c)
			if after := state(); after != before {
				b.tb.Fatalf("REPAIR, step %d (%s) %s, and REPAIR: %s", k, f.step, kind, Compare(before, after))
			}
		}
	}
}

func (c Call) withFaults(before, after func(step string) error) Call {
	c.Before, c.After = before, after
	return c
}
