// ptp connects a container to the host by a veth pair of its own. The host is the container's gateway, and
// gets a route to each of the container's addresses. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.Plugin{Name: "ptp", Add: add, Del: del, Check: check, Status: status, GC: gc}
}
