// ipvlan creates an ipvlan interface for a container on an interface of the host, its master. The addresses come from
// an IPAM plugin or from prevResult. Without either of them, the connection is on layer 2 only. See README.md.
package main

import "github.com/plumb-cni/plumb/pkg/skel"

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.Plugin{Name: "ipvlan", Add: add, Del: del, Check: check, Status: status, GC: gc}
}
