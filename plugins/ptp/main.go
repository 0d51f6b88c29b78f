// ptp connects a container to the host by a veth pair of its own. The host is the gateway of
// the container, and has a route to each of its addresses. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.Plugin{Name: "ptp", Add: add, Del: del, Check: check, Status: status, GC: gc}
}
