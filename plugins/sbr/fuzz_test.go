package main

import (
	"math"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that every accepted configuration is valid, and that the parser does not panic.
func FuzzConfig(f *testing.F) {
	nstest.FuzzConfig(f, parse, func(t *testing.T, r *skel.Request, conf *config) {
		if conf.table < 0 || int64(conf.table) > math.MaxUint32 || conf.keep != keepNone && conf.keep != keepSubnet && conf.keep != keepAll {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
		for i, a := range conf.gateways {
			if !a.IsValid() || a.Is4In6() || a.Zone() != "" || i > 1 || i == 1 && conf.gateways[0].Is4() == a.Is4() {
				t.Errorf("%s: gateways %s", r.Stdin, conf.gateways)
			}
		}
	},
		`{"name": "n", "table": 100, "gateways": ["10.0.0.1", "fe80::1"], "keepMain": "subnet", "addSourceHints": true}`,
		`{"name": "n", "table": 4294967296, "gateways": ["::ffff:10.0.0.1", "10.0.0.1", "fe80::1%eth0"], "keepMain": ""}`,
		`{"name": "n", "table": null, "gateways": ["0.0.0.0", "ff02::1"]}`,
	)
}

// FuzzCheck tests that CHECK answers every prevResult as the specification requires.
func FuzzCheck(f *testing.F) {
	nstest.FuzzChainedCheck(f, plugin(), nstest.Call{Config: `{"cniVersion":"1.1.0","name":"net1","type":"sbr","gateways":["10.9.0.9"]}`})
}
