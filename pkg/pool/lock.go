package pool

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// acquireLock locks fd, the lock file at path, with flock(2). If another process holds the lock for
// longer than the limit, the error has CodeTryAgain and names that process.
func acquireLock(fd int, path string, limit time.Duration) error {
	err := lock.Flock(fd, limit)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return types.Errorf(types.CodeTryAgain, "lock %s: held by %s for over %s; if it hangs, end it and try again", path, describeLocker(fd), limit)
	}
	if err != nil {
		return types.Errorf(types.CodeIO, "lock %s: %w", path, err)
	}
	return nil
}

// describeLocker returns a text, for an error, about the process that holds the flock of fd. It finds
// the process in /proc/locks, which lists locks by inode. The process is unknown if it is outside of
// this PID namespace.
func describeLocker(fd int) string {
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Fstat(fd, &st) != nil {
		return "an unknown process"
	}
	pid := lockerPID(string(locks), st.Ino)
	if pid <= 0 {
		return "an unknown process (outside of this PID namespace?)"
	}
	comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return fmt.Sprintf("process %d, which is gone and has left the open lock to a child", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm)))
}

// lockerPID returns the ID of the process that holds a flock of the inode, or 0 if there is none. locks
// is the content of /proc/locks. A line has the form
//
//	1: FLOCK  ADVISORY  WRITE 1234 fe:00:9979870 0 EOF
//
// lockerPID ignores the device (fe:00), because on btrfs and overlayfs it is not the device that
// stat(2) returns.
func lockerPID(locks string, inode uint64) int {
	suffix := ":" + strconv.FormatUint(inode, 10)
	for line := range strings.Lines(locks) {
		field := strings.Fields(line)
		if len(field) < 6 || field[1] != "FLOCK" || !strings.HasSuffix(field[5], suffix) {
			continue
		}
		if pid, err := strconv.Atoi(field[4]); err == nil {
			return pid
		}
	}
	return 0
}
