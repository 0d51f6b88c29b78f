package main

import (
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("beside the reference plugin", Label(nstest.Kernel), func() {
	const path = "/usr/lib/cni/ipvlan" // version 1.1.1 in Debian's containernetworking-plugins
	var b *testbed
	BeforeEach(func() {
		if _, err := os.Stat(path); err != nil {
			Skip("the reference plugin is not installed")
		}
		b = newIPVlanTestbed()
	})

	DescribeTable("checks and deletes what that made, and the other way round", func(mode string) {
		pod := newPod()
		ipam := strings.TrimSuffix(b.hostLocal(), "}") + `,"routes":[{"dst":"0.0.0.0/0"}]}`
		c := b.call("one", pod, b.conf("1.0.0", onUplink+`,"mtu":1400,"mode":"`+mode+`"`, ipam))
		state := func() string { return nstest.Snapshot(GinkgoTB(), b.Node, pod) }
		before := nstest.WaitStable(state)
		reference := func(c nstest.Call, command string) nstest.Reply {
			return nstest.Exec(GinkgoTB(), path, c.With(command)).OK(GinkgoTB())
		}
		plumb := func(c nstest.Call, command string) nstest.Reply { return run(c, command).OK(GinkgoTB()) }
		for _, sides := range [][]func(nstest.Call, string) nstest.Reply{{reference, plumb}, {plumb, reference}} {
			added := c
			added.Config = nstest.WithPrevResult(c.Config, sides[0](c, "ADD").Stdout)
			sides[1](added, "CHECK")
			sides[1](added, "DEL")
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
			Expect(b.reservations()).To(BeEmpty())
		}
	}, EntryDescription("mode %s"), Entry(nil, "l2"), Entry(nil, "l3"), Entry(nil, "l3s"))
})
