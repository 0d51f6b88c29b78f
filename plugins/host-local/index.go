package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io/fs"
	"iter"
	"math/bits"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/plumb-cni/plumb/pkg/file"
	"golang.org/x/sys/unix"
)

// An index knows of each reservation whose it is, and of each address whether it
// is taken, without a look at the reservations themselves. It is a cache: what it
// says follows from the files, and what of it is damaged, stale or gone is made
// anew from them.
//
// The file has pages of 4 KiB, each with its checksum. Page 0 is the header. Then
// come the owner pages: an entry is in the page that the hash of its owner names,
// in no order, or when that one is full, and says so, in the next that has room.
// Then the block pages: a block is 1024 neighbouring addresses, a bit
// each, in the page that the hash of its first address names. An operation reads
// and writes two or three pages, however many there are. An index that is full is
// made anew with more pages.
type index struct {
	fd    int // of the file; -1: never written yet
	head  header
	pages map[uint32]*page // those looked at
	// broken: the index does not agree with what was done, and must not be used.
	broken bool
}

const (
	pageSize   = 4096
	pageHead   = 16 // checksum, number of records, whether it ran over, number of the page
	entrySize  = 40
	entryRoom  = (pageSize - pageHead) / entrySize
	entryFill  = entryRoom / 2 // entries a page when an index is made
	blockBits  = 1024
	blockKey   = 16
	blockSize  = blockKey + blockBits/8
	blockRoom  = (pageSize - pageHead) / blockSize
	blockFill  = blockRoom / 4
	indexMagic = "plumbhl1"
	headerSize = 96 // without its checksum
)

var errDamaged = errors.New("index is damaged")

// A header says of what folder, in what state, an index was made.
type header struct {
	Boot   [40]byte // of the boot that all entries are of
	Proof  proof
	Walked int64 // nanoseconds since boot when the reservations were last read
	Owners uint32
	Blocks uint32
}

// An entry is a reservation. Inode and time of writing tell a file from another
// one of the same name.
type entry struct {
	owner uint64 // hash; 0: unknown
	addr  netip.Addr
	ino   uint64
	mtime int64
}

type page struct {
	data  [pageSize]byte
	dirty bool
}

func (p *page) count() int       { return int(binary.LittleEndian.Uint16(p.data[4:])) }
func (p *page) checksum() uint32 { return crc32.ChecksumIEEE(p.data[4:]) }
func (p *page) ranOver() bool    { return p.data[6] != 0 }

func (p *page) setCount(n int) {
	binary.LittleEndian.PutUint16(p.data[4:], uint16(n))
	p.dirty = true
}

func (p *page) runOver() {
	p.data[6] = 1
	p.dirty = true
}

// record is the i-th record of a page with records of that size.
func (p *page) record(i, size int) []byte {
	at := pageHead + i*size
	return p.data[at : at+size]
}

// hash is the owner as it stands in entries.
func (o owner) hash() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(o.text()))
	return max(h.Sum64(), 1)
}

func putEntry(b []byte, e entry) {
	addr := e.addr.As16()
	binary.LittleEndian.PutUint64(b, e.owner)
	copy(b[8:], addr[:])
	binary.LittleEndian.PutUint64(b[24:], e.ino)
	binary.LittleEndian.PutUint64(b[32:], uint64(e.mtime))
}

func getEntry(b []byte) entry {
	return entry{
		owner: binary.LittleEndian.Uint64(b),
		addr:  netip.AddrFrom16([16]byte(b[8:24])).Unmap(),
		ino:   binary.LittleEndian.Uint64(b[24:]),
		mtime: int64(binary.LittleEndian.Uint64(b[32:])),
	}
}

// newIndex makes an index of the entries, with room to grow.
func newIndex(entries []entry) *index {
	blocks := map[[16]byte]bool{}
	for _, e := range entries {
		blocks[blockOf(e.addr)] = true
	}
	owners, maps := uint32(len(entries)/entryFill+1), uint32(len(blocks)/blockFill+1)
	for {
		x := &index{fd: -1, pages: map[uint32]*page{}, head: header{Owners: owners, Blocks: maps}}
		for i := range owners + maps {
			x.pages[i+1] = &page{}
		}
		if x.fill(entries) {
			return x
		}
		owners, maps = owners*2, maps*2
	}
}

func (x *index) fill(entries []entry) bool {
	for _, e := range entries {
		if !x.insert(e) {
			return false
		}
	}
	return true
}

// openIndex opens the index at path as far as its header makes sense.
func openIndex(path string) (*index, error) {
	fd, err := file.Open(file.Here, path, unix.O_RDWR, 0)
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
		fd, err = file.Open(file.Here, path, unix.O_RDONLY, 0)
	}
	if err != nil {
		return nil, err
	}
	x := &index{fd: fd, pages: map[uint32]*page{}}
	if err := x.readHeader(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return x, nil
}

func (x *index) readHeader() error {
	b := make([]byte, headerSize+4)
	if err := file.ReadAt(x.fd, b, 0); err != nil {
		return fmt.Errorf("read index: %w", err)
	}
	body := b[:headerSize]
	x.head = getHeader(body)
	sum := binary.LittleEndian.Uint32(b[headerSize:])
	if string(body[:len(indexMagic)]) != indexMagic || sum != crc32.ChecksumIEEE(body) || x.head.Owners == 0 || x.head.Blocks == 0 {
		return errDamaged
	}
	return nil
}

func (x *index) writeHeader() error {
	b := x.head.append(nil)
	return file.WriteAt(x.fd, binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b)), 0)
}

// append appends the header as it stands in the file.
func (h *header) append(b []byte) []byte {
	b = append(append(b, indexMagic...), h.Boot[:]...)
	for _, v := range []uint64{h.Proof.Dev, h.Proof.Ino, uint64(h.Proof.Mtime), uint64(h.Proof.Ctime), uint64(h.Walked)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, h.Owners), h.Blocks)
}

// getHeader reads what append wrote.
func getHeader(b []byte) header {
	at := func(n int) uint64 { return binary.LittleEndian.Uint64(b[len(indexMagic)+len(header{}.Boot)+8*n:]) }
	return header{
		Boot:   [40]byte(b[len(indexMagic):]),
		Proof:  proof{at(0), at(1), int64(at(2)), int64(at(3))},
		Walked: int64(at(4)),
		Owners: uint32(at(5)),
		Blocks: uint32(at(5) >> 32),
	}
}

func (x *index) boot() string { return string(bytes.TrimRight(x.head.Boot[:], "\x00")) }

func (x *index) close() {
	if x != nil && x.fd >= 0 {
		_ = unix.Close(x.fd)
		x.fd = -1
	}
}

// page reads page n, once.
func (x *index) page(n uint32) (*page, error) {
	if p := x.pages[n]; p != nil {
		return p, nil
	}
	if x.fd < 0 {
		return nil, errDamaged
	}
	p := &page{}
	if err := file.ReadAt(x.fd, p.data[:], int64(n)*pageSize); err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	room := entryRoom
	if n > x.head.Owners {
		room = blockRoom
	}
	if binary.LittleEndian.Uint32(p.data[:]) != p.checksum() || binary.LittleEndian.Uint64(p.data[8:]) != uint64(n) || p.count() > room {
		return nil, errDamaged
	}
	x.pages[n] = p
	return p, nil
}

// chain visits the pages that may hold entries of an owner, until visit is done.
func (x *index) chain(owner uint64, visit func(*page) (done bool)) error {
	first, n := owner%uint64(x.head.Owners), uint64(x.head.Owners)
	for i := range n {
		p, err := x.page(1 + uint32((first+i)%n))
		if err != nil {
			return err
		}
		if visit(p) || !p.ranOver() {
			return nil
		}
	}
	return nil
}

// of lists the addresses of an owner.
func (x *index) of(owner uint64) ([]netip.Addr, error) {
	var all []netip.Addr
	err := x.chain(owner, func(p *page) bool {
		for i := range p.count() {
			if b := p.record(i, entrySize); binary.LittleEndian.Uint64(b) == owner {
				all = append(all, getEntry(b).addr)
			}
		}
		return false
	})
	return all, err
}

// entries gives all entries in pages that are whole.
func (x *index) entries() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for n := range x.head.Owners {
			p, err := x.page(n + 1)
			if err != nil {
				continue
			}
			for i := range p.count() {
				if !yield(getEntry(p.record(i, entrySize))) {
					return
				}
			}
		}
	}
}

// add takes a reservation in. What cannot be taken in leaves the index broken.
func (x *index) add(e entry) {
	if x.broken || x.insert(e) {
		return
	}
	bigger, err := x.grown()
	if err != nil || !bigger.insert(e) {
		x.broken = true
		return
	}
	x.close()
	*x = *bigger
}

// insert is false when there is no room, or a page cannot be read.
func (x *index) insert(e entry) bool {
	block, err := x.block(e.addr)
	if err == nil && block.page == nil {
		block, err = x.newBlock(e.addr)
	}
	if err != nil {
		return false
	}
	inserted := false
	err = x.chain(e.owner, func(p *page) bool {
		n := p.count()
		if n == entryRoom {
			p.runOver()
			return false
		}
		putEntry(p.record(n, entrySize), e)
		p.setCount(n + 1)
		inserted = true
		return true
	})
	if err != nil || !inserted {
		return false
	}
	block.bits[block.at/8] |= 1 << (block.at % 8)
	block.page.dirty = true
	return true
}

// grown is the index with more room. It fails when not all of it can be read.
func (x *index) grown() (*index, error) {
	count := 0
	for n := range x.head.Owners {
		p, err := x.page(n + 1)
		if err != nil {
			return nil, err
		}
		count += p.count()
	}
	all := make([]entry, 0, count)
	for e := range x.entries() {
		all = append(all, e)
	}
	y := newIndex(all)
	y.head.Walked = x.head.Walked
	return y, nil
}

// remove takes a reservation out.
func (x *index) remove(owner uint64, addr netip.Addr) {
	if !x.broken && !x.drop(owner, addr) {
		x.broken = true
	}
}

func (x *index) drop(owner uint64, addr netip.Addr) bool {
	block, err := x.block(addr)
	if err != nil || block.page == nil {
		return false
	}
	dropped := false
	err = x.chain(owner, func(p *page) bool {
		for i := range p.count() {
			if e := getEntry(p.record(i, entrySize)); e.owner == owner && e.addr == addr {
				last := p.count() - 1
				copy(p.record(i, entrySize), p.record(last, entrySize))
				p.setCount(last)
				dropped = true
				break
			}
		}
		return dropped
	})
	if err != nil || !dropped {
		return false
	}
	block.bits[block.at/8] &^= 1 << (block.at % 8)
	block.page.dirty = true
	return true
}

// A block is the bits of 1024 neighbouring addresses, and the bit of one of them.
type block struct {
	page *page // nil: none of them was ever taken
	bits []byte
	at   int
}

// blockOf is the first address of the block of ip.
func blockOf(ip netip.Addr) [16]byte {
	b := ip.As16()
	b[14] &^= (blockBits - 1) >> 8
	b[15] = 0
	return b
}

func (x *index) blockPage(key [16]byte) (*page, error) {
	h := fnv.New64a()
	_, _ = h.Write(key[:])
	return x.page(1 + x.head.Owners + uint32(h.Sum64()%uint64(x.head.Blocks)))
}

// block finds the block of ip.
func (x *index) block(ip netip.Addr) (block, error) {
	key, low := blockOf(ip), ip.As16()
	at := int(low[14])<<8&(blockBits-1) | int(low[15])
	p, err := x.blockPage(key)
	if err != nil {
		return block{}, err
	}
	for i := range p.count() {
		if b := p.record(i, blockSize); bytes.Equal(b[:blockKey], key[:]) {
			return block{p, b[blockKey:], at}, nil
		}
	}
	return block{at: at}, nil
}

// newBlock makes the block of ip.
func (x *index) newBlock(ip netip.Addr) (block, error) {
	key := blockOf(ip)
	p, err := x.blockPage(key)
	if err != nil {
		return block{}, err
	}
	n := p.count()
	if n == blockRoom {
		return block{}, errDamaged
	}
	b := p.record(n, blockSize)
	clear(b)
	copy(b, key[:])
	p.setCount(n + 1)
	return x.block(ip)
}

// free finds the first address of the run that is not taken.
func (x *index) free(r run) (ip netip.Addr, found bool, err error) {
	for from := r.from; from.IsValid() && !r.to.Less(from); from = nextBlock(from) {
		block, err := x.block(from)
		if err != nil {
			return netip.Addr{}, false, err
		}
		bit := zeroFrom(block.bits, block.at)
		if bit == blockBits {
			continue
		}
		b := blockOf(from)
		b[14] |= byte(bit >> 8)
		b[15] = byte(bit)
		ip := netip.AddrFrom16(b).Unmap()
		return ip, !r.to.Less(ip), nil
	}
	return netip.Addr{}, false, nil
}

// zeroFrom is the first zero bit at or after bit; blockBits: none.
func zeroFrom(set []byte, bit int) int {
	if set == nil {
		return bit
	}
	for ; bit < blockBits; bit = bit&^63 + 64 {
		word := binary.LittleEndian.Uint64(set[bit/64*8:]) | (1<<(bit%64) - 1)
		if word != ^uint64(0) {
			return bit&^63 + bits.TrailingZeros64(^word)
		}
	}
	return blockBits
}

// nextBlock is the first address after the block of ip; invalid: there is none.
func nextBlock(ip netip.Addr) netip.Addr {
	b := blockOf(ip)
	b[14] |= (blockBits - 1) >> 8
	b[15] = 0xff
	last := netip.AddrFrom16(b)
	if ip.Is4() {
		last = last.Unmap()
	}
	return last.Next()
}

// write brings the pages to the file at path, a new file when the index is new.
// The header of a new file is left empty: it proves nothing until writeHeader.
func (x *index) write(path string) error {
	if x.fd < 0 {
		return x.writeNew(path)
	}
	for n, p := range x.pages {
		if !p.dirty {
			continue
		}
		p.seal(n)
		if err := file.WriteAt(x.fd, p.data[:], int64(n)*pageSize); err != nil {
			return fmt.Errorf("write index: %w", err)
		}
		p.dirty = false
	}
	return nil
}

func (p *page) seal(n uint32) {
	binary.LittleEndian.PutUint64(p.data[8:], uint64(n))
	binary.LittleEndian.PutUint32(p.data[:], p.checksum())
}

func (x *index) writeNew(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	fd, err := createNew(path + ".new")
	if err != nil {
		return err
	}
	err = x.writePages(fd)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return errors.Join(err, unix.Close(fd), os.Remove(path+".new")) // a disk may be full
	}
	x.fd = fd
	return nil
}

// writePages writes all pages, behind an empty header.
func (x *index) writePages(fd int) error {
	some := make([]byte, pageSize, 16*pageSize)
	for n := range uint32(len(x.pages)) {
		if len(some) == cap(some) {
			if err := file.Write(fd, some); err != nil {
				return err
			}
			some = some[:0]
		}
		p := x.pages[n+1]
		p.seal(n + 1)
		p.dirty = false
		some = append(some, p.data[:]...)
	}
	return file.Write(fd, some)
}
