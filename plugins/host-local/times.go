package main

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// times are the times of a folder, by which a change in it is noticed.
//
// Every create, unlink and rename in a folder sets its modification time, whoever
// does it. That alone is not enough: before kernel 6.13 (multigrain timestamps)
// the time comes from the clock's last tick, and two changes within 4 ms leave the
// same one. So after its own last change, still under the lock, a session sets the
// time itself, to a moment in the past with random nanoseconds. Any later change
// puts the kernel's present time there instead, and the times differ from those that
// were written down. They differ as well while a session is at work, and after one was
// killed before it wrote them down. The change time, which no program can choose,
// distinguishes a folder whose times were restored from a backup.
//
// What is written into a file without making or removing one is not noticed, and
// neither is what somebody does without the lock just before a session sets the time.
// The plugins do neither. No reservation is removed, and no address given, without a look
// at the reservation's file, and an exhausted pool is read again at times.
type times struct{ mtime, ctime int64 }

func timesOf(st unix.Stat_t) times { return times{st.Mtim.Nano(), st.Ctim.Nano()} }

func (d folder) times() (times, error) {
	st, err := d.stat(".")
	return timesOf(st), err
}

var errCoarse = errors.New("the filesystem does not keep times to the nanosecond")

// setTime gives the folder a modification time that only we can have set.
func (d folder) setTime() (times, error) {
	second := time.Now().Add(-time.Second).Truncate(time.Second)
	at := unix.NsecToTimespec(second.UnixNano() + 1 + rand.Int64N(999_999_998))
	keep := unix.Timespec{Nsec: unix.UTIME_OMIT}
	err := types.RetryEINTR(func() error { return unix.UtimesNanoAt(d.fd, ".", []unix.Timespec{keep, at}, 0) })
	if err != nil {
		return times{}, d.error("set time of", "", err)
	}
	t, err := d.times()
	if err == nil && t.mtime != at.Nano() {
		err = errCoarse
	}
	return t, err
}

// isLocal reports whether the folder is on a filesystem of this machine alone. On
// one that several machines may share, other machines' reservations are not of an
// earlier boot, and times may be seen late.
func (d folder) isLocal() bool {
	var st unix.Statfs_t
	return types.RetryEINTR(func() error { return unix.Fstatfs(d.fd, &st) }) == nil && localType(uint32(st.Type))
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
