package nstest

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// LockWaiters returns the lines of /proc/locks for the processes that wait for a lock of the file. A line ends with the first
// and the last byte of the lock (proc_locks(5)).
func LockWaiters(path string) (waiters []string) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return nil
	}
	list, _ := os.ReadFile("/proc/locks")
	for line := range strings.Lines(string(list)) {
		if strings.Contains(line, ": -> ") && strings.Contains(line, fmt.Sprintf(" %02x:%02x:%d ", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)) {
			waiters = append(waiters, strings.TrimSpace(line))
		}
	}
	return waiters
}
