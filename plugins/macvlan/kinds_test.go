package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("a master of another kind", Label(nstest.Kernel), func() {
	It("may be a VLAN interface", func() {
		b := newBed()
		_, err := b.Host.Exec("ip", "link", "add", "link", nstest.Uplink, "name", "tagged", "type", "vlan", "id", "5")
		nstest.RequireFeature(GinkgoTB(), "8021q", err)
		b.Host.Batch(GinkgoTB(), "link set tagged up")
		b.Outside.Batch(GinkgoTB(), "link add link "+nstest.Uplink+" name tagged type vlan id 5", "link set tagged up", "addr add 198.18.5.2/24 dev tagged")
		config := conf("1.1.0", `"master":"tagged"`, nstest.Static("198.18.5.50/24"))
		container := nstest.New(GinkgoTB())
		b.Add(b.Call("one", container, config))
		nstest.ServeTCP(GinkgoTB(), b.Outside, "198.18.5.2:80")
		nstest.MustDial(GinkgoTB(), container, "198.18.5.2:80", "198.18.5.50")
		b.OK("DEL", b.Call("one", container, config))
		Expect(container.Must(GinkgoTB(), "ip", "-br", "link")).NotTo(ContainSubstring("eth0"))
	})

	It("may be a dummy interface", func() {
		b := newBed()
		_, err := b.Host.Exec("ip", "link", "add", "dummy0", "type", "dummy")
		nstest.RequireFeature(GinkgoTB(), "dummy", err)
		b.Host.Batch(GinkgoTB(), "link set dummy0 up")
		containers := []*nstest.NS{nstest.New(GinkgoTB()), nstest.New(GinkgoTB())}
		for i, address := range []string{"198.18.5.50", "198.18.5.51"} {
			config := conf("1.1.0", `"master":"dummy0"`, nstest.Static(address+"/24"))
			b.Add(b.Call(address, containers[i], config))
		}
		nstest.ServeTCP(GinkgoTB(), containers[0], "198.18.5.50:80")
		nstest.MustDial(GinkgoTB(), containers[1], "198.18.5.50:80", "198.18.5.51")
	})
})
