package main

import (
	"testing"

	"github.com/plumb-cni/plumb/test/nstest"
)

// FuzzCheck tests that CHECK replies as the specification says, for every prevResult.
func FuzzCheck(f *testing.F) {
	nstest.FuzzChainedCheck(f, plugin(), nstest.Call{Config: `{"cniVersion":"1.1.0","name":"net1","type":"bandwidth","ingressRate":1000000,"ingressBurst":1000000,"egressRate":1000000,"egressBurst":1000000}`})
}
