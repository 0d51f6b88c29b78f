// dummy creates a dummy interface for a container: one that has addresses, and drops all packets
// that are sent to other hosts. The addresses come from an IPAM plugin. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. GC only calls the IPAM plugin: the links are in containers,
// whose paths GC does not get, and are deleted with them.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "dummy", Add: add, Del: del, Check: check, Status: status, GC: ipam.GC}
}
