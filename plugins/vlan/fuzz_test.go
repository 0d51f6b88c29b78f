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
	f.Add(`{"name": "n", "master": "eth0", "vlanId": 100, "mtu": 1400, "mac": "02:00:00:00:00:01", "protocol": "802.1ad", "optimisticDAD": true}`)
	f.Add(`{"name": "n", "master": "eth0", "vlanId": 4095, "runtimeConfig": {"mac": "x"}, "args": {"cni": {"mac": null}}}`)
	f.Add(`{"name": "n", "master": "eth0", "vlanId": null}`)
	f.Add(`{"name": "n", "master": "sixteen-bytes-16", "vlanId": 0}`)
	f.Add(`{"name": "n", "linkInContainer": true, "ifName": "storage", "vlanId": 5}`)
	f.Fuzz(func(t *testing.T, text string) {
		r := &skel.Request{Command: "CHECK", Stdin: []byte(text), Version: types.Newest}
		if types.Decode(r.Stdin, &r.Conf) != nil {
			return
		}
		conf, err := parse(r)
		if err != nil {
			return
		}
		if name := conf.master.Name; name == "" && !conf.inChain || len(name) > types.MaxIfName || conf.mtu != 0 && conf.mtu < attach.MinMTU {
			t.Errorf("%s: accepted as %+v", text, conf)
		}
		if conf.id < 0 || conf.id > 4094 || !nl.IsVLANProtocol(conf.protocol) {
			t.Errorf("%s: accepted as %+v", text, conf)
		}
	})
}
