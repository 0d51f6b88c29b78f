package main

import (
	"testing"

	"github.com/plumb-cni/plumb/test/nstest"
)

// FuzzCheck: CHECK returns a success or an error as in the specification, whatever prevResult is.
func FuzzCheck(f *testing.F) {
	nstest.FuzzChainedCheck(f, plugin(), nstest.Call{Config: `{"cniVersion":"1.1.0","name":"net1","type":"portmap","snat":true,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}`})
}
