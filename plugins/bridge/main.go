// bridge connects a container to a Linux bridge on the host. It creates a veth pair whose host
// end is a port of the bridge. An IPAM plugin provides the addresses. Without an IPAM plugin,
// the connection is on layer 2 only. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	p := skel.Plugin{Name: "bridge", RequireOwn: attach.RequireOwn, Del: del, Status: status, GC: gc, Repair: skel.Checked(parse, repair)}
	return skel.WithConfig(p, parse, add, check)
}
