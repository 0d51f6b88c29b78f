package main

import (
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that the VLANs of every accepted configuration are valid, and that the parser never panics.
func FuzzConfig(f *testing.F) {
	nstest.FuzzConfig(f, parse, func(t *testing.T, r *skel.Request, conf *config) {
		if conf.vlan < 0 || conf.vlan > nl.MaxVLAN || len(conf.trunk) > nl.MaxVLAN {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
	},
		`{"name":"n","type":"bridge","vlanTrunk":[{"minID":5,"maxID":7}]}`,
		`{"name":"n","vlanTrunk":[null],"runtimeConfig":null,"args":{"cni":null}}`,
		`{"name":"n","mtu":1e3,"ipam":{"type":5}}`,
	)
}

// FuzzCheck tests that CHECK replies as the CNI specification requires, for any prevResult.
func FuzzCheck(f *testing.F) {
	nstest.FuzzCheck(f, plugin(), nstest.Call{Path: nstest.Build(f, "static"), Config: `{"cniVersion":"1.1.0","name":"net1","type":"bridge",` +
		`"isDefaultGateway":true,"ipMasq":true,"macspoofchk":true,"ipam":{"type":"static","addresses":[{"address":"10.9.0.2/24"},{"address":"fd00::2/64"}]}}`})
}
