// firewall is a chained plugin that lets the host forward a container's packets, and isolates bridges from
// each other. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{
		Name: "firewall", RequireOwn: attach.RequireOwn, Since: types.V040, Chained: true, Del: del, Status: status, GC: gc, Repair: skel.Checked(parse, repair),
		Commands: map[string]func(*skel.Request, []string) error{"restore": restore},
	}, parse, add, check)
}
