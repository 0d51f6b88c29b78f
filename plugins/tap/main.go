// tap creates a tap device in a container. A program, such as a virtual machine monitor, attaches to the device. The
// addresses come from an IPAM plugin. Without an IPAM plugin, the connection is on layer 2 only. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. GC only calls the IPAM plugin, because runtimes do not pass it the paths of the
// containers. The kernel deletes the links with the containers.
func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{Name: "tap", RequireOwn: attach.RequireOwn, Del: del, Status: status, GC: ipam.GC, Repair: skel.Checked(parse, repair)}, parse, add, check)
}
