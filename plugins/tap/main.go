// tap creates a tap device in a container. A program, such as a virtual machine monitor, attaches to the
// device. The addresses come from an IPAM plugin; without one the connection is on layer 2 only.
// See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. GC only calls the IPAM plugin: the links are in containers,
// whose paths GC does not get, and are deleted with them.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "tap", Add: add, Del: del, Check: check, Status: status, GC: ipam.GC}
}
