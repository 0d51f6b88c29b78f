package pool

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// newRangeSet returns a set of ranges. The gateway of each range is its first address.
func newRangeSet(t testing.TB, exclude []string, ranges ...Range) rangeSet {
	t.Helper()
	var excluded []netip.Prefix
	for _, e := range exclude {
		excluded = append(excluded, netip.MustParsePrefix(e))
	}
	var s rangeSet
	for _, r := range ranges {
		gateway := netip.PrefixFrom(r.First, r.First.BitLen())
		s = append(s, ipRange{Range: r, gateway: r.First, excluded: append(slices.Clip(excluded), gateway)})
	}
	return s
}

// rangesOf returns the addresses as ranges of consecutive addresses.
func rangesOf(addresses iter.Seq[netip.Addr]) []Range {
	var all []Range
	for a := range addresses {
		if n := len(all); n > 0 && all[n-1].Last.Next() == a {
			all[n-1].Last = a
		} else {
			all = append(all, Range{a, a})
		}
	}
	return all
}

func TestUsableAfter(t *testing.T) {
	two := []Range{{ip("10.0.0.1"), ip("10.0.0.9")}, {ip("10.0.1.1"), ip("10.0.1.3")}}
	for _, c := range []struct {
		name    string
		exclude []string
		ranges  []Range
		last    string
		want    string
	}{
		{"no last address", nil, two, "", "[10.0.0.2-10.0.0.9 10.0.1.2-10.0.1.3]"},
		{"last in the middle of a range", nil, two, "10.0.0.4", "[10.0.0.5-10.0.0.9 10.0.1.2-10.0.1.3 10.0.0.2-10.0.0.4]"},
		{"last at the end of the first range", nil, two, "10.0.0.9", "[10.0.1.2-10.0.1.3 10.0.0.2-10.0.0.9]"},
		{"last at the end of the set", nil, two, "10.0.1.3", "[10.0.0.2-10.0.0.9 10.0.1.2-10.0.1.3]"},
		{"last outside of the set", nil, two, "10.9.9.9", "[10.0.0.2-10.0.0.9 10.0.1.2-10.0.1.3]"},
		{"last of the other family", nil, two, "fd00::1", "[10.0.0.2-10.0.0.9 10.0.1.2-10.0.1.3]"},
		{"last is the gateway", nil, two, "10.0.1.1", "[10.0.1.2-10.0.1.3 10.0.0.2-10.0.0.9]"},
		{"excluded addresses around last", []string{"10.0.0.4/32", "10.0.0.6/31", "10.0.0.7/32"}, two[:1], "10.0.0.6", "[10.0.0.8-10.0.0.9 10.0.0.2-10.0.0.3 10.0.0.5-10.0.0.5]"},
		{"all addresses excluded", []string{"10.0.0.0/8"}, two, "10.0.0.4", "[]"},
		{"excluded prefix begins before the range", []string{"10.0.0.0/30"}, two[:1], "", "[10.0.0.4-10.0.0.9]"},
		{"range at the end of IPv4", nil, []Range{{ip("255.255.255.253"), ip("255.255.255.255")}}, "255.255.255.255", "[255.255.255.254-255.255.255.255]"},
		{"range at the end of IPv6", nil, []Range{{ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffd"), ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}},
			"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]"},
		{"set without ranges", nil, nil, "10.0.0.1", "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			last, _ := netip.ParseAddr(c.last)
			if got := fmt.Sprint(rangesOf(newRangeSet(t, c.exclude, c.ranges...).usableAfter(last))); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// FuzzUsableAfter checks that usableAfter returns each address that is not excluded once, and the last
// allocated address at the end, and that usableAmong returns some of them in the same order.
func FuzzUsableAfter(f *testing.F) {
	f.Add(uint64(1), byte(3))
	f.Add(uint64(2), byte(250))
	f.Fuzz(func(t *testing.T, seed uint64, lastByte byte) {
		r := rand.New(rand.NewPCG(seed, 0))
		base := netip.MustParsePrefix("10.0.0.0/16").Addr().As4()
		at := func(b2, b3 int) netip.Addr { a := base; a[2], a[3] = byte(b2), byte(b3); return netip.AddrFrom4(a) }
		var ranges []Range
		for i := range 1 + r.IntN(4) {
			from := r.IntN(256)
			ranges = append(ranges, Range{at(i, from), at(i, from+r.IntN(256-from))})
		}
		var exclude []string
		for range r.IntN(5) {
			exclude = append(exclude, netip.PrefixFrom(at(r.IntN(4), r.IntN(256)), 24+r.IntN(9)).Masked().String())
		}
		s := newRangeSet(t, exclude, ranges...)
		last := at(r.IntN(4), int(lastByte))
		want := map[netip.Addr]bool{}
		for _, one := range s {
			for a := one.First; !one.Last.Less(a); a = a.Next() {
				if !one.excludes(a) {
					want[a] = true
				}
			}
		}
		var order []netip.Addr
		for a := range s.usableAfter(last) {
			if !want[a] {
				t.Fatalf("%s is returned twice, or it is excluded", a)
			}
			delete(want, a)
			order = append(order, a)
		}
		if len(want) > 0 {
			t.Fatalf("usableAfter does not return %v", want)
		}
		var some, ordered []netip.Addr
		for _, a := range order {
			if r.IntN(3) == 0 {
				ordered, some = append(ordered, a), append(some, a, a, at(9, r.IntN(256)))
			}
		}
		r.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		if got := s.usableAmong(some, last); !slices.Equal(got, ordered) {
			t.Fatalf("usableAmong returns %v, want %v", got, ordered)
		}
		if i := slices.Index(order, last); i >= 0 && i != len(order)-1 {
			t.Fatalf("last %s is at index %d of %d, want the end", last, i, len(order))
		}
	})
}

func TestParseOwner(t *testing.T) {
	for _, c := range []struct {
		content string
		want    owner
		ok      bool
	}{
		{"c1\r\neth0", owner{"c1", "eth0"}, true},
		{"c1", owner{"c1", ""}, true},
		{"c1\n", owner{"c1", ""}, true},
		{" c1\r\neth0\n", owner{"c1", "eth0"}, true},
		{"c1\r\n", owner{"c1", ""}, true},
		{"", owner{}, false},
		{"\r\n", owner{}, false},
		{"\r\neth0", owner{"eth0", ""}, true},
		{"\x00\x00\x00\x00", owner{}, false},
		{"c1\r\neth0\x00\x00", owner{}, false},
		{"c1\neth0", owner{}, false},
		{"c1\r\neth0\r\nmore", owner{}, false},
		{"-c1\r\neth0", owner{}, false},
		{"../c1", owner{}, false},
		{"c1\r\nan interface", owner{}, false},
	} {
		if got, ok := parseOwner([]byte(c.content)); got != c.want || ok != c.ok {
			t.Errorf("%q: got %v %v", c.content, got, ok)
		}
	}
}

// FuzzParseOwner checks that parseOwner returns the same owner for the text that the owner writes.
func FuzzParseOwner(f *testing.F) {
	f.Add([]byte("c1\r\neth0"))
	f.Add([]byte("\x00"))
	f.Fuzz(func(t *testing.T, content []byte) {
		o, ok := parseOwner(content)
		if !ok {
			return
		}
		if again, ok := parseOwner([]byte(o.text())); !ok || again != o {
			t.Errorf("%q: %v, then %v", content, o, again)
		}
	})
}
