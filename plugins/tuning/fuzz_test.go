package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// FuzzConfig tests that every accepted configuration has only sysctls below net, an absolute
// dataDir, and an MTU in the range.
func FuzzConfig(f *testing.F) {
	f.Add(`{"name": "n", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/core/somaxconn": "5"}, "mtu": 1400, "dataDir": "/run/x"}`)
	f.Add(`{"name": "n", "sysctl": {"net/../kernel/x": "1"}, "args": {"cni": {"sysctl": {"net.": ""}, "mtu": -1}}, "txQLen": -1}`)
	f.Add(`{"name": "n", "sysctl": {"net.a": 5, "net.b": null}, "runtimeConfig": {"mac": "01:00:00:00:00:00"}, "dataDir": "../x"}`)
	f.Fuzz(func(t *testing.T, text string) {
		r := &skel.Request{Command: "CHECK", ContainerID: "c", IfName: "eth0", Stdin: []byte(text), Version: types.Newest}
		if types.Decode(r.Stdin, &r.Conf) != nil {
			return
		}
		conf, err := parse(r)
		if err != nil {
			return
		}
		for _, a := range conf.sysctls {
			for _, p := range a.paths {
				if file := filepath.Join("/proc/sys", p); file != "/proc/sys/"+p || !strings.HasPrefix(file, "/proc/sys/net/") {
					t.Errorf("%s: %q leads to %s", text, a.written, file)
				}
			}
		}
		if mtu := conf.link.MTU; !filepath.IsAbs(conf.dataDir) || mtu != nil && (*mtu < attach.MinMTU || *mtu > maxMTU) {
			t.Errorf("%s: accepted as %+v", text, conf)
		}
	})
}
