package main

import (
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that every accepted address is one that a container can reach through the pair.
func FuzzConfig(f *testing.F) {
	nstest.FuzzConfig(f, parse, func(t *testing.T, r *skel.Request, conf *config) {
		for _, a := range conf.addrs {
			if !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "" {
				t.Errorf("%s: accepted %s", r.Stdin, a)
			}
		}
	},
		`{"name": "n", "hostAddresses": ["10.0.0.1", "fd00::1"]}`,
		`{"name": "n", "hostAddresses": ["::ffff:10.0.0.1", "10.0.0.1/24", "fe80::1%eth0", "255.255.255.255"]}`,
		`{"name": "n", "hostAddresses": []}`,
		`{"name": "n", "hostAddresses": null}`,
	)
}

// FuzzCheck tests that CHECK answers every prevResult as the specification requires.
func FuzzCheck(f *testing.F) {
	host, container := nstest.NewHostAndContainer(f)
	host.IP("addr add 198.18.0.1/32 dev lo")
	container.Batch(f, "link add eth0 type veth peer name eth1", "link set eth0 up", "addr add 198.18.0.50/24 dev eth0")
	c := nstest.Call{Host: host, Container: container, Config: nstest.Conf("host-access", "1.1.0", `"hostAddresses":["198.18.0.1"]`, "")}
	added := c
	added.Config = confOf(container, `"hostAddresses":["198.18.0.1"]`, "eth0", "198.18.0.50")
	nstest.FuzzPrevResult(f, plugin(), c, nstest.Run(plugin(), added.With("ADD")).OK(f).Stdout)
}
