// portmap forwards ports of the host to a container. The runtime calls it after the plugin that
// created the container's interface. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.Plugin{Name: "portmap", Chained: true, Add: add, Del: del, Check: check, Status: status, GC: gc}
}
