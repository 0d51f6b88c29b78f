package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("with a read-only /proc/sys", func() {
	var b *testbed
	var c nstest.Call
	forward := func(value string) {
		b.node.SetSysctl(GinkgoTB(), "net/ipv4/ip_forward", value)
		b.node.SetSysctl(GinkgoTB(), "net/ipv6/conf/all/forwarding", value)
	}

	BeforeEach(func() {
		b = newTestbed()
		c = b.call("c1", nstest.New(GinkgoTB()), b.conf("1.1.0", "", v4range, v6range))
	})

	It("ADD succeeds with a warning if the node already forwards; CHECK and DEL succeed", func() {
		forward("1")
		nstest.ReadOnlySysctls(GinkgoTB())
		reply := run(c, "ADD").OK(GinkgoTB())
		Expect(reply.Stderr).To(ContainSubstring("warning: sysctls that cannot be written keep their values (read-only file system): "))
		Expect(reply.Stderr).To(ContainSubstring("/accept_ra=0"))
		c.Config = withPrev(c.Config, reply)
		run(c, "CHECK").OK(GinkgoTB())
		run(c, "DEL").OK(GinkgoTB())
	})

	It("ADD fails if the node does not forward, says what to do, and leaves nothing", func() {
		forward("0")
		restore := nstest.ReadOnlySysctls(GinkgoTB())
		f := run(c, "ADD").Failure(GinkgoTB())
		Expect(f.Code).To(BeEquivalentTo(types.CodeIO))
		Expect(f.Msg).To(And(ContainSubstring("forward"), ContainSubstring("mount /proc/sys writable")))
		restore()
		Expect(c.Pod.Must(GinkgoTB(), "ip", "-br", "link", "show")).NotTo(ContainSubstring("eth0"))
	})
})
