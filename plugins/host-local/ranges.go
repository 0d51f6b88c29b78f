package main

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// An interval is all addresses from one address to another, both included. They are of one family.
type interval struct{ from, to netip.Addr }

func (i interval) contains(ip netip.Addr) bool {
	return ip.Is4() == i.from.Is4() && !ip.Less(i.from) && !i.to.Less(ip)
}

func (i interval) overlaps(o interval) bool {
	return i.from.Is4() == o.from.Is4() && !i.to.Less(o.from) && !o.to.Less(i.from)
}

func (i interval) String() string { return i.from.String() + "-" + i.to.String() }

// An ipRange is a range of the configuration: an interval of addresses of one subnet.
type ipRange struct {
	interval
	subnet  netip.Prefix
	gateway netip.Addr
	// excluded has the intervals that are never allocated: the gateway, and those that the
	// configuration excludes. They are sorted and do not overlap.
	excluded []interval
}

// A rangeSet has the ranges from which one address is allocated, in the order in which they are
// used. The ranges are of one family and do not overlap.
type rangeSet []ipRange

func (s rangeSet) String() string {
	var text []string
	for _, r := range s {
		text = append(text, r.interval.String())
	}
	return strings.Join(text, ",")
}

// find returns the index of the range that contains ip, or -1 if no range contains it.
func (s rangeSet) find(ip netip.Addr) int {
	return slices.IndexFunc(s, func(r ipRange) bool { return r.contains(ip) })
}

// usableAfter returns the intervals of the addresses that are not excluded, in the order in which
// they are allocated. Each address occurs once. The order begins after last, continues with the
// following ranges and from the start of the set, and ends with last. If last is not in the set,
// the order begins at the start of the set. The number of intervals depends on the configuration,
// not on the size of the ranges.
func (s rangeSet) usableAfter(last netip.Addr) iter.Seq[interval] {
	return func(yield func(interval) bool) {
		start := max(s.find(last), 0)
		if len(s) == 0 {
			return
		}
		first := s[start]
		after, before := first.interval, interval{}
		if first.contains(last) {
			after, before = interval{last.Next(), first.to}, interval{first.from, last}
		}
		if !first.yieldUsable(after, yield) {
			return
		}
		for i := 1; i < len(s); i++ {
			if r := s[(start+i)%len(s)]; !r.yieldUsable(r.interval, yield) {
				return
			}
		}
		first.yieldUsable(before, yield)
	}
}

// hasUsable reports whether the set has an address that is not excluded.
func (s rangeSet) hasUsable() bool {
	for range s.usableAfter(netip.Addr{}) {
		return true
	}
	return false
}

// yieldUsable calls yield with each interval of part that is not excluded. It stops and returns
// false if yield returns false. An empty or zero part has no addresses.
func (r ipRange) yieldUsable(part interval, yield func(interval) bool) bool {
	from := part.from
	if !from.IsValid() || part.to.Less(from) {
		return true
	}
	for _, e := range r.excluded {
		if e.to.Less(from) {
			continue
		}
		if part.to.Less(e.from) {
			break
		}
		if from.Less(e.from) && !yield(interval{from, e.from.Prev()}) {
			return false
		}
		if !e.to.Less(part.to) {
			return true
		}
		from = e.to.Next()
	}
	return yield(interval{from, part.to})
}

// isExcluded reports whether ip is never allocated.
func (r ipRange) isExcluded(ip netip.Addr) bool {
	return slices.ContainsFunc(r.excluded, func(e interval) bool { return e.contains(ip) })
}

// exclude sets r.excluded to the gateway and to those of the configured intervals that overlap the
// range. It merges intervals that overlap each other.
func (r *ipRange) exclude(configured []interval) {
	all := []interval{{r.gateway, r.gateway}}
	all = append(all, configured...)
	all = slices.DeleteFunc(all, func(e interval) bool { return !e.overlaps(r.interval) })
	slices.SortFunc(all, func(a, b interval) int { return a.from.Compare(b.from) })
	r.excluded = nil
	for _, e := range all {
		n := len(r.excluded)
		switch {
		case n == 0 || r.excluded[n-1].to.Less(e.from):
			r.excluded = append(r.excluded, e)
		case r.excluded[n-1].to.Less(e.to):
			r.excluded[n-1].to = e.to
		}
	}
}

// intervalOf returns the interval of all addresses of p.
func intervalOf(p netip.Prefix) interval {
	first := p.Masked().Addr()
	last := first.AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	to, _ := netip.AddrFromSlice(last)
	return interval{first, to}
}
