// sbr is a chained plugin that routes the packets from the addresses of the container's interface through
// that interface (source-based routing). See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. It does not support GC, because runtimes do not pass GC the paths of the
// containers. The kernel deletes the rules and routes with the containers.
func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{Name: "sbr", RequireOwn: attach.RequireOwn, Chained: true, Del: del}, parse, add, check)
}
