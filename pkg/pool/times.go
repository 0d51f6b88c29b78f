package pool

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// times are the modification time and the change time of a folder, in nanoseconds since 1970. A session
// compares them with recorded times to detect that another process has changed the folder.
//
// The kernel sets the modification time when a process creates, removes or renames a file in the
// folder. That alone is not enough: before Linux 6.13 (multigrain timestamps) the time is that of the
// last clock tick, so two changes within 4 ms can leave the same time. Therefore each session sets the
// modification time itself, after its last change and before it releases the lock: to a time in the
// past with random nanoseconds. It records the result. A later change by any process sets the present
// time, which differs from the recorded one. The times also differ during a session, and after a
// session that was killed before it recorded them. The change time, which no program can set, also
// detects a folder whose modification time was restored from a backup.
//
// Two kinds of change are not detected: new content in an existing file, and a change without the lock
// just before a session sets the time. host-local and the reference plugin make neither. If another
// program does, the damage is small: a session reads the file of a reservation before it releases the
// reservation, and the address of a file that lost its content is free after the next reading of all.
type times struct{ mtime, ctime int64 }

// timesOf returns the times in the status of a folder.
func timesOf(st unix.Stat_t) times { return times{st.Mtim.Nano(), st.Ctim.Nano()} }

// times returns the present times of the folder.
func (d folder) times() (times, error) {
	st, err := d.stat(".")
	return timesOf(st), err
}

// errCoarse is the error of setTime on a file system that rounds times.
var errCoarse = errors.New("the filesystem does not keep times to the nanosecond")

// setTime sets the modification time of the folder to a random time in the previous second, and returns
// the new times.
func (d folder) setTime() (times, error) {
	second := time.Now().Add(-time.Second).Truncate(time.Second)
	at := unix.NsecToTimespec(second.UnixNano() + 1 + rand.Int64N(999_999_998))
	keep := unix.Timespec{Nsec: unix.UTIME_OMIT}
	err := types.RetryEINTR(func() error { return unix.UtimesNanoAt(d.fd, ".", []unix.Timespec{keep, at}, 0) })
	if err != nil {
		return times{}, d.pathError("set time of", "", err)
	}
	t, err := d.times()
	if err == nil && t.mtime != at.Nano() {
		err = errCoarse
	}
	return t, err
}

// isLocal reports whether the folder is on a file system that only this machine can use. On a shared
// file system, a reservation from another boot may belong to a running container of another machine,
// and a change of the times may become visible late.
func (d folder) isLocal() bool {
	var st unix.Statfs_t
	return types.RetryEINTR(func() error { return unix.Fstatfs(d.fd, &st) }) == nil && isLocalType(uint32(st.Type))
}

// isLocalType reports whether the file systems with this magic number (statfs(2)) are known to be local.
func isLocalType(magic uint32) bool {
	const zfs, bcachefs = 0x2fc12fc1, 0xca451a4e
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.RAMFS_MAGIC, zfs, bcachefs:
		return true
	}
	return false
}
