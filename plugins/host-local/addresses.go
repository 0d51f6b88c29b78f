package main

import "net/netip"

// An addressSet has a bit per address, in blocks of 256 neighbours: a map of addresses
// takes three times as long to fill, with tens of thousands.
type addressSet map[[16]byte]*[256 / 64]uint64

// bit finds the block of ip by its first address, and the bit in it.
func bit(ip netip.Addr) (first [16]byte, word int, mask uint64) {
	first = ip.As16()
	last := first[15]
	first[15] = 0
	return first, int(last / 64), 1 << (last % 64)
}

func (s addressSet) add(ip netip.Addr) {
	first, word, mask := bit(ip)
	block := s[first]
	if block == nil {
		block = new([256 / 64]uint64)
		s[first] = block
	}
	block[word] |= mask
}

func (s addressSet) remove(ip netip.Addr) {
	first, word, mask := bit(ip)
	if block := s[first]; block != nil {
		block[word] &^= mask
	}
}

func (s addressSet) has(ip netip.Addr) bool {
	first, word, mask := bit(ip)
	block := s[first]
	return block != nil && block[word]&mask != 0
}
