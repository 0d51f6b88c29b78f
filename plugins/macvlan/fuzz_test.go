package main

import (
	"testing"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// FuzzConfig tests that an accepted configuration is valid, and that none makes the parser
// panic.
func FuzzConfig(f *testing.F) {
	f.Add(`{"name": "n", "master": "eth0", "mode": "bridge", "mtu": 1400, "mac": "02:00:00:00:00:01", "bcqueuelen": 5, "optimisticDAD": true}`)
	f.Add(`{"name": "n", "mode": "passthru", "bcqueuelen": 4294967296, "runtimeConfig": {"mac": "x"}, "args": {"cni": {"mac": null}}}`)
	f.Add(`{"name": "n", "mtu": 67}`)
	f.Add(`{"name": "n", "master": "sixteen-bytes-16"}`)
	f.Fuzz(func(t *testing.T, text string) {
		r := &skel.Request{Command: "CHECK", Stdin: []byte(text), Version: types.Newest}
		if types.Decode(r.Stdin, &r.Conf) != nil {
			return
		}
		conf, err := parse(r)
		if err != nil {
			return
		}
		if len(conf.master.Name) > types.MaxIfName || conf.mtu != 0 && conf.mtu < attach.MinMTU || !nl.IsMacvlanMode(conf.mode) {
			t.Errorf("%s: accepted as %+v", text, conf)
		}
		if again, err := types.ParseMAC(conf.mac.String()); conf.mac != "" && (err != nil || again != conf.mac) {
			t.Errorf("%s: MAC %s", text, conf.mac)
		}
	})
}
