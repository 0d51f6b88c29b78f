package pool

import (
	"cmp"
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
	// configuration excludes. They may overlap.
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

// findSet returns the index of the set that contains ip, or -1 if no set contains it.
func findSet(sets []rangeSet, ip netip.Addr) int {
	return slices.IndexFunc(sets, func(s rangeSet) bool { return s.find(ip) >= 0 })
}

// usableAfter returns the addresses that are not excluded, in the order in which they are
// allocated. Each address occurs once. The order begins after last, continues with the following
// ranges and from the start of the set, and ends with last. If last is not in the set, the order
// begins at the start of the set.
func (s rangeSet) usableAfter(last netip.Addr) iter.Seq[netip.Addr] {
	if i := s.find(last); i >= 0 {
		begin, end := s[i], s[i]
		begin.from, end.to = last.Next(), last
		s = slices.Concat(rangeSet{begin}, s[i+1:], s[:i], rangeSet{end})
	}
	return func(yield func(netip.Addr) bool) {
		for _, r := range s {
			for ip := range r.usable() {
				if !yield(ip) {
					return
				}
			}
		}
	}
}

// usableAmong returns those of the addresses that usableAfter returns, in the same order. The time that it
// takes depends on the number of addresses, not on the size of the ranges.
func (s rangeSet) usableAmong(addrs []netip.Addr, last netip.Addr) []netip.Addr {
	var usable []netip.Addr
	for _, ip := range addrs {
		if i := s.find(ip); i >= 0 && s[i].findExcluded(ip) < 0 {
			usable = append(usable, ip)
		}
	}
	order := func(a, b netip.Addr) int { return cmp.Or(cmp.Compare(s.find(a), s.find(b)), a.Compare(b)) }
	slices.SortFunc(usable, order)
	usable = slices.Compact(usable)
	n, found := slices.BinarySearchFunc(usable, last, order)
	if found {
		n++
	}
	return slices.Concat(usable[n:], usable[:n])
}

// hasUsable reports whether the set has an address that is not excluded.
func (s rangeSet) hasUsable() bool {
	for range s.usableAfter(netip.Addr{}) {
		return true
	}
	return false
}

// usable returns the addresses of the range that are not excluded.
func (r ipRange) usable() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for ip := r.from; ip.IsValid() && !r.to.Less(ip); ip = ip.Next() {
			if i := r.findExcluded(ip); i >= 0 {
				ip = r.excluded[i].to
			} else if !yield(ip) {
				return
			}
		}
	}
}

// findExcluded returns the index of an excluded interval that contains ip, or -1 if ip may be allocated.
func (r ipRange) findExcluded(ip netip.Addr) int {
	return slices.IndexFunc(r.excluded, func(e interval) bool { return e.contains(ip) })
}

// exclude sets r.excluded to the gateway and to those of the configured prefixes that overlap the
// range.
func (r *ipRange) exclude(configured []netip.Prefix) {
	all := []interval{{r.gateway, r.gateway}}
	for _, p := range configured {
		all = append(all, intervalOf(p))
	}
	r.excluded = slices.DeleteFunc(all, func(e interval) bool { return !e.overlaps(r.interval) })
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
