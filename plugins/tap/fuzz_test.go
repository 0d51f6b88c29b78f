package main

import (
	"math"
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
		if conf.mtu != 0 && (conf.mtu < attach.MinMTU || conf.mtu > nl.MaxTapMTU) || len(conf.bridge) > types.MaxIfName {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
		for _, id := range []*uint32{conf.tap.Owner, conf.tap.Group} {
			if id != nil && *id == math.MaxUint32 {
				t.Errorf("%s: accepted ID %d", r.Stdin, *id)
			}
		}
		if again, err := types.ParseMAC(conf.mac.String()); conf.mac != "" && (err != nil || again != conf.mac) {
			t.Errorf("%s: MAC %s", r.Stdin, conf.mac)
		}
	},
		`{"name": "n", "multiQueue": true, "mtu": 1400, "mac": "02:00:00:00:00:01", "owner": 0, "group": 4294967294, "bridge": "br0"}`,
		`{"name": "n", "mtu": 65522, "owner": 4294967295, "runtimeConfig": {"mac": "x"}, "args": {"cni": {"mac": null}}}`,
		`{"name": "n", "owner": -1, "group": null, "selinuxContext": "a\nb"}`,
	)
}

// FuzzCheck tests that CHECK answers every prevResult as the specification requires.
func FuzzCheck(f *testing.F) {
	nstest.RequireTaps(f)
	nstest.FuzzCheck(f, plugin(), nstest.Call{Path: nstest.Build(f, "static"),
		Config: `{"cniVersion":"1.1.0","name":"net1","type":"tap",` +
			`"ipam":{"type":"static","addresses":[{"address":"10.9.0.2/24","gateway":"10.9.0.1"},{"address":"fd00::2/64"}],"routes":[{"dst":"0.0.0.0/0"}]}}`})
}
