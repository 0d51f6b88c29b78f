// sbr is a chained plugin that routes the packets from the addresses of the container's interface
// through that interface (source based routing). See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

func main() { skel.Main(plugin()) }

// plugin describes the plugin. It has no GC: rules and routes are in containers, whose paths GC does
// not get, and are deleted with them.
func plugin() skel.Plugin {
	return skel.Plugin{Name: "sbr", Chained: true, Add: add, Del: del, Check: check, Status: status}
}

// status returns an error if the configuration is invalid.
func status(r *skel.Request) error {
	_, err := parse(r)
	return types.NotAvailable(err)
}
