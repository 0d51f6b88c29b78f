package main

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("with a read-only /proc/sys", func() {
	var c nstest.Call
	BeforeEach(func() {
		b := newTestbed()
		c = b.Call("c1", newPod(), b.conf("1.1.0", "", v4range, v6range))
	})

	It("ADD succeeds with a warning if the node already forwards; CHECK and DEL succeed", func() {
		c.Node.SetForwarding(GinkgoTB(), "1")
		nstest.RequireAddOnReadOnlySysctls(GinkgoTB(), plugin(), c, "/accept_ra=0")
	})

	It("ADD fails if the node does not forward, says what to do, and leaves nothing", func() {
		nstest.RequireRefusalOnReadOnlySysctls(GinkgoTB(), plugin(), c)
	})
})
