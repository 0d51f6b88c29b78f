package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FuzzIndex: an index whose checksums are right and whose content is anything, which is
// more than a crash can make, ends no call in a panic or a loop, and gives no address
// that is not asked for.
func FuzzIndex(f *testing.F) {
	whole := newIndex([]entry{{owner: 7, addr: ip("10.1.2.2"), ino: 1, mtime: 2}, {owner: 7, addr: ip("fd00::2")}})
	f.Add(uint8(1), uint8(1), whole.pages[1].data[4:], whole.pages[2].data[4:], uint64(7))
	full := newIndex(nil) // but for the last address of the run, and one behind it
	for a := ip("10.1.2.0"); a != ip("10.1.9.255"); a = a.Next() {
		full.add(entry{owner: 8, addr: a})
	}
	f.Add(uint8(1), uint8(1), full.pages[1].data[4:], full.pages[full.head.Owners+1].data[4:], uint64(8))
	f.Add(uint8(3), uint8(2), []byte{0xff, 0xff, 1}, []byte{5, 0, 1}, uint64(0))
	f.Add(uint8(1), uint8(1), []byte{byte(entryRoom), 0, 1}, []byte{byte(blockRoom)}, uint64(1))
	f.Fuzz(func(t *testing.T, owners, blocks uint8, ownerPage, blockPage []byte, who uint64) {
		owners, blocks = owners%5, blocks%5 // more are not more ways
		path := filepath.Join(t.TempDir(), "index")
		file := make([]byte, pageSize)
		for n := range uint32(owners) + uint32(blocks) {
			p := &page{}
			content := ownerPage
			if n >= uint32(owners) {
				content = blockPage
			}
			copy(p.data[4:], content)
			p.seal(n + 1)
			file = append(file, p.data[:]...)
		}
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		x := openedAs(t, path, header{Owners: uint32(owners), Blocks: uint32(blocks)})
		if x == nil {
			return
		}
		defer func() { x.close() }()
		r := run{ip("10.1.2.0"), ip("10.1.9.255")}
		if got, found, err := x.free(r); found {
			b, berr := x.block(got)
			if taken := b.bits != nil && b.bits[b.at/8]&(1<<(b.at%8)) != 0; err != nil || berr != nil || !r.contains(got) || taken {
				t.Errorf("%s is free in %s: %v, %v", got, r, err, berr)
			}
		}
		held, _ := x.of(who)
		for _, a := range held {
			x.remove(who, a)
		}
		n := 0
		for range x.entries() {
			n++
		}
		if n > entryRoom*int(owners) {
			t.Errorf("%d entries on %d pages", n, owners)
		}
		x.add(entry{owner: who, addr: ip("10.1.3.3")})
		_ = x.write(path)
	})
}

// openedAs is the index at path under that header; nil: it is refused.
func openedAs(t *testing.T, path string, h header) *index {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := (&index{fd: int(f.Fd()), head: h}).writeHeader(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	x, err := openIndex(path)
	if err != nil {
		return nil
	}
	return x
}

// FuzzIndexHeader: no header makes a panic; one that is taken has what is divided by.
func FuzzIndexHeader(f *testing.F) {
	f.Add([]byte(indexMagic))
	f.Add(make([]byte, 2*pageSize))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "index")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if x, err := openIndex(path); err == nil {
			if x.head.Owners == 0 || x.head.Blocks == 0 {
				t.Errorf("%+v", x.head)
			}
			_, _ = x.of(1)
			_, _, _ = x.free(run{ip("10.0.0.0"), ip("10.0.0.255")})
			x.close()
		}
	})
}

// FuzzReleases: the times of releases hold no address back for longer than a cooldown,
// and none that is not in the file.
func FuzzReleases(f *testing.F) {
	se := &session{store: store{cooldown: time.Minute, host: host{now: func() time.Duration { return time.Hour }}}, boot: "b"}
	f.Add(append(se.bootRecord(), releaseRecord(ip("10.1.2.2"), 59*time.Minute+time.Second)...))
	f.Add(append(se.bootRecord(), releaseRecord(ip("10.1.2.2"), 1<<62)...))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for a, at := range se.released(text) {
			if now := se.host.now(); at > now || now-at >= se.cooldown {
				t.Errorf("%s is held back since %s", a, at)
			}
			b := a.As16()
			if !strings.Contains(string(text), string(binary.LittleEndian.AppendUint64(b[:], uint64(at)))) {
				t.Errorf("%s is not in the file", a)
			}
		}
		if kept := se.compact(text); len(kept) > max(len(text), releaseSize) {
			t.Errorf("compacted from %d to %d bytes", len(text), len(kept))
		}
	})
}

// FuzzName: the name of a reservation is the one form of an address, and no path.
func FuzzName(f *testing.F) {
	for _, s := range []string{"10.1.2.2", "fd00::2", "::ffff:1.2.3.4", "fe80::1%../x", "lock", "last_reserved_ip.0", "10.01.2.2", ".."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, ok := parseName(s)
		if ok && (a.String() != s || filepath.Join("/d", s) != "/d/"+s || a.Unmap() != a || a.Zone() != "") {
			t.Errorf("%q is taken for %s", s, a)
		}
	})
}

// FuzzResolvConf: what is read from resolv.conf is words.
func FuzzResolvConf(f *testing.F) {
	f.Add("nameserver 10.0.0.1\nsearch a b\noptions ndots:5\ndomain x # y\n;c\n")
	f.Fuzz(func(t *testing.T, text string) {
		dns := parseResolvConf(text)
		for _, word := range append(append(append(dns.Nameservers, dns.Search...), dns.Options...), dns.Domain) {
			if strings.ContainsAny(word, " \t\n") || !strings.Contains(text, word) {
				t.Errorf("%q has %q", text, word)
			}
		}
	})
}

// FuzzLocks: whatever /proc/locks looks like, its holder is a process.
func FuzzLocks(f *testing.F) {
	f.Add("1: FLOCK  ADVISORY  WRITE 1234 fe:00:9979870 0 EOF\n2: -> FLOCK", uint64(9979870))
	f.Fuzz(func(t *testing.T, list string, inode uint64) {
		if pid := lockOwner(list, inode); pid != 0 && !strings.Contains(list, "FLOCK") {
			t.Errorf("%d holds %d in %q", pid, inode, list)
		}
	})
}

// FuzzDelPlace: DEL and GC find where to look in any configuration that is JSON, and
// never below a path that is relative.
func FuzzDelPlace(f *testing.F) {
	f.Add("/var/lib/x", int64(5))
	f.Add("../x", int64(-1))
	f.Fuzz(func(t *testing.T, dir string, cooldown int64) {
		p, err := newPlace(dir, cooldown)
		if err == nil && (!filepath.IsAbs(p.dataDir) || filepath.Clean(p.dataDir) != p.dataDir || p.cooldown > maxCooldown*time.Second) {
			t.Errorf("%q: %+v", dir, p)
		}
	})
}
