package main

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// A run is a row of addresses of one family, both ends included.
type run struct{ from, to netip.Addr }

func (r run) contains(ip netip.Addr) bool {
	return ip.Is4() == r.from.Is4() && !ip.Less(r.from) && !r.to.Less(ip)
}

func (r run) overlaps(o run) bool {
	return r.from.Is4() == o.from.Is4() && !r.to.Less(o.from) && !o.to.Less(r.from)
}

func (r run) String() string { return r.from.String() + "-" + r.to.String() }

// An ipRange is a pool of addresses of one subnet.
type ipRange struct {
	run
	subnet  netip.Prefix
	gateway netip.Addr
	// excluded has the runs that are never allocated: the gateway, and those that the configuration
	// excludes. They are sorted and do not overlap.
	excluded []run
}

// A rangeSet is the pools that one address is taken from, in order. They are of one
// family and do not overlap.
type rangeSet []ipRange

func (s rangeSet) String() string {
	var text []string
	for _, r := range s {
		text = append(text, r.run.String())
	}
	return strings.Join(text, ",")
}

// find is the index of the range that ip is in; -1: none.
func (s rangeSet) find(ip netip.Addr) int {
	return slices.IndexFunc(s, func(r ipRange) bool { return r.contains(ip) })
}

// spans gives the runs that an address may be taken from: each address of the set
// once, but the excluded ones, in the order of their turn. The turn begins after
// last and ends with it; when last is not in the set it begins with the set. The
// number of runs depends on the configuration, not on the size of the ranges.
func (s rangeSet) spans(last netip.Addr) iter.Seq[run] {
	return func(yield func(run) bool) {
		at := max(s.find(last), 0)
		if len(s) == 0 {
			return
		}
		first := s[at]
		head, tail := first.run, run{}
		if first.contains(last) {
			head, tail = run{last.Next(), first.to}, run{first.from, last}
		}
		if !first.cut(head, yield) {
			return
		}
		for i := 1; i < len(s); i++ {
			if r := s[(at+i)%len(s)]; !r.cut(r.run, yield) {
				return
			}
		}
		first.cut(tail, yield)
	}
}

// hasUsable reports whether the set has an address that is not excluded.
func (s rangeSet) hasUsable() bool {
	for range s.spans(netip.Addr{}) {
		return true
	}
	return false
}

// cut yields what is left of part without the excluded runs, and reports whether the
// receiver wants more. An empty part has nothing.
func (r ipRange) cut(part run, yield func(run) bool) bool {
	from := part.from
	if !from.IsValid() || part.to.Less(from) {
		return true
	}
	for _, b := range r.excluded {
		if b.to.Less(from) {
			continue
		}
		if part.to.Less(b.from) {
			break
		}
		if from.Less(b.from) && !yield(run{from, b.from.Prev()}) {
			return false
		}
		if !b.to.Less(part.to) {
			return true
		}
		from = b.to.Next()
	}
	return yield(run{from, part.to})
}

// isExcluded reports whether ip is never allocated.
func (r ipRange) isExcluded(ip netip.Addr) bool {
	return slices.ContainsFunc(r.excluded, func(b run) bool { return b.contains(ip) })
}

// exclude sets r.excluded to the gateway and to those of the configured runs that overlap the
// range.
func (r *ipRange) exclude(configured []run) {
	all := []run{{r.gateway, r.gateway}}
	all = append(all, configured...)
	all = slices.DeleteFunc(all, func(b run) bool { return !b.overlaps(r.run) })
	slices.SortFunc(all, func(a, b run) int { return a.from.Compare(b.from) })
	r.excluded = nil
	for _, b := range all {
		n := len(r.excluded)
		switch {
		case n == 0 || r.excluded[n-1].to.Less(b.from):
			r.excluded = append(r.excluded, b)
		case r.excluded[n-1].to.Less(b.to):
			r.excluded[n-1].to = b.to
		}
	}
}

// whole is the run of all addresses of p.
func whole(p netip.Prefix) run {
	first := p.Masked().Addr()
	last := first.AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	to, _ := netip.AddrFromSlice(last)
	return run{first, to}
}
