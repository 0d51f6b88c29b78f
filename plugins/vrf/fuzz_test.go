package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
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
	f.Add(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],"ips":[{"interface":0,"address":"10.9.0.2/24"}]}`)
	f.Add(`{"cniVersion":"0.3.1","ips":[{"version":"4","interface":-7,"address":"10.9.0.2/24"}]}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, prev string) {
		if !json.Valid([]byte(prev)) {
			return
		}
		c := nstest.Call{Command: "CHECK", Host: host, Container: container, Config: nstest.WithPrevResult(`{"cniVersion":"1.1.0","name":"net1","type":"vrf","vrfname":"blue"}`, prev)}
		if failure := nstest.Run(plugin(), c).Failure(t); strings.HasPrefix(failure.Msg, "panic") {
			t.Errorf("prevResult %s: %s", prev, failure)
		}
	})
}
