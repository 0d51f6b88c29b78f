package main

import (
	"testing"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// FuzzConfig tests that an accepted configuration is valid, and that none makes the parser
// panic.
func FuzzConfig(f *testing.F) {
	f.Add(`{"name": "n", "mtu": 1400, "mac": "02:00:00:00:00:01", "ipam": {"type": "static"}}`)
	f.Add(`{"name": "n", "mtu": 67, "runtimeConfig": {"mac": "x"}, "args": {"cni": {"mac": null}}}`)
	f.Add(`{"name": "n", "mtu": 1e9}`)
	f.Fuzz(func(t *testing.T, text string) {
		r := &skel.Request{Command: "CHECK", Stdin: []byte(text), Version: types.Newest}
		if types.Decode(r.Stdin, &r.Conf) != nil {
			return
		}
		conf, err := parse(r)
		if err != nil {
			return
		}
		if conf.mtu != 0 && (conf.mtu < attach.MinMTU || conf.mtu > attach.MaxMTU) {
			t.Errorf("%s: accepted as %+v", text, conf)
		}
		if again, err := types.ParseMAC(conf.mac.String()); conf.mac != "" && (err != nil || again != conf.mac) {
			t.Errorf("%s: MAC %s", text, conf.mac)
		}
	})
}
