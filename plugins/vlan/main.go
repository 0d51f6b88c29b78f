// vlan creates a VLAN interface for a container on an interface of the host, its master. The addresses come
// from an IPAM plugin. Without one the connection is on layer 2 only. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. GC only calls the IPAM plugin, because runtimes do not pass it the paths of
// the containers. The links are deleted with the containers.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "vlan", Add: add, Del: del, Check: check, Status: status, GC: ipam.GC}
}
