package server

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

const windowSize = 256

// TestWindows checks that each window comes once, and that neighboring windows rarely follow each other.
// After a range was enlarged, all addresses of one half may have owners.
func TestWindows(t *testing.T) {
	for _, last := range []string{"10.0.0.1", "10.0.1.0", "10.7.255.255", "10.4.90.3"} {
		p, err := newPool([]datastore.Range{{First: netip.MustParseAddr("10.0.0.1"), Last: netip.MustParseAddr(last)}}, nil, windowSize)
		if err != nil {
			t.Fatal(err)
		}
		const runs = 200
		tries := 0
		half := p.blocks[0].first/windowSize + p.windowsOf(p.blocks[0])/2
		for range runs {
			seen, found := map[uint64]bool{}, false
			for w := range p.Windows(rand.Uint64()) {
				if seen[w.first] {
					t.Fatalf("window %v twice", w.addr(w.first))
				}
				seen[w.first] = true
				if !found {
					tries++
				}
				found = found || w.first/windowSize >= half
			}
			if uint64(len(seen)) != p.windowsOf(p.blocks[0]) {
				t.Fatalf("%d windows of %d", len(seen), p.windowsOf(p.blocks[0]))
			}
		}
		if tries > 30*runs {
			t.Errorf("to %s: %d tries on average to find a window of the upper half", last, tries/runs)
		}
	}
}

// TestEstimate compares estimates with the number of free addresses. In a large pool, it compares the mean of
// the estimates.
func TestEstimate(t *testing.T) {
	for name, c := range map[string]struct {
		first, last string
		exclude     []string
		used        func(low uint64) bool
		exact       bool
	}{
		"small":    {"10.0.0.1", "10.0.15.254", []string{"10.0.3.0/25"}, func(low uint64) bool { return low%10 < 9 }, true},
		"large":    {"10.0.0.1", "10.3.255.254", []string{"10.0.0.0/24", "10.1.0.0/16"}, func(low uint64) bool { return low%100 < 97 }, false},
		"no owner": {"10.0.0.1", "10.3.255.254", nil, func(uint64) bool { return false }, true},
		"a /64":    {"fd00::", "fd00::ffff:ffff:ffff:ffff", []string{"fd00::/96"}, func(uint64) bool { return false }, true},
		"full":     {"10.0.0.1", "10.3.255.254", []string{"10.1.0.0/16"}, func(uint64) bool { return true }, true},
	} {
		var exclude []netip.Prefix
		for _, text := range c.exclude {
			exclude = append(exclude, netip.MustParsePrefix(text))
		}
		p, err := newPool([]datastore.Range{{First: netip.MustParseAddr(c.first), Last: netip.MustParseAddr(c.last)}}, exclude, windowSize)
		if err != nil {
			t.Fatal(err)
		}
		// count returns the number of owners in each block, as etcd counts them. Blocks of more than 2^20
		// addresses have none.
		count := func(blocks []Block) (used []int64) {
			for _, b := range blocks {
				var n int64
				for low := b.first; b.size() <= 1<<20 && low <= b.last; low++ {
					if c.used(low) {
						n++
					}
				}
				used = append(used, n)
			}
			return used
		}
		free := p.free(count(p.Counted()))
		const runs = 200
		var sum float64
		for range runs {
			s, _ := p.Sample()
			if n := len(s.Counted()); n > datastore.MaxParts {
				t.Fatalf("%s: a sample with %d parts", name, n)
			}
			estimate := p.Estimate(s, count(s.Counted()))
			if c.exact && estimate != free {
				t.Fatalf("%s: %d are free, estimate %d", name, free, estimate)
			}
			sum += float64(estimate) / runs
		}
		if sum < 0.95*float64(free) || sum > 1.05*float64(free) {
			t.Errorf("%s: %d are free, mean of the estimates %.0f", name, free, sum)
		}
	}
}
