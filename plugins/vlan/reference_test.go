package main

import (
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("beside the reference plugin", Label(nstest.Kernel), func() {
	const path = "/usr/lib/cni/vlan" // version 1.1.1 in Debian's containernetworking-plugins
	var b *testbed
	var pod *nstest.NS
	BeforeEach(func() {
		if _, err := os.Stat(path); err != nil {
			Skip("the reference plugin is not installed")
		}
		b, pod = newTaggedTestbed(), newPod()
	})
	call := func() nstest.Call {
		ipam := strings.TrimSuffix(b.hostLocal(), "}") + `,"routes":[{"dst":"0.0.0.0/0","gw":"198.18.100.2"}]}`
		return b.call("one", pod, conf("1.0.0", in100+`,"mtu":1400`, ipam))
	}
	state := func() string { return nstest.Snapshot(GinkgoTB(), b.Node, pod) }

	It("checks and deletes what that made", func() {
		before := nstest.WaitStable(state)
		c := call()
		reply := nstest.Exec(GinkgoTB(), path, c.With("ADD")).OK(GinkgoTB())
		c.Config = nstest.WithPrevResult(c.Config, reply.Stdout)
		run(c, "CHECK").OK(GinkgoTB())
		run(c, "DEL").OK(GinkgoTB())
		Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
		Expect(b.reservations()).To(BeEmpty())
	})

	It("makes what that checks and deletes", func() {
		before := nstest.WaitStable(state)
		c := attached(call())
		nstest.Exec(GinkgoTB(), path, c.With("CHECK")).OK(GinkgoTB())
		nstest.Exec(GinkgoTB(), path, c.With("DEL")).OK(GinkgoTB())
		Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
		Expect(b.reservations()).To(BeEmpty())
	})
})
