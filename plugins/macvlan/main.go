// macvlan creates a macvlan interface for a container. The master of the macvlan is an interface of the host. The
// addresses come from an IPAM plugin. Without an IPAM plugin, the container is connected on layer 2 only. See
// README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. GC deletes no links, because runtimes do not pass it the paths of the containers. The kernel
// deletes the links with the containers.
func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{Name: "macvlan", RequireOwn: attach.RequireOwn, Del: del, Status: status, GC: ipam.GC, Repair: skel.Checked(parse, repair)}, parse, add, check)
}
