package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/lock"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// acquire takes the flock of fd, the lock file at path, within the limit. The error of a
// lock not got in time has CodeTryAgain and names the holder.
func acquire(fd int, path string, limit time.Duration) error {
	err := lock.Flock(fd, limit)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return types.Errorf(types.CodeTryAgain, "lock %s: held by %s for over %s; if it hangs, end it and try again", path, holder(fd), limit)
	}
	if err != nil {
		return types.Errorf(types.CodeIO, "lock %s: %w", path, err)
	}
	return nil
}

// holder says who has the flock of fd, as far as /proc/locks knows: it lists locks
// by inode, and hides those of processes outside our PID namespace.
func holder(fd int) string {
	var st unix.Stat_t
	list, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Fstat(fd, &st) != nil {
		return "an unknown process"
	}
	pid := lockOwner(string(list), st.Ino)
	if pid <= 0 {
		return "an unknown process (outside of this PID namespace?)"
	}
	comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return fmt.Sprintf("process %d, which is gone and has left the open lock to a child", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm)))
}

// lockOwner finds the process with the flock of the inode in the text of
// /proc/locks; 0: none. The device is left aside: for btrfs and overlayfs it is not
// the one that stat gives.
//
//	1: FLOCK  ADVISORY  WRITE 1234 fe:00:9979870 0 EOF
func lockOwner(list string, inode uint64) int {
	suffix := ":" + strconv.FormatUint(inode, 10)
	for line := range strings.Lines(list) {
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
