package main

import (
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that an accepted configuration is valid, and that the parser never panics.
func FuzzConfig(f *testing.F) {
	nstest.FuzzConfig(f, parse, func(t *testing.T, r *skel.Request, conf *config) {
		if conf.mtu != 0 && (conf.mtu < attach.MinMTU || conf.mtu > attach.MaxMTU) {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
		if parsed, err := types.ParseMAC(conf.mac.String()); conf.mac != "" && (err != nil || parsed != conf.mac) {
			t.Errorf("%s: accepted with MAC %s", r.Stdin, conf.mac)
		}
	},
		`{"name": "n", "mtu": 1400, "mac": "02:00:00:00:00:01", "ipam": {"type": "static"}}`,
		`{"name": "n", "mtu": 67, "runtimeConfig": {"mac": "x"}, "args": {"cni": {"mac": null}}}`,
		`{"name": "n", "mtu": 1e9}`,
	)
}
