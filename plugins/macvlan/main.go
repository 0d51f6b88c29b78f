// macvlan creates a macvlan interface for a container on an interface of the host, its
// master. The addresses come from an IPAM plugin; without one the connection is on layer 2
// only. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. GC only calls the IPAM plugin: the links are in containers,
// whose paths GC does not get, and are deleted with them.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "macvlan", Add: add, Del: del, Check: check, Status: status, GC: ipam.GC}
}
