// host-local hands out addresses from the ranges in its configuration and keeps
// its reservations in files on the node (synopsis and keys: see README.md).
package main

import (
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
	"golang.org/x/sys/unix"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return host{bootID: "/proc/sys/kernel/random/boot_id", wait: 10 * time.Second, now: sinceBoot}.plugin()
}

// A host is what the plugin takes from the machine. Tests put their own in its
// place.
type host struct {
	bootID string               // path of the file that names the running boot
	wait   time.Duration        // for the lock
	now    func() time.Duration // since boot, time asleep included
}

func (h host) plugin() skel.Plugin {
	return skel.Plugin{Name: "host-local", IPAM: true, Add: h.add, Del: h.del, Check: h.check, Status: h.status, GC: h.gc}
}

// sinceBoot is the clock of cooldowns: the same for all processes, never set, and
// it goes on while the machine sleeps.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
