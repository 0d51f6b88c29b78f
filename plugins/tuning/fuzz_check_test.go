package main

import (
	"testing"

	"github.com/plumb-cni/plumb/test/nstest"
)

// FuzzCheck tests that CHECK replies as the specification says, for every prevResult.
func FuzzCheck(f *testing.F) {
	nstest.FuzzChainedCheck(f, plugin(), nstest.Call{Config: `{"cniVersion":"1.1.0","name":"net1","type":"tuning","mtu":1400,"mac":"02:00:00:00:00:07","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"},"dataDir":"` + f.TempDir() + `"}`})
}
