// bandwidth is a chained plugin that limits the rates at which a container receives and sends. See
// README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{
		Name: "bandwidth", RequireOwn: attach.RequireOwn, Chained: true, Since: types.V030, Del: del, Repair: skel.Checked(parse, repair), GC: gc,
	}, parse, add, check)
}
