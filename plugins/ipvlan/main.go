// ipvlan creates an ipvlan interface for a container. The master of the ipvlan is an interface of the host. The
// addresses come from an IPAM plugin or from prevResult. Without either of them, the container is connected on layer 2
// only. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{Name: "ipvlan", RequireOwn: attach.RequireOwn, Del: del, Status: status, GC: gc, Repair: skel.Checked(parse, repair)}, parse, add, check)
}
