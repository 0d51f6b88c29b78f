// vrf is a chained plugin that puts the container's interface into a VRF (virtual routing and forwarding).
// See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. It does not support GC, because runtimes do not pass GC the paths of the
// containers. The kernel deletes the VRFs with the containers.
func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{Name: "vrf", RequireOwn: attach.RequireOwn, Chained: true, Since: types.V031, Del: del}, parse, add, check)
}
