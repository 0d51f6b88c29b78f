// portmap forwards ports of the node to a container. It is called after the plugin
// that made the interface. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.Plugin{Name: "portmap", Chained: true, Add: add, Del: del, Check: check, Status: status, GC: gc}
}
