// bridge connects a container to a Linux bridge on the node: a veth pair whose host
// end is a port of the bridge, with addresses from an IPAM plugin or, without one,
// as plain layer 2. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.Plugin{Name: "bridge", Add: add, Del: del, Check: check, Status: status, GC: gc}
}
