package main

import (
	"net/netip"
	"testing"

	"github.com/plumb-cni/plumb/pkg/engine"
)

// TestWindows wants each window once, in an order in which few that are neighbours follow each other: where a range
// has been made larger, all addresses of a half may have owners.
func TestWindows(t *testing.T) {
	for _, last := range []string{"10.0.0.1", "10.0.1.0", "10.7.255.255", "10.4.90.3"} {
		p, err := newPool([]engine.Range{{First: netip.MustParseAddr("10.0.0.1"), Last: netip.MustParseAddr(last)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		const runs = 200
		tries := 0
		half := p.blocks[0].first/windowSize + p.blocks[0].windows()/2
		for range runs {
			seen, found := map[uint64]bool{}, false
			for w := range p.windows() {
				if seen[w.first] {
					t.Fatalf("window %v twice", w.addr(w.first))
				}
				seen[w.first] = true
				if !found {
					tries++
				}
				found = found || w.first/windowSize >= half
			}
			if uint64(len(seen)) != p.blocks[0].windows() {
				t.Fatalf("%d windows of %d", len(seen), p.blocks[0].windows())
			}
		}
		if tries > 30*runs {
			t.Errorf("to %s: %d tries on average to find a window of the upper half", last, tries/runs)
		}
	}
}
