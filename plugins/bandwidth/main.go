// bandwidth limits the rate at which a container receives and sends. It is chained
// after the plugin that makes the interface. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.Plugin{Name: "bandwidth", Chained: true, Since: types.V030, Add: add, Del: del, Check: check, Status: status, GC: gc}
}
