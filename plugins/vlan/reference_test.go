package main

import (
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("beside the reference plugin", Label(nstest.Kernel), func() {
	const path = "/usr/lib/cni/vlan" // version 1.1.1 in Debian's containernetworking-plugins
	It("checks and deletes what that made, and the other way round", func() {
		if _, err := os.Stat(path); err != nil {
			Skip("the reference plugin is not installed")
		}
		b := newTaggedTestbed()
		ipam := strings.TrimSuffix(b.HostLocal(), "}") + `,"routes":[{"dst":"0.0.0.0/0","gw":"198.18.0.2"}]}`
		c := b.NewCall(conf("1.0.0", in100+`,"mtu":1400`, ipam))
		restored := b.Restored(b.Host, c.Pod)
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
	})
})
