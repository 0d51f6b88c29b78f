package main

import (
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"

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
		pod := b.NewContainer()
		ipam := strings.TrimSuffix(b.HostLocal(), "}") + `,"routes":[{"dst":"0.0.0.0/0"}]}`
		c := b.Call("one", pod, b.conf("1.0.0", onUplink+`,"mtu":1400,"mode":"`+mode+`"`, ipam))
		b.Dirs = nil // the reference plugin leaves plumb's record
		restored := b.Restored(b.Host, pod)
		reference := func(command string, c nstest.Call) nstest.Reply {
			return nstest.Exec(GinkgoTB(), path, c.With(command)).OK(GinkgoTB())
		}
		for _, sides := range [][]func(string, nstest.Call) nstest.Reply{{reference, b.OK}, {b.OK, reference}} {
			added := c
			added.Config = nstest.WithPrevResult(c.Config, sides[0]("ADD", c).Stdout)
			sides[1]("CHECK", added)
			sides[1]("DEL", added)
			restored()
		}
	}, EntryDescription("mode %s"), Entry(nil, "l2"), Entry(nil, "l3"), Entry(nil, "l3s"))
})
