// tuning is a chained plugin that sets sysctls and the settings of the container's
// interface, and restores them on DEL. See README.md.
package main

import "github.com/plumb-cni/plumb/v2/pkg/skel"

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return machine{allowlist: "/etc/cni/tuning/allowlist.conf"}.plugin()
}

// A machine contains the path of a file on the host. Tests use another path.
type machine struct {
	allowlist string // path of the file that lists the sysctls that may be set
}

func (h machine) plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{Name: "tuning", Chained: true, Del: del, Status: h.status, GC: gc, Repair: skel.Checked(parse, h.repair)}, parse, h.add, check)
}
