package main

import (
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// FuzzConfig tests that the addresses of every accepted configuration are valid for an interface, are not
// duplicates, and have gateways of their family.
func FuzzConfig(f *testing.F) {
	f.Add(`{"ipam": {"addresses": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1"}], "routes": [{"dst": "::/0", "gw": "fe80::1"}]}}`, "IP=10.0.0.9/24,fd00::9/64;GATEWAY=10.0.0.1,fd00::1")
	f.Add(`{"ipam": {"addresses": [null, {"address": "0.0.0.0/0", "version": 4}]}, "runtimeConfig": {"ips": ["::ffff:10.0.0.5/120"]}}`, "IP=,")
	f.Add(`{"ipam": {"addresses": [{"address": "10.0.0.5/24"}, {"address": "10.0.0.5/24"}, {"address": "fd00::5/64", "gateway": "10.0.0.1"}]}}`, "")
	f.Add(`{"ipam": {"addresses": [{"address": "10.0.0.5/24"}]}}`, "IP=10.0.0.5/24;GATEWAY=10.0.0.1")
	f.Fuzz(func(t *testing.T, text, args string) {
		var raw rawConfig
		given, err := types.ParseArgs(args)
		if err != nil || types.Decode([]byte(text), &raw) != nil {
			return
		}
		conf, err := raw.toConfig(given, types.Newest)
		if err != nil {
			return
		}
		for i, ip := range conf.ips {
			if !ip.Address.IsValid() || ip.Address.Addr().Is4In6() || ip.Address.Addr().IsUnspecified() || ip.Gateway.IsValid() && ip.Gateway.Is4() != ip.Address.Addr().Is4() {
				t.Errorf("%s, %s: %+v", text, args, ip)
			}
			for _, other := range conf.ips[:i] {
				if other.Address == ip.Address {
					t.Errorf("%s, %s: address %s is a duplicate", text, args, ip.Address)
				}
			}
		}
		result := &types.Result{IPs: conf.ips, Routes: conf.routes, DNS: conf.dns}
		if b, err := result.MarshalLease(types.Newest); err != nil {
			t.Errorf("%s, %s: %v", text, args, err)
		} else if _, err := types.ParseResult(types.Newest, b); err != nil {
			t.Errorf("result %s cannot be parsed: %v", b, err)
		}
	})
}
