package pool

import (
	"cmp"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// A Range contains the addresses from First to Last, inclusive. They are of one family. The type is not IPRange of
// go4.org/netipx, because that library needs package net, which costs a process a third of its start.
type Range struct{ First, Last netip.Addr }

// prefixRange returns the range of all addresses of a prefix.
func prefixRange(p netip.Prefix) Range {
	first := p.Masked().Addr()
	last := first.AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	to, _ := netip.AddrFromSlice(last)
	return Range{first, to}
}

// Contains reports whether the range contains the address.
func (r Range) Contains(ip netip.Addr) bool { return r.Overlaps(Range{ip, ip}) }

// Overlaps reports whether any address is in both ranges.
func (r Range) Overlaps(o Range) bool {
	return r.First.Is4() == o.First.Is4() && !r.Last.Less(o.First) && !o.Last.Less(r.First)
}

// MaxSize is the largest number that Size returns.
const MaxSize = 1 << 53

// Size returns the number of addresses in the range, or MaxSize if there are more.
func (r Range) Size() uint64 {
	a, b := r.First.As16(), r.Last.As16()
	if [8]byte(a[:8]) != [8]byte(b[:8]) {
		return MaxSize
	}
	return min(binary.BigEndian.Uint64(b[8:])-binary.BigEndian.Uint64(a[8:]), MaxSize-1) + 1
}

func (r Range) String() string { return r.First.String() + "-" + r.Last.String() }

// subtract returns the parts of the range that are in none of the prefixes, in order. A range with an invalid address is empty.
func (r Range) subtract(prefixes []netip.Prefix) []Range {
	if !r.First.IsValid() {
		return nil
	}
	left := []Range{r}
	for _, p := range prefixes {
		o, before := prefixRange(p), left
		left = nil
		for _, part := range before {
			if !o.Overlaps(part) {
				left = append(left, part)
				continue
			}
			if part.First.Less(o.First) {
				left = append(left, Range{part.First, o.First.Prev()})
			}
			if o.Last.Less(part.Last) {
				left = append(left, Range{o.Last.Next(), part.Last})
			}
		}
	}
	return left
}

// An ipRange is a range of the configuration, with addresses of one subnet.
type ipRange struct {
	Range
	subnet   netip.Prefix
	gateway  netip.Addr
	excluded []netip.Prefix // addresses that are never allocated, which are the gateway and the key exclude
}

// A rangeSet lists the ranges from which ADD allocates one address, in the order of use. The ranges are of one family
// and do not overlap.
type rangeSet []ipRange

func (s rangeSet) String() string {
	var text []string
	for _, r := range s {
		text = append(text, r.Range.String())
	}
	return strings.Join(text, ",")
}

// find returns the index of the range that contains ip, or -1 if no range contains it.
func (s rangeSet) find(ip netip.Addr) int {
	return slices.IndexFunc(s, func(r ipRange) bool { return r.Contains(ip) })
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
		begin.First, end.Last = last.Next(), last
		s = slices.Concat(rangeSet{begin}, s[i+1:], s[:i], rangeSet{end})
	}
	return func(yield func(netip.Addr) bool) {
		for _, r := range s {
			for _, part := range r.subtract(r.excluded) {
				for ip := part.First; ip.IsValid() && !part.Last.Less(ip); ip = ip.Next() {
					if !yield(ip) {
						return
					}
				}
			}
		}
	}
}

// usableAmong returns the addresses that usableAfter returns as well, in the same order. Its time depends on the number of
// addresses, not on the size of the ranges.
func (s rangeSet) usableAmong(addrs []netip.Addr, last netip.Addr) []netip.Addr {
	var usable []netip.Addr
	for _, ip := range addrs {
		if i := s.find(ip); i >= 0 && !s[i].excludes(ip) {
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

// hasUsable reports whether the set contains an address that is not excluded.
func (s rangeSet) hasUsable() bool {
	return slices.ContainsFunc(s, func(r ipRange) bool { return len(r.subtract(r.excluded)) > 0 })
}

// excludes reports whether ip is never allocated.
func (r ipRange) excludes(ip netip.Addr) bool { return containsAddr(r.excluded, ip) }

func containsAddr(prefixes []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}
