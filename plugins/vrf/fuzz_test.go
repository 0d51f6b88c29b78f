package main

import (
	"math"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that every accepted configuration is valid, and that the parser does not panic.
func FuzzConfig(f *testing.F) {
	nstest.FuzzConfig(f, parse, func(t *testing.T, r *skel.Request, conf *config) {
		if conf.name == "" || len(conf.name) > types.MaxIfName || strings.ContainsAny(conf.name, "/: %") || conf.name == "eth0" ||
			conf.table < 0 || int64(conf.table) > math.MaxUint32 || conf.table >= 253 && conf.table <= 255 {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
	},
		`{"name": "n", "vrfname": "blue", "table": 1000}`,
		`{"name": "n", "vrfname": "blue%d", "table": 4294967296}`,
		`{"name": "n", "vrfname": "sixteen-bytes-16", "table": 255}`,
	)
}

// FuzzCheck tests that CHECK answers every prevResult as the specification requires. It uses no VRF, because
// not every kernel supports VRFs.
func FuzzCheck(f *testing.F) {
	host, container := nstest.NewHostAndContainer(f)
	f.Add(`{"cniVersion":"0.3.1","ips":[{"version":"4","interface":-7,"address":"10.9.0.2/24"}]}`)
	c := nstest.Call{Host: host, Container: container, Config: nstest.Conf("vrf", "1.1.0", blue, "")}
	nstest.FuzzPrevResult(f, plugin(), c,
		`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"SANDBOX"}],"ips":[{"interface":0,"address":"10.9.0.2/24"}]}`)
}
