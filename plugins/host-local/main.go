// host-local allocates addresses from the ranges in its configuration, and keeps the reservations in
// files on the node. README.md explains the configuration.
package main

import (
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
	"golang.org/x/sys/unix"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return host{machine{bootID: "/proc/sys/kernel/random/boot_id", wait: 10 * time.Second, now: sinceBoot}}.plugin()
}

// A host has the verbs of the plugin.
type host struct{ machine }

func (h host) plugin() skel.Plugin {
	return skel.Plugin{Name: "host-local", IPAM: true, Add: h.add, Del: h.del, Check: h.check, Status: h.status, GC: h.gc}
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
