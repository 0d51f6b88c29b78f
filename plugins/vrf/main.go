// vrf is a chained plugin that puts the container's interface into a VRF of the container (virtual
// routing and forwarding). See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. It has no GC: VRFs are in containers, whose paths GC does not get, and are
// deleted with them.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "vrf", Chained: true, Since: types.V031, Add: add, Del: del, Check: check, Status: status}
}

// status returns an error if the configuration is invalid.
func status(r *skel.Request) error {
	_, err := parse(r)
	return types.NotAvailable(err)
}
