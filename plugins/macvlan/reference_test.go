package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("CHECK of a link that the reference plugin made", func() {
	It("passes without the mtu and advmss of a route, which that plugin does not set", func() {
		nstest.LeakCheck(GinkgoTB())
		b := newTestbed()
		c := b.call("one", newPod(), conf("1.0.0", onUplink, static4))
		reply := run(c, "ADD").OK(GinkgoTB())
		c.Pod.Must(GinkgoTB(), "ip", "link", "set", "eth0", "alias", "")
		c.Pod.Must(GinkgoTB(), "ip", "route", "add", "192.0.2.0/24", "via", "198.18.0.2")
		const route = `{"dst": "192.0.2.0/24", "gw": "198.18.0.2", "mtu": 1300, "advmss": 1200}`
		c.Config = strings.TrimSuffix(nstest.WithPrevResult(c.Config, reply.Stdout), "\n}\n}") + `,"routes":[` + route + `]}}`
		run(c, "CHECK").OK(GinkgoTB())
		By("but not if plumb made the link")
		c.Pod.Must(GinkgoTB(), "ip", "link", "set", "eth0", "alias", "plumb:net1/one/eth0")
		Expect(run(c, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring("no route 192.0.2.0/24 via 198.18.0.2 mtu 1300 advmss 1200"))
	})
})
