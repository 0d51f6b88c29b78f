// portmap forwards ports of the host to a container. The runtime calls it after the plugin that
// created the container's interface. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{
		Name: "portmap", RequireOwn: attach.RequireOwn, Chained: true, Del: del, Repair: skel.Checked(parse, repair), Status: status, GC: gc,
	}, parse, add, check)
}
