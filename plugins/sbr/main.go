// sbr is a chained plugin that routes the packets from the addresses of the container's interface through
// that interface (source-based routing). See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. It does not support GC, because runtimes do not pass GC the paths of the
// containers. The rules and routes are deleted with the containers.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "sbr", Chained: true, Add: add, Del: del, Check: check, Status: status}
}

func status(r *skel.Request) error {
	_, err := parse(r)
	return types.NotAvailable(err)
}
