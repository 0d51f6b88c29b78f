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
		if name := conf.master.Name; name == "" && !conf.inChain || len(name) > types.MaxIfName || conf.mtu != 0 && conf.mtu < attach.MinMTU {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
		if conf.id < 0 || conf.id > 4094 || !nl.IsVLANProtocol(conf.protocol) {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
	},
		`{"name": "n", "master": "eth0", "vlanId": 100, "mtu": 1400, "mac": "02:00:00:00:00:01", "protocol": "802.1ad", "optimisticDAD": true}`,
		`{"name": "n", "master": "eth0", "vlanId": 4095, "runtimeConfig": {"mac": "x"}, "args": {"cni": {"mac": null}}}`,
		`{"name": "n", "master": "eth0", "vlanId": null}`,
		`{"name": "n", "master": "sixteen-bytes-16", "vlanId": 0}`,
		`{"name": "n", "linkInContainer": true, "ifName": "storage", "vlanId": 5}`,
	)
}
