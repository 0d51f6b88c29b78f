package pool

import (
	"time"

	"golang.org/x/sys/unix"
)

// A Machine contains what a store needs from the machine. Tests use other values than ThisMachine's.
type Machine struct {
	BootID string               // path of the file with the ID of the running boot
	Wait   time.Duration        // how long a call waits for the lock
	Now    func() time.Duration // returns the time since boot, including the time in suspend
}

// ThisMachine returns the values for the machine that the process runs on. A call waits for the lock for at
// most 10 seconds.
func ThisMachine() Machine {
	return Machine{BootID: "/proc/sys/kernel/random/boot_id", Wait: 10 * time.Second, Now: sinceBoot}
}

// sinceBoot returns the time since boot, by which cooldowns are measured. This clock is the same for all
// processes, cannot be set, and continues while the machine is suspended.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
