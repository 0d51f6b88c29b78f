package main

import "net/netip"

// An addressSet is a set of addresses. It has one bit per address, in blocks of 256 consecutive
// addresses, by the first address of the block. With tens of thousands of addresses, a map of addresses
// takes three times as long to fill.
type addressSet map[[16]byte]*[256 / 64]uint64

// position returns where the bit of ip is: the first address of the block, the index of the word in the
// block, and the bit in the word.
func position(ip netip.Addr) (first [16]byte, word int, mask uint64) {
	first = ip.As16()
	last := first[15]
	first[15] = 0
	return first, int(last / 64), 1 << (last % 64)
}

func (s addressSet) add(ip netip.Addr) {
	first, word, mask := position(ip)
	block := s[first]
	if block == nil {
		block = new([256 / 64]uint64)
		s[first] = block
	}
	block[word] |= mask
}

func (s addressSet) remove(ip netip.Addr) {
	first, word, mask := position(ip)
	if block := s[first]; block != nil {
		block[word] &^= mask
	}
}

func (s addressSet) has(ip netip.Addr) bool {
	first, word, mask := position(ip)
	block := s[first]
	return block != nil && block[word]&mask != 0
}
