// vrf is a chained plugin that puts the container's interface into a VRF (virtual routing and forwarding).
// See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. It does not support GC, because runtimes do not pass GC the paths of the
// containers. The VRFs are deleted with the containers.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "vrf", Chained: true, Since: types.V031, Add: add, Del: del, Check: check, Status: status}
}

func status(r *skel.Request) error {
	_, err := parse(r)
	return types.NotAvailable(err)
}
