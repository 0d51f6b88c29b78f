// tc-redirect-tap is a chained plugin that connects the container's interface to a tap device, to which a virtual machine
// attaches. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. It does not support GC, because runtimes do not pass the network namespaces of
// containers to GC. The kernel deletes the taps with the namespaces.
func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{
		Name: "tc-redirect-tap", RequireOwn: attach.RequireOwn, Chained: true, Since: types.V030, Del: del, Status: status, Repair: skel.Checked(parse, repair),
	}, parse, add, check)
}
