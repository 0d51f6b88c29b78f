// macvlan makes a macvlan interface for a container on an interface of the node, its
// master, with addresses from an IPAM plugin or without addresses. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. GC only calls the IPAM plugin: a link goes with its
// container, and GC gets no path to containers.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "macvlan", Add: add, Del: del, Check: check, Status: status, GC: ipam.GC}
}

// codeDuplicate is the code of an ADD that found another host with the address.
const codeDuplicate = 101
