// macvlan gives a container an interface of its own on the segment of one of the
// node's, its master, with addresses from an IPAM plugin or, without one, as plain
// layer 2. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin has IPAM's GC for its own: a link in a container goes with the container,
// and GC is told no way into containers.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "macvlan", Add: add, Del: del, Check: check, Status: status, GC: ipam.GC}
}

// The codes of this plugin; README.md explains them.
const (
	codeChanged   = 100 // CHECK: something is not as ADD left it
	codeDuplicate = 101 // ADD: somebody on the segment has the address
)
