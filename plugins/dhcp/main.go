// dhcp is an IPAM plugin that gets addresses from DHCP servers. Its daemon keeps the leases. See
// README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/daemon"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{
		Name: "dhcp", IPAM: true, Del: del, Status: status, GC: gc,
		Commands: map[string]func(*skel.Request, []string) error{"daemon": daemon.Command},
	}, parse, add, check)
}
