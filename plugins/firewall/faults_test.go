package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// sweptPlugin returns the plugin for a sweep. The container "warm", which the sweep adds first, gets its own
// addresses and host end.
func sweptPlugin() skel.Plugin {
	p := plugin()
	add := p.Add
	p.Add = func(r *skel.Request) (*types.Result, error) {
		if r.ContainerID == "warm" {
			others := strings.NewReplacer("10.9.0.2", "10.9.0.3", "fd00:1::2", "fd00:1::3", "veth0", "veth1")
			r.Conf.PrevResult = []byte(others.Replace(string(r.Conf.PrevResult)))
		}
		return add(r)
	}
	return p
}

var _ = DescribeTable("REPAIR restores the rest after a REPAIR that failed, whichever step failed", func(keys string) {
	b := newTestbed()
	c := b.call(keys, 0)
	b.OK("ADD", c)
	b.RepairSweep(c, func() { b.Host.Must(GinkgoTB(), "nft", "flush ruleset") }, b.sorted)
},
	Entry(nil, byIPTables+key("ingressPolicy", isolated)),
	Entry(nil, key("backend", nftables)+key("ingressPolicy", isolated)+`"publishedPorts":true,`),
)

var _ = DescribeTable("the fault sweep", func(keys, forward string) {
	nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
		Plugin: sweptPlugin(),
		Config: conf(keys, 0),
		Prepare: func(host, _ *nstest.NS) {
			addBridges(GinkgoTB(), host)
			if strings.Contains(keys, firewalld) {
				GinkgoT().Setenv("DBUS_SYSTEM_BUS_ADDRESS", nstest.StartFirewalld(GinkgoTB(), host).Address)
			}
			host.Batch(GinkgoTB(), "link add veth0 type veth peer name veth1", "link set veth0 master cni0", "link set veth1 master cni0")
			for _, program := range []string{"iptables", "ip6tables"} {
				host.Must(GinkgoTB(), program, "-P", "FORWARD", forward)
			}
		},
	})
},
	Entry(nil, byIPTables, "ACCEPT"),
	Entry(nil, key("backend", firewalld)+key("ingressPolicy", sameBridge), "ACCEPT"),
	Entry(nil, byIPTables+key("ingressPolicy", isolated), "ACCEPT"),
	Entry(nil, key("ingressPolicy", sameBridge), "DROP"),
	Entry(nil, key("backend", nftables)+key("ingressPolicy", isolated)+`"publishedPorts":true,`, "ACCEPT"),
)
