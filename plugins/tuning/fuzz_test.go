package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that every accepted configuration contains only sysctls below net, an absolute dataDir,
// and an MTU in the range.
func FuzzConfig(f *testing.F) {
	nstest.FuzzConfig(f, parse, func(t *testing.T, r *skel.Request, conf *config) {
		for _, a := range conf.sysctls {
			for _, p := range a.paths {
				if file := filepath.Join("/proc/sys", p); file != "/proc/sys/"+p || !strings.HasPrefix(file, "/proc/sys/net/") {
					t.Errorf("%s: %q means %s", r.Stdin, a.written, file)
				}
			}
		}
		if mtu := conf.link.MTU; !filepath.IsAbs(conf.dataDir) || mtu != nil && (*mtu < attach.MinMTU || *mtu > maxMTU) {
			t.Errorf("%s: accepted as %+v", r.Stdin, conf)
		}
	},
		`{"name": "n", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/core/somaxconn": "5"}, "mtu": 1400, "dataDir": "/run/x"}`,
		`{"name": "n", "sysctl": {"net/../kernel/x": "1"}, "args": {"cni": {"sysctl": {"net.": ""}, "mtu": -1}}, "txQLen": -1}`,
		`{"name": "n", "sysctl": {"net.a": 5, "net.b": null}, "runtimeConfig": {"mac": "01:00:00:00:00:00"}, "dataDir": "../x"}`,
	)
}

// FuzzCheck tests that CHECK answers every prevResult as the specification requires.
func FuzzCheck(f *testing.F) {
	nstest.FuzzChainedCheck(f, plugin(), nstest.Call{Config: `{"cniVersion":"1.1.0","name":"net1","type":"tuning","mtu":1400,"mac":"02:00:00:00:00:07","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"},"dataDir":"` + f.TempDir() + `"}`})
}
