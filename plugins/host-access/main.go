// host-access is a chained plugin that connects the host and the container's interface by a veth pair beside the interface.
// See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{
		Name: "host-access", RequireOwn: attach.RequireOwn, Chained: true, Del: del, Status: status, GC: gc, Repair: skel.Checked(parse, repair),
	}, parse, add, check)
}
