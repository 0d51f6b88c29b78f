package node

import "testing"

func TestNearlyFull(t *testing.T) {
	for _, c := range []struct {
		free            uint64
		estimated, want bool
	}{{free: 1, want: true}, {free: 2}, {free: 0, want: true}, {free: 1, estimated: true}} {
		if p := (Pool{Size: 13, Free: &c.free, Estimated: c.estimated}); p.NearlyFull() != c.want {
			t.Errorf("%+v: want %t", c, c.want)
		}
	}
}
