// route-override is a chained plugin that deletes and adds routes of the container's interface. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. It supports neither DEL nor GC, because the kernel deletes the routes with the interface.
func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{Name: "route-override", RequireOwn: attach.RequireOwn, Chained: true}, parse, add, check)
}
