package main

import (
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// reference is the path of the plugin in Debian's package containernetworking-plugins.
const reference = "/usr/lib/cni/host-device"

var _ = Describe("beside the reference plugin", func() {
	var b *testbed
	var c nstest.Call
	BeforeEach(func() {
		if _, err := os.Stat(reference); err != nil {
			Skip("this test needs the Debian package containernetworking-plugins: " + err.Error())
		}
		b = newTestbed()
		b.node.Batch(GinkgoTB(), "addr add 192.0.2.1/24 brd + dev hd0")
		nstest.LeakCheck(GinkgoTB())
		c = b.call("one", newPod(), conf("1.0.0", byDevice, b.hostLocal(hostLocal4)))
	})
	byReference := func(command string) nstest.Reply {
		GinkgoHelper()
		return nstest.Exec(GinkgoTB(), reference, c.With(command)).OK(GinkgoTB())
	}

	It("returns what the reference plugin moved, in the same state", func() {
		added := byReference("ADD")
		Expect(in(c.Pod, "ip link show eth0")).To(And(ContainSubstring("UP"), ContainSubstring("alias hd0")))
		c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
		b.run(c, "CHECK").OK(GinkgoTB())
		for range 2 {
			b.mustDel(c)
			Expect(in(b.node, "ip addr show hd0")).NotTo(Or(ContainSubstring("UP"), ContainSubstring("192.0.2.1"), ContainSubstring("alias")))
			Expect(b.reservations()).To(BeEmpty())
		}
	})

	It("leaves to the reference plugin what that can return, and GC deletes the rest", func() {
		added := b.run(c, "ADD").OK(GinkgoTB())
		c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
		byReference("CHECK")
		byReference("DEL")
		Expect(in(b.node, "ip link show hd0")).To(ContainSubstring("altname plumb-"))
		Expect(b.reservations()).To(BeEmpty())
		By("moving the device again meanwhile")
		next := b.call("two", newPod(), conf("1.1.0", byDevice, b.hostLocal(hostLocal4)))
		b.mustAdd(next)
		b.mustDel(next)
		b.run(b.call("", nil, conf("1.1.0", byDevice+`,"cni.dev/valid-attachments":[]`, b.hostLocal(hostLocal4))), "GC").OK(GinkgoTB())
		Expect(in(b.node, "ip link show hd0")).To(And(ContainSubstring("UP"), Not(ContainSubstring("altname")), Not(ContainSubstring("alias"))))
		Expect(b.stateFiles()).To(BeEmpty())
	})
})
