// dummy creates a dummy interface in a container, with addresses from an IPAM plugin. The kernel
// drops all packets that are routed to the interface. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. GC only calls the IPAM plugin, because GC does not get the paths of
// the containers. The kernel deletes the links together with the containers' namespaces.
func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{Name: "dummy", RequireOwn: attach.RequireOwn, Del: del, Status: status, GC: ipam.GC, Repair: skel.Checked(parse, repair)}, parse, add, check)
}
