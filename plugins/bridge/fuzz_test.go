package main

import (
	"testing"

	"github.com/plumb-cni/plumb/test/nstest"
)

// FuzzCheck tests that CHECK answers as the specification says, whatever prevResult is.
func FuzzCheck(f *testing.F) {
	nstest.FuzzCheck(f, plugin(), nstest.Call{Path: nstest.Build(f, "static"), Config: `{"cniVersion":"1.1.0","name":"net1","type":"bridge",` +
		`"isDefaultGateway":true,"ipMasq":true,"macspoofchk":true,"ipam":{"type":"static","addresses":[{"address":"10.9.0.2/24"},{"address":"fd00::2/64"}]}}`})
}
