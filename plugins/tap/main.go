// tap creates a tap device in a container. A program, such as a virtual machine monitor, attaches to the device. The
// addresses come from an IPAM plugin. Without one the connection is on layer 2 only. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. GC only calls the IPAM plugin, because runtimes do not pass it the paths of
// the containers. The links are deleted with the containers.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "tap", Add: add, Del: del, Check: check, Status: status, GC: ipam.GC}
}
