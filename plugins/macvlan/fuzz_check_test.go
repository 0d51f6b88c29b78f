package main

import (
	"testing"

	"github.com/plumb-cni/plumb/test/nstest"
)

// FuzzCheck tests that CHECK answers as the specification says, whatever prevResult is.
func FuzzCheck(f *testing.F) {
	node, pod := nstest.NewNodeAndPod(f)
	node.Must(f, "ip", "link", "add", "master0", "up", "type", "veth", "peer", "name", "other0")
	nstest.FuzzCheck(f, plugin(), nstest.Call{Node: node, Pod: pod, Path: nstest.Build(f, "static"),
		Config: `{"cniVersion":"1.1.0","name":"net1","type":"macvlan","master":"master0",` +
			`"ipam":{"type":"static","addresses":[{"address":"10.9.0.2/24","gateway":"10.9.0.1"},{"address":"fd00::2/64"}],"routes":[{"dst":"0.0.0.0/0"}]}}`})
}
