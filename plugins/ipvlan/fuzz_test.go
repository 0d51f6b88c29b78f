package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that every accepted configuration is valid, and that the parser does not panic, even with a
// prevResult.
func FuzzConfig(f *testing.F) {
	nstest.FuzzConfig(f, parse, func(t *testing.T, r *skel.Request, conf *config) {
		if err := conf.master.UsePrev(r); err != nil {
			return
		}
		if len(conf.master.Name) > types.MaxIfName || conf.master.Name == "lo" || conf.mtu != 0 && conf.mtu < attach.MinMTU {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
		if !conf.mode.HasKnownMode() || !conf.mode.HasKnownFlag() || !filepath.IsAbs(conf.dataDir) {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
	},
		`{"name": "n", "master": "eth0", "mode": "l3s", "flag": "vepa", "mtu": 1400, "optimisticDAD": true, "dataDir": "/run/x"}`,
		`{"name": "n", "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}], "ips": [{"address": "192.0.2.1/24"}]}}`,
		`{"name": "n", "prevResult": {"interfaces": [{"name": "sixteen-bytes-16"}]}, "ipam": {"type": "static"}}`,
		`{"name": "n", "mode": "l4", "mtu": 67, "dataDir": "x"}`,
	)
}

// TestRecord compares a record with a golden file, because other versions of plumb read records.
func TestRecord(t *testing.T) {
	owner := types.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
	text, err := json.MarshalIndent(record{Attachment: owner, Parent: "5/7", Mode: "l3s", Flag: "vepa"}, "", " ")
	nstest.Must(t, err)
	nstest.Golden(t, "record", string(text))
}
