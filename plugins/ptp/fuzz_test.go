package main

import (
	"net/netip"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that every accepted configuration is valid, and that the parser does not panic.
func FuzzConfig(f *testing.F) {
	f.Add(`{"name": "n", "ipMasq": true, "ipMasqBackend": "nftables", "mtu": 1400, "ipam": {"type": "host-local"}}`)
	f.Add(`{"name": "n", "mtu": 1e9, "ipam": null}`)
	f.Add(`{"NAME": "n", "MTU": -1, "ipam": {"type": 5}, "strict": true, "x": [{}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		r := &skel.Request{Command: "CHECK", Stdin: []byte(text), Version: types.Newest}
		if types.Decode(r.Stdin, &r.Conf) != nil {
			return
		}
		conf, err := parse(r)
		if err == nil && (r.Conf.IPAM.Type == "" || conf.mtu != 0 && (conf.mtu < attach.MinMTU || conf.mtu > attach.MaxMTU)) {
			t.Errorf("%s: accepted as %+v", text, conf)
		}
	})
}

// FuzzLease tests that each address of an accepted IPAM result gets a gateway, and that the kernel would not
// reject a route as a duplicate.
func FuzzLease(f *testing.F) {
	f.Add(`{"ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "fd00::2/64"}], "routes": [{"dst": "::/0", "gw": "fe80::1"}]}`)
	f.Add(`{"ips": [{"address": "10.1.0.2/32", "gateway": "169.254.1.1"}, {"address": "10.2.0.2/0"}], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "0.0.0.0/0"}]}`)
	f.Add(`{"ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.2"}]}`)
	f.Add(`{"ips": [{"address": "10.1.0.2/24", "gateway": "fd00::1"}]}`)
	f.Fuzz(func(t *testing.T, answer string) {
		result, err := types.ParseResult(types.Newest, []byte(answer))
		if err != nil {
			return
		}
		ips, err := withGateways(&ipam.Lease{IPs: result.IPs, Routes: result.Routes})
		if err != nil {
			return
		}
		gateways := map[netip.Addr]bool{}
		for _, ip := range ips {
			gateways[ip.Gateway] = true
			if !ip.Gateway.IsValid() || ip.Gateway == ip.Address.Addr() || ip.Gateway.Is4() != ip.Address.Addr().Is4() {
				t.Errorf("%s: %s has gateway %s", answer, ip.Address, ip.Gateway)
			}
		}
		container, host := containerSpec("eth0", ips, result.Routes), hostSpec("host", ips)
		if len(container.Addrs) != len(ips) || len(host.Addrs) != len(gateways) || len(host.Routes) != len(ips) {
			t.Errorf("%s: %+v and %+v", answer, container, host)
		}
		for i, route := range container.Routes {
			for _, other := range container.Routes[:i] {
				if route.Same(other) {
					t.Errorf("%s: route %s is a duplicate", answer, route)
				}
			}
		}
	})
}

// FuzzCheck tests that CHECK answers every prevResult as the specification requires.
func FuzzCheck(f *testing.F) {
	nstest.FuzzCheck(f, plugin(), nstest.Call{Path: nstest.Build(f, "static"), Config: `{"cniVersion":"1.1.0","name":"net1","type":"ptp","ipMasq":true,` +
		`"ipam":{"type":"static","addresses":[{"address":"10.9.0.2/24","gateway":"10.9.0.1"},{"address":"fd00::2/64","gateway":"fd00::1"}],"routes":[{"dst":"0.0.0.0/0"}]}}`})
}
