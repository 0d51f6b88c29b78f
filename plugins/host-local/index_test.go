package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// saved writes the index and opens it again.
func saved(t *testing.T, x *index, path string) *index {
	t.Helper()
	if err := x.write(path); err != nil {
		t.Fatal(err)
	}
	if err := x.writeHeader(); err != nil {
		t.Fatal(err)
	}
	x.close()
	y, err := openIndex(path)
	if err != nil {
		t.Fatal(err)
	}
	return y
}

// TestIndexModel: whatever is added and removed, the index says what a map would,
// also for owners with many addresses and addresses far apart.
func TestIndexModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	r := rand.New(rand.NewPCG(1, 2))
	x, model := newIndex(nil), map[netip.Addr]uint64{}
	pool := run{ip("10.0.0.0"), ip("10.0.63.255")}
	for i := range 30000 {
		a := netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(64)), byte(r.IntN(256))})
		if r.IntN(8) == 0 {
			a = netip.AddrFrom16([16]byte{0xfd, 1: byte(r.IntN(4)), 2: byte(r.IntN(256)), 15: byte(i)})
		}
		who := owner{containerID: fmt.Sprint("c", r.IntN(3000)), ifName: "eth0"}
		if r.IntN(4) == 0 {
			who.containerID = "many"
		}
		if model[a] != 0 {
			x.remove(model[a], a)
			delete(model, a)
		} else {
			x.add(entry{owner: who.hash(), addr: a})
			model[a] = who.hash()
		}
		if i%3000 == 2999 {
			x = saved(t, x, path)
			agree(t, x, model, pool)
		}
	}
}

func agree(t *testing.T, x *index, model map[netip.Addr]uint64, pool run) {
	t.Helper()
	if x.broken {
		t.Fatal("broken")
	}
	got := map[netip.Addr]uint64{}
	for e := range x.entries() {
		got[e.addr] = e.owner
	}
	if !maps.Equal(got, model) {
		t.Fatalf("%d entries, want %d", len(got), len(model))
	}
	byOwner := map[uint64][]netip.Addr{}
	for a, who := range model {
		byOwner[who] = append(byOwner[who], a)
	}
	for who, want := range byOwner {
		got, err := x.of(who)
		slices.SortFunc(got, netip.Addr.Compare)
		slices.SortFunc(want, netip.Addr.Compare)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("owner %x has %v, want %v (%v)", who, got, want, err)
		}
	}
	for from := pool.from; pool.contains(from); from = from.Next() {
		got, found, err := x.free(run{from, pool.to})
		want := from
		for model[want] != 0 {
			want = want.Next()
		}
		if err != nil || found != pool.contains(want) || found && got != want {
			t.Fatalf("free from %s: %s %v %v, want %s", from, got, found, err, want)
		}
	}
}

// TestHeaderForm: what other versions wrote is read, and the other way round.
func TestHeaderForm(t *testing.T) {
	h := header{Proof: proof{1 << 60, 2, -3, 4}, Walked: -5, Owners: 6, Blocks: 1<<32 - 7}
	copy(h.Boot[:], "6f1e8a52-0000-4000-8000-000000000001 and")
	form := struct {
		Magic [8]byte
		header
	}{[8]byte([]byte(indexMagic)), h}
	want, err := binary.Append(nil, binary.LittleEndian, form)
	if got := h.append(nil); err != nil || len(got) != headerSize || !bytes.Equal(got, want) {
		t.Errorf("%v\ngot  %x\nwant %x", err, got, want)
	}
	if got := getHeader(want); got != h {
		t.Errorf("got %+v, want %+v", got, h)
	}
}

func TestIndexFreeAtTheEnds(t *testing.T) {
	top := ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	x := newIndex([]entry{{owner: 1, addr: ip("255.255.255.255")}, {owner: 1, addr: top}})
	for _, r := range []run{{ip("255.255.255.255"), ip("255.255.255.255")}, {top, top}} {
		if a, found, err := x.free(r); found || err != nil {
			t.Errorf("%s: %s %v", r, a, err)
		}
	}
	if a, found, _ := x.free(run{ip("10.0.0.0"), ip("10.255.255.255")}); !found || a != ip("10.0.0.0") {
		t.Errorf("a /8 that is empty: %s %v", a, found)
	}
}

// TestIndexDamage: a byte that is not as it was is found, wherever it is.
func TestIndexDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	var entries []entry
	for i := range 500 {
		entries = append(entries, entry{owner: owner{containerID: fmt.Sprint("c", i)}.hash(), addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})})
	}
	saved(t, newIndex(entries), path).close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		bad := slices.Clone(whole)
		at := pageSize + r.IntN(len(bad)-pageSize)
		bad[at] ^= 1 << r.IntN(8)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		x, err := openIndex(path)
		if err != nil {
			t.Fatal(err)
		}
		n := uint32(at / pageSize)
		if _, err := x.page(n); err == nil {
			t.Fatalf("byte %d was changed and nobody saw it", at)
		}
		x.close()
	}
	for _, size := range []int{0, 10, pageSize, len(whole) - 1} {
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		x, err := openIndex(path)
		if err == nil {
			_, err = x.grown()
		}
		if err == nil && size < len(whole)-pageSize {
			t.Errorf("cut to %d bytes and nobody saw it", size)
		}
		x.close()
	}
}

func TestLocalType(t *testing.T) {
	for magic, want := range map[uint32]bool{
		unix.EXT4_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true, unix.OVERLAYFS_SUPER_MAGIC: true,
		unix.NFS_SUPER_MAGIC: false, unix.FUSE_SUPER_MAGIC: false, unix.V9FS_MAGIC: false, unix.SMB2_SUPER_MAGIC: false, unix.CEPH_SUPER_MAGIC: false,
	} {
		if got := localType(magic); got != want {
			t.Errorf("%x: %v", magic, got)
		}
	}
}
