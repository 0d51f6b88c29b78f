package pool

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
)

// A Set is a range set of the configuration, for a plugin that gets addresses from elsewhere.
type Set struct {
	Ranges  []Range
	Exclude []netip.Prefix // what is never allocated: the gateways, and what the key exclude names
}

// A Range is the addresses from First to Last, with both.
type Range struct{ First, Last netip.Addr }

// Contains reports whether the address is in a range of the set and may be allocated.
func (s Set) Contains(ip netip.Addr) bool {
	return slices.ContainsFunc(s.Ranges, func(r Range) bool { return interval{r.First, r.Last}.contains(ip) }) &&
		!slices.ContainsFunc(s.Exclude, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// Usable returns the ranges that are left of the set without what it excludes, in the order of the set.
func (s Set) Usable() iter.Seq[Range] {
	var excluded []interval
	for _, p := range s.Exclude {
		excluded = append(excluded, intervalOf(p))
	}
	slices.SortFunc(excluded, func(a, b interval) int { return a.from.Compare(b.from) })
	return func(yield func(Range) bool) {
		for _, r := range s.Ranges {
			for _, e := range excluded {
				if !e.overlaps(interval{r.First, r.Last}) {
					continue
				}
				if r.First.Less(e.from) && !yield(Range{r.First, e.from.Prev()}) {
					return
				}
				r.First = e.to.Next()
				if !r.First.IsValid() || r.Last.Less(r.First) {
					break
				}
			}
			if r.First.IsValid() && !r.Last.Less(r.First) && !yield(r) {
				return
			}
		}
	}
}

// RangeOf returns the range of all addresses of a prefix.
func RangeOf(p netip.Prefix) Range {
	i := intervalOf(p)
	return Range{i.from, i.to}
}

// Sets returns the range sets, in the order in which NoneFreeError numbers them. They exclude the gateways,
// what the key exclude names, and the prefixes of exclude.
func (p *Pool) Sets(exclude ...netip.Prefix) []Set {
	var all []Set
	for _, set := range p.conf.sets {
		s := Set{}
		for _, r := range set {
			s.Ranges = append(s.Ranges, Range{r.from, r.to})
			gateway := netip.PrefixFrom(r.gateway, r.gateway.BitLen())
			for _, e := range slices.Concat(p.conf.exclude, []netip.Prefix{gateway}, exclude) {
				if r.overlaps(intervalOf(e)) {
					s.Exclude = append(s.Exclude, e)
				}
			}
		}
		all = append(all, s)
	}
	return all
}

// Requested returns the addresses that the runtime requests.
func (p *Pool) Requested() []netip.Addr { return p.conf.requested }

// FailStatusWhenFull reports whether the configuration has the key failStatusWhenFull.
func (p *Pool) FailStatusWhenFull() bool { return p.conf.failStatusWhenFull }

// Reserved returns all addresses that have a reservation, of any attachment. It lists the folder.
func (se *Session) Reserved() ([]netip.Addr, error) {
	if err := se.listNames(); err != nil {
		return nil, err
	}
	var all []netip.Addr
	for name := range se.names {
		if ip, ok := parseName(name); ok {
			all = append(all, ip)
		}
	}
	return all, nil
}

// Holder returns the ID of the container that an address is reserved for, or a text if it is unknown.
func (se *Session) Holder(ip netip.Addr) string {
	res, _ := se.dir.reservation(ip) // without an owner if it cannot be read
	return cmp.Or(res.owner.containerID, "an unknown owner")
}
