// ptp connects each container to the host by a separate veth pair. The host is the container's gateway,
// and gets a route to each of the container's addresses. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	p := skel.Plugin{Name: "ptp", RequireOwn: attach.RequireOwn, Del: del, Status: status, GC: gc, Repair: skel.Checked(parse, repair)}
	return skel.WithConfig(p, parse, add, check)
}
