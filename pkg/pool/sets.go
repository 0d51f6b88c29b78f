package pool

import (
	"cmp"
	"net/netip"
	"slices"
)

// A Set is a range set of the configuration, for a plugin that allocates only some of its addresses.
type Set struct {
	Key      string // the key in the configuration, for example "ipam.ranges[0]"
	Ranges   []Range
	Exclude  []netip.Prefix // addresses that are never allocated, which are the gateways and the key exclude
	Gateways []netip.Prefix // of the ranges, with the prefix lengths of their subnets
}

// Contains reports whether the address is in a range of the set and may be allocated.
func (s Set) Contains(ip netip.Addr) bool {
	return slices.ContainsFunc(s.Ranges, func(r Range) bool { return r.Contains(ip) }) && !containsAddr(s.Exclude, ip)
}

// Usable returns the parts of the ranges that the set does not exclude, in the order of the set.
func (s Set) Usable() (left []Range) {
	for _, r := range s.Ranges {
		left = append(left, r.subtract(s.Exclude)...)
	}
	return left
}

// Size returns the number of addresses that the set does not exclude, or MaxSize if there are more.
func (s Set) Size() (n uint64) {
	for _, r := range s.Usable() {
		n = min(n+r.Size(), MaxSize)
	}
	return n
}

// Sets returns the range sets, in the order in which NoneFreeError numbers them. They exclude the gateways, the prefixes of
// the key exclude, and the prefixes in exclude.
func (p *Pool) Sets(exclude ...netip.Prefix) []Set {
	var all []Set
	for i, set := range p.sets {
		s := Set{Key: p.setKeys[i]}
		for _, r := range set {
			s.Ranges, s.Gateways = append(s.Ranges, r.Range), append(s.Gateways, netip.PrefixFrom(r.gateway, r.subnet.Bits()))
			for _, e := range slices.Concat(r.excluded, exclude) {
				if r.Overlaps(prefixRange(e)) {
					s.Exclude = append(s.Exclude, e)
				}
			}
		}
		all = append(all, s)
	}
	return all
}

// Reserved returns the reserved addresses of all attachments. It lists the directory.
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

// ContainerID returns the ID of the container for which an address is reserved. If the ID is unknown, ContainerID returns
// a text for messages.
func (se *Session) ContainerID(ip netip.Addr) string {
	res, _ := se.dir.reservation(ip) // after an error, res contains no owner
	return cmp.Or(res.owner.containerID, "an unknown owner")
}
