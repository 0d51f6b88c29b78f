package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// sampleSize is the number of parts of a pool in which one read counts the owners. etcd visits the key of each owner
// that it counts, which takes 0.1 µs, and 50 ms for 500,000 owners.
const sampleSize = 32

// maxFree is the largest number of free addresses in an answer, because larger numbers are not exact in JSON.
const maxFree = 1 << 53

// A Block contains the addresses from first to last, inclusive. IPv6 addresses of a block share their upper 64 bits.
type Block struct {
	v4          bool
	high        uint64 // upper 64 bits of IPv6, or 0 for IPv4
	first, last uint64
}

// A Pool is a list of blocks that do not overlap, and the addresses in them that must not be assigned.
type Pool struct {
	blocks     []Block
	excluded   []Block // parts of blocks that do not overlap
	prefixes   []netip.Prefix
	windowSize uint64 // the number of addresses of a window
}

// newPool returns the pool of these ranges and exclusions. An error names all problems.
func newPool(ranges []datastore.Range, exclude []netip.Prefix, window uint64) (Pool, error) {
	p := Pool{prefixes: outermost(exclude), windowSize: window}
	var errs []error
	for _, r := range ranges {
		b, err := newBlock(r.First, r.Last)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, other := range p.blocks {
			if _, overlap := other.part(r.First, r.Last); overlap {
				errs = append(errs, fmt.Errorf("ranges: %v-%v overlaps with %v-%v", r.First, r.Last, other.addr(other.first), other.addr(other.last)))
			}
		}
		p.blocks = append(p.blocks, b)
	}
	for _, prefix := range p.prefixes {
		if !prefix.IsValid() || !isAddress(prefix.Addr()) {
			errs = append(errs, fmt.Errorf("exclude: %q is not a prefix", prefix))
			continue
		}
		first, last := prefix.Addr(), lastOf(prefix)
		for _, b := range p.blocks {
			if x, ok := b.part(first, last); ok {
				p.excluded = append(p.excluded, x)
			}
		}
	}
	if n := len(p.blocks) + len(p.excluded); n > datastore.MaxParts {
		errs = append(errs, fmt.Errorf("ranges and exclude: want at most %d parts, got %d", datastore.MaxParts, n))
	}
	return p, errors.Join(errs...)
}

func newBlock(first, last netip.Addr) (Block, error) {
	switch {
	case !isAddress(first) || !isAddress(last) || first.Is4() != last.Is4():
		return Block{}, fmt.Errorf("ranges: %v-%v: first and last must be addresses of the same family", first, last)
	case last.Less(first):
		return Block{}, fmt.Errorf("ranges: %v-%v: last is before first", first, last)
	}
	high, low := split(first)
	lastHigh, end := split(last)
	if high != lastHigh {
		return Block{}, fmt.Errorf("ranges: %v-%v must be in one /64", first, last)
	}
	return Block{first.Is4(), high, low, end}, nil
}

// part returns the part of the block from first to last, and false if it is empty.
func (b Block) part(first, last netip.Addr) (Block, bool) {
	if first.Is4() != b.v4 {
		return Block{}, false
	}
	if a := b.addr(b.first); first.Less(a) {
		first = a
	}
	if a := b.addr(b.last); a.Less(last) {
		last = a
	}
	_, low := split(first)
	_, end := split(last)
	return Block{b.v4, b.high, low, end}, !last.Less(first)
}

// outermost returns the prefixes, masked, that are in no other prefix.
func outermost(prefixes []netip.Prefix) (out []netip.Prefix) {
	masked := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		masked[i] = p.Masked()
	}
	slices.SortFunc(masked, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	for _, p := range masked {
		if !slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Contains(p.Addr()) }) {
			out = append(out, p)
		}
	}
	return out
}

// lastOf returns the last address of a masked prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// split returns the upper and lower 64 bits of an address. IPv4 is in the lower 32 bits.
func split(a netip.Addr) (high, low uint64) {
	if a.Is4() {
		b := a.As4()
		return 0, uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// addr returns the address with these lower bits.
func (b Block) addr(low uint64) netip.Addr {
	if b.v4 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(low))))
	}
	return netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, b.high), low)))
}

// size returns the number of addresses, at most maxFree.
func (b Block) size() uint64 { return min(b.last-b.first, maxFree-1) + 1 }

// windowsOf returns the number of windows that contain addresses of the block.
func (p Pool) windowsOf(b Block) uint64 { return b.last/p.windowSize - b.first/p.windowSize + 1 }

// windowOf returns the part of the block in its nth window.
func (p Pool) windowOf(b Block, n uint64) Block {
	w := (b.first/p.windowSize + n) * p.windowSize
	return Block{b.v4, b.high, max(b.first, w), min(b.last, w+p.windowSize-1)}
}

// Counted returns the blocks in which the caller counts the owners for Estimate.
func (p Pool) Counted() []Block { return slices.Concat(p.blocks, p.excluded) }

// free returns the number of free addresses. used contains the number of owners in each block of counted.
func (p Pool) free(used []int64) uint64 {
	var all, gone uint64
	for i, b := range p.Counted() {
		if i < len(p.blocks) {
			all, gone = min(all+b.size(), maxFree), gone+uint64(used[i])
		} else {
			gone += b.size() - min(b.size(), uint64(used[i]))
		}
	}
	return all - min(all, gone)
}

// Size returns the number of addresses that can be free, at most maxFree.
func (p Pool) Size() uint64 { return p.free(make([]int64, len(p.Counted()))) }

// Sample returns random windows of the pool, as a pool. For a pool with few windows it returns the pool itself, and true.
func (p Pool) Sample() (s Pool, whole bool) {
	for w := range p.Windows(rand.Uint64()) {
		if len(s.blocks)+len(s.excluded) >= sampleSize {
			break
		}
		s.blocks = append(s.blocks, w)
		for _, x := range p.excluded {
			if part, in := w.part(x.addr(x.first), x.addr(x.last)); in {
				s.excluded = append(s.excluded, part)
			}
		}
		whole = uint64(len(s.blocks)) == p.WindowCount()
	}
	if whole || len(s.blocks)+len(s.excluded) > datastore.MaxParts {
		return p, true
	}
	return s, false
}

// Estimate returns how many addresses of the pool are free. used contains the number of owners in each block that the
// sample counts. The estimate is exact if the sample is the pool, and 0 only if no address of the sample is free.
func (p Pool) Estimate(sample Pool, used []int64) uint64 {
	all := sample.Size()
	if all == 0 {
		return 0
	}
	high, low := bits.Mul64(p.Size(), sample.free(used))
	free, _ := bits.Div64(high, low, all)
	return free
}

// WindowCount returns the number of windows, or 2^64-1 if there are more.
func (p Pool) WindowCount() (total uint64) {
	for _, b := range p.blocks {
		sum, carry := bits.Add64(total, p.windowsOf(b), 0)
		total = sum | -carry
	}
	return total
}

// Windows yields all windows, beginning with window start modulo their number. Because neighboring windows may all be
// full, the step from one window to the next is the golden section of their number, which spreads the first windows evenly
// (Knuth, The Art of Computer Programming 3, 6.4).
func (p Pool) Windows(start uint64) iter.Seq[Block] {
	return func(yield func(Block) bool) {
		total := p.WindowCount()
		if total == 0 {
			return
		}
		start, step := start%total, uint64(1)
		if total > 2 {
			step = goldenStep(total)
		}
		for i := range total {
			high, low := bits.Mul64(i, step)
			low, carry := bits.Add64(low, start, 0)
			if !yield(p.window(bits.Rem64(high+carry, low, total))) {
				return
			}
		}
	}
}

// goldenStep returns the first number at or after the golden section of n that has no common divisor with n, so that
// steps of this length reach all numbers below n. n must be greater than 2.
func goldenStep(n uint64) uint64 {
	const golden = 0x9E3779B97F4A7C15 // 2⁶⁴ / 1.618…
	for step, _ := bits.Mul64(n, golden); ; step++ {
		a, b := n, step
		for b != 0 {
			a, b = b, a%b
		}
		if a == 1 {
			return step
		}
	}
}

// window returns the nth window of all blocks.
func (p Pool) window(n uint64) Block {
	for _, b := range p.blocks {
		if size := p.windowsOf(b); n >= size {
			n -= size
		} else {
			return p.windowOf(b, n)
		}
	}
	return Block{}
}

// First returns the first address of the block.
func (b Block) First() netip.Addr { return b.addr(b.first) }

// Last returns the last address of the block.
func (b Block) Last() netip.Addr { return b.addr(b.last) }

// Candidates returns the addresses of a window that are neither taken nor excluded, in random order.
func (p Pool) Candidates(w Block, taken map[netip.Addr]bool) (free []netip.Addr) {
	for low := w.first; ; low++ {
		a := w.addr(low)
		if !taken[a] && !slices.ContainsFunc(p.prefixes, func(x netip.Prefix) bool { return x.Contains(a) }) {
			free = append(free, a)
		}
		if low == w.last {
			break
		}
	}
	rand.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	return free
}

// In returns the addresses of the pool from first to last that are not taken, in random order.
func (p Pool) In(first, last netip.Addr, taken map[netip.Addr]bool) (free []netip.Addr) {
	for _, b := range p.blocks {
		if part, ok := b.part(first, last); ok {
			free = append(free, p.Candidates(part, taken)...)
		}
	}
	return free
}

// Count returns how many of the addresses are in the pool and not excluded.
func (p Pool) Count(addresses map[netip.Addr]string) (n int) {
	for a := range addresses {
		for i, b := range p.Counted() {
			if _, in := b.part(a, a); in && i < len(p.blocks) {
				n++
			} else if in {
				n--
			}
		}
	}
	return n
}
