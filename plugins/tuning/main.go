// tuning sets sysctls and the settings of the container's interface, and puts them
// back on DEL. It stands in a chain, after the plugin that made the interface. See
// README.md.
package main

import "github.com/plumb-cni/plumb/pkg/skel"

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return host{allowlist: "/etc/cni/tuning/allowlist.conf"}.plugin()
}

// A host is what the plugin takes from the machine. Tests put their own in its
// place.
type host struct {
	allowlist string // path of the file that says which sysctls may be set
}

func (h host) plugin() skel.Plugin {
	return skel.Plugin{Name: "tuning", Chained: true, Add: h.add, Del: del, Check: check, Status: h.status, GC: gc}
}
