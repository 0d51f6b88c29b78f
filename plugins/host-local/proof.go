package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/file"
	"golang.org/x/sys/unix"
)

// A proof is the state of a folder for which an index is right.
//
// Every create, unlink and rename in a folder sets its modification time, whoever
// does it. That alone proves nothing: before kernel 6.13 (multigrain timestamps)
// the time comes from the clock's last tick, and two changes within 4 ms leave the
// same one. So after its own last change, still under the lock, a session sets the
// time itself, to a moment in the past with random nanoseconds. Any later change
// puts the kernel's present time in its place, tick or no tick, and the proof
// fails. It fails as well while a session is at work, and when one is killed
// before its index is written. The change time, which no program can choose, tells
// a folder whose times were restored from a backup.
//
// What is written into a file without making or removing one goes unseen, and so
// does what somebody does by hand, without the lock, in the moment before a stamp.
// The plugins do neither. No file is removed, and no address given, on the word of
// the index alone; and a pool that it says is exhausted is read again at times.
type proof struct {
	Dev, Ino     uint64
	Mtime, Ctime int64
}

func proofOf(st *unix.Stat_t) proof {
	return proof{uint64(st.Dev), st.Ino, st.Mtim.Nano(), st.Ctim.Nano()}
}

var errNoProof = errors.New("the filesystem does not keep times to the nanosecond")

// stamp gives the folder a modification time that only we can have set.
func (se *session) stamp() (proof, error) {
	second := time.Now().Add(-time.Second).Truncate(time.Second)
	at := unix.NsecToTimespec(second.UnixNano() + 1 + rand.Int64N(999_999_998))
	keep := unix.Timespec{Nsec: unix.UTIME_OMIT}
	if err := unix.UtimesNanoAt(se.fd, ".", []unix.Timespec{keep, at}, 0); err != nil {
		return proof{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(se.fd, &st); err != nil {
		return proof{}, err
	}
	p := proofOf(&st)
	if p.Mtime != at.Nano() {
		return proof{}, errNoProof
	}
	return p, nil
}

// isLocal reports whether the folder is on a filesystem of this machine alone. On
// one that several machines may share, other machines' reservations are not of an
// earlier boot, and times may be seen late: no index there.
func isLocal(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && localType(uint32(st.Type))
}

// localType knows filesystems by their magic number (statfs(2)).
func localType(magic uint32) bool {
	const zfs, bcachefs = 0x2fc12fc1, 0xca451a4e
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.RAMFS_MAGIC, zfs, bcachefs:
		return true
	}
	return false
}

func (s store) indexPath() string { return filepath.Join(s.side, "index") }

// openIndex brings the index in: the one on file if it is proved, else a new one.
func (se *session) openIndex() error {
	se.boot, se.local = readBoot(se.host.bootID), isLocal(se.fd)
	x, err := openIndex(se.indexPath())
	if err != nil {
		return se.rebuild()
	}
	if se.found == x.head.Proof && x.boot() == se.boot && se.local {
		se.index = x
		return nil
	}
	defer x.close()
	if se.boot == "" || x.boot() == "" || x.boot() == se.boot || !se.local {
		return se.rebuild()
	}
	return se.reboot(x)
}

// readBoot is the ID of the running boot; empty: not known, and then nothing is of
// an earlier one.
func readBoot(path string) string {
	var room [64]byte
	text, err := file.Head(file.Here, path, 0, room[:])
	if err != nil {
		return ""
	}
	id := strings.TrimSpace(string(text))
	return id[:min(len(id), len(header{}.Boot))]
}

// reboot releases what the index of an earlier boot knows: no container outlives
// a boot. Owner, inode and time of writing must all be the same, for the reference
// may have given out the same address to the same owner since.
func (se *session) reboot(earlier *index) error {
	stale := map[entry]bool{}
	for e := range earlier.entries() {
		stale[e] = true
	}
	cooldown := se.cooldown
	se.cooldown = 0 // nobody of that boot is left to take the address for another's
	_, err := se.walk(func(h holding) bool { return h.entry.owner == 0 || !stale[h.entry] })
	se.cooldown = cooldown
	return err
}

// rebuild makes the index from the reservations.
func (se *session) rebuild() error {
	_, err := se.walk(func(holding) bool { return true })
	return err
}

// walk reads all reservations, releases those that keep refuses and makes the index
// of the rest. failed has the releases that did not succeed; err says that the
// reservations could not be read.
func (se *session) walk(keep func(holding) bool) (failed, err error) {
	se.index.close()
	se.index = nil
	var kept []entry
	err = se.trace.Do("read reservations in "+se.dir, func() error {
		names, err := se.names()
		if err != nil {
			return err
		}
		kept = make([]entry, 0, len(names))
		se.unread = nil
		se.each(names, func(h holding) {
			if !keep(h) {
				err := se.unlink(h)
				if err == nil {
					return
				}
				failed = errors.Join(failed, err)
			}
			if !h.torn {
				kept = append(kept, h.entry)
			}
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	se.index = newIndex(kept)
	se.index.head.Walked = int64(se.host.now())
	se.walked, se.changed = true, true
	return failed, nil
}

// names lists the folder.
func (se *session) names() ([]string, error) {
	dir, err := os.Open(se.dir)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return nil, fmt.Errorf("read folder: %w", err)
	}
	return names, nil
}

// each reads every reservation of those names. One that cannot be read is held by
// an owner unknown, and the session's unread.
func (se *session) each(names []string, f func(holding)) {
	for _, name := range names {
		ip, ok := parseName(name)
		if !ok {
			continue
		}
		h, err := se.read(ip)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil && se.unread == nil { // one of thousands says enough
			se.unread = err
		}
		f(h)
	}
}

// saveIndex writes the index and proves it. It is a cache, so nothing that goes
// wrong here is an error: without a proof the next session makes it anew. Nothing
// is synced to disk: after a power loss the boot is another one, the reservations
// are read again, and those that are gone or came back are of dead containers.
func (se *session) saveIndex() {
	x := se.index
	// An index would go on to say that what could not be read is nobody's, also when it
	// can be read again: that does not change the folder.
	if se.unread != nil {
		return
	}
	if x.broken || !se.local || x.write(se.indexPath()) != nil {
		return
	}
	p, err := se.stamp()
	if err != nil {
		return
	}
	x.head.Proof = p
	x.head.Boot = [40]byte{}
	copy(x.head.Boot[:], se.boot)
	_ = x.writeHeader()
}

func itoa(n int) string { return strconv.Itoa(n) }
