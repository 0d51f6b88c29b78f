package main

import (
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that every accepted configuration is valid, and that the parser does not panic.
func FuzzConfig(f *testing.F) {
	nstest.FuzzConfig(f, parse, func(t *testing.T, r *skel.Request, conf *config) {
		if len(conf.master.Name) > types.MaxIfName || conf.mtu != 0 && conf.mtu < attach.MinMTU || !nl.IsMacvlanMode(conf.mode) {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
		if again, err := types.ParseMAC(conf.mac.String()); conf.mac != "" && (err != nil || again != conf.mac) {
			t.Errorf("%s: MAC %s", r.Stdin, conf.mac)
		}
	},
		`{"name": "n", "master": "eth0", "mode": "bridge", "mtu": 1400, "mac": "02:00:00:00:00:01", "bcqueuelen": 5, "optimisticDAD": true}`,
		`{"name": "n", "mode": "passthru", "bcqueuelen": 4294967296, "runtimeConfig": {"mac": "x"}, "args": {"cni": {"mac": null}}}`,
		`{"name": "n", "mtu": 67}`,
		`{"name": "n", "master": "sixteen-bytes-16"}`,
	)
}

// FuzzCheck tests that CHECK answers every prevResult as the specification requires.
func FuzzCheck(f *testing.F) {
	host, container := nstest.NewHostAndContainer(f)
	host.Must(f, "ip", "link", "add", "master0", "up", "type", "veth", "peer", "name", "other0")
	nstest.FuzzCheck(f, plugin(), nstest.Call{Host: host, Container: container, Path: nstest.Build(f, "static"),
		Config: `{"cniVersion":"1.1.0","name":"net1","type":"macvlan","master":"master0",` +
			`"ipam":{"type":"static","addresses":[{"address":"10.9.0.2/24","gateway":"10.9.0.1"},{"address":"fd00::2/64"}],"routes":[{"dst":"0.0.0.0/0"}]}}`})
}
