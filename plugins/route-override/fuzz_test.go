package main

import (
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that every accepted configuration contains valid routes, and that the parser does not panic.
func FuzzConfig(f *testing.F) {
	nstest.FuzzConfig(f, parse, func(t *testing.T, r *skel.Request, conf *config) {
		for _, route := range append(append([]types.Route{}, conf.delRoutes...), conf.addRoutes...) {
			if err := route.Normalize(); err != nil || !route.Dst.IsValid() {
				t.Errorf("%s: accepted as %+v: %v", r.Stdin, conf, err)
			}
		}
	},
		`{"name": "n", "flushroutes": true, "flushgateway": false, "delroutes": [{"dst": "10.0.0.0/8", "gw": "10.0.0.1", "table": 7}], "addroutes": [{"dst": "::/0", "gws": ["fe80::1", "fe80::2"]}]}`,
		`{"name": "n", "args": {"cni": {"flushroutes": true, "delroutes": [{}], "addroutes": [null]}}, "requireDelRoutes": true, "skipcheck": true}`,
	)
}

// FuzzCheck tests that CHECK answers every prevResult as the specification requires.
func FuzzCheck(f *testing.F) {
	nstest.FuzzChainedCheck(f, plugin(), nstest.Call{Config: `{"cniVersion":"1.1.0","name":"net1","type":"route-override","flushroutes":true,"addroutes":[{"dst":"10.0.0.0/8"}]}`})
}
