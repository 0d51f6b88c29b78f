// host-device moves an interface of the host into a container, and back to the host. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return machine{sys: "/sys", states: "/run/cni/host-device"}.plugin()
}

// A machine contains the paths of directories on the host. Tests use other paths.
type machine struct {
	sys    sysfs
	states string // the directory of the state files, or the default that a verb passes to StateDir
}

func (h machine) plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{Name: "host-device", RequireOwn: attach.RequireOwn, Del: h.del, Status: h.status, GC: h.gc, Repair: skel.Checked(parse, h.repair)}, parse, h.add, h.check)
}
