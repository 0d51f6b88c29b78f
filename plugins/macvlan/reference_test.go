package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("CHECK of a link that the reference plugin created", func() {
	It("passes without the mtu and advmss of a route, which the reference plugin does not set", func() {
		b := newBed()
		c := b.NewCall(conf("1.0.0", onUplink, nstest.StaticV4))
		reply := b.OK("ADD", c)
		c.Container.Must(GinkgoTB(), "ip", "link", "set", "eth0", "alias", "")
		c.Container.Must(GinkgoTB(), "ip", "route", "add", "192.0.2.0/24", "via", "198.18.0.2")
		const route = `{"dst": "192.0.2.0/24", "gw": "198.18.0.2", "mtu": 1300, "advmss": 1200}`
		c.Config = strings.TrimSuffix(nstest.WithPrevResult(c.Config, reply.Stdout), "\n}\n}") + `,"routes":[` + route + `]}}`
		b.OK("CHECK", c)
		By("failing if plumb created the link")
		c.Container.Must(GinkgoTB(), "ip", "link", "set", "eth0", "alias", "plumb:net1/one/eth0")
		Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Msg).To(ContainSubstring("no route 192.0.2.0/24 via 198.18.0.2 mtu 1300 advmss 1200"))
	})
})
