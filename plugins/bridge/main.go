// bridge connects a container to a Linux bridge on the host. It creates a veth pair whose host
// end is a port of the bridge. The addresses come from an IPAM plugin; without one the
// connection is on layer 2 only. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.Plugin{Name: "bridge", Add: add, Del: del, Check: check, Status: status, GC: gc}
}
