package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("ADD", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() { b = newTaggedTestbed() })

	It("connects the container only with the VLAN", func() {
		container := nstest.New(GinkgoTB()).Named("container") // with duplicate address detection
		result := b.Add(b.Call("one", container, conf("1.1.0", in100+`,"mtu":1400`, staticDual)))
		Expect(container.IP("-6 address show dev eth0 tentative")).To(BeEmpty())
		nstest.RequireTraffic(GinkgoTB(), container, b.Outside, container4, outside4)
		nstest.RequireTraffic(GinkgoTB(), container, b.Outside, container6, outside6)

		By("returning what it created")
		Expect(result.Interfaces).To(HaveLen(1))
		Expect(result.Interfaces[0]).To(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", container.Path())))
		Expect(result.IPs).To(HaveEach(HaveField("Interface", 0)))
		mac := result.Interfaces[0].MAC
		Expect(b.Host.IP("link show uplink0")).To(ContainSubstring(mac))
		Expect(container.IP("-d link show eth0")).To(And(ContainSubstring("vlan protocol 802.1Q id 100 <REORDER_HDR"),
			ContainSubstring("mtu 1400"), ContainSubstring("alias plumb:net1/one/eth0"), ContainSubstring(mac)))
		Expect(container.IP("-4 route")).To(Equal("default via 198.18.100.2 dev eth0\n198.18.100.0/24 dev eth0 proto kernel scope link src 198.18.100.50"))
		Expect(container.IP("-6 route show default")).To(ContainSubstring("default via 2001:db8:100::2 dev eth0 metric 1024"))

		By("sending all frames with the tag, so that a neighbor without a VLAN interface gets none")
		b.Outside.Batch(GinkgoTB(), "link del tagged", "address add "+outside4+"/24 dev uplink0")
		nstest.ServeTCP(GinkgoTB(), b.Outside, outside4+":81")
		container.IP("neigh flush dev eth0")
		_, err := nstest.Dial(container, outside4+":81")
		Expect(err).To(HaveOccurred())
	})

	It("lets the interface configure itself from router advertisements", func() {
		b.RequireAutoconfiguration(conf("1.1.0", in100, nstest.Static(container4+"/24")), "tagged")
	})

	It("returns the result in the form of each version", func() {
		b.RequireResults(func(version string) string { return conf(version, in100+`,"mac":"02:00:00:00:00:01"`, staticDual) })
	})

	It("uses the configured protocol and ID, and the MAC of the highest precedence", func() {
		b.tagOutside("provider", "protocol 802.1ad id 7", "198.18.107.2/24")
		b.tagOutside("priority", "id 0", "198.18.108.2/24")
		for i, keys := range []string{`"vlanId":7,"protocol":"802.1ad"`, `"vlanId":0,"mac":"02:00:00:00:00:01"`} {
			container := b.NewContainer()
			c := b.Call(fmt.Sprint(i), container, conf("1.0.0", `"master":"uplink0",`+keys, nstest.Static(fmt.Sprintf("198.18.%d.50/24", 107+i))))
			c.Args = "MAC=02:00:00:00:00:0" + fmt.Sprint(5+i)
			Expect(b.Add(c).Interfaces[0].MAC).To(Equal("02:00:00:00:00:0" + fmt.Sprint(5+i)))
			addr := fmt.Sprintf("198.18.%d.2:80", 107+i)
			nstest.ServeTCP(GinkgoTB(), b.Outside, addr)
			nstest.MustDial(GinkgoTB(), container, addr, "")
		}
	})

	It("works on a master that is down, and the container is connected when the master comes up", func() {
		b.Host.IP("link set uplink0 down")
		container := b.NewContainer()
		reply := b.OK("ADD", b.Call("one", container, conf("1.0.0", in100, staticDual)))
		Expect(reply.Stderr).To(ContainSubstring("master uplink0 is down or has no carrier"))
		b.Host.IP("link set uplink0 up")
		nstest.ServeTCP(GinkgoTB(), container, container4+":80")
		Eventually(func() error { _, err := nstest.Dial(b.Outside, container4+":80"); return err }, "1m").Should(Succeed())

		By("keeping the routes when the master goes down and comes up again")
		routes := container.IP("-4 route")
		Expect(routes).To(ContainSubstring("default via"))
		b.Host.Batch(GinkgoTB(), "link set uplink0 down", "link set uplink0 up")
		Eventually(func() string { return container.IP("-4 route") }, "1m").Should(Equal(routes))
	})

	It("creates links on a master in the container, and DEL deletes them", func() {
		container := b.NewContainer()
		nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "net0"}, nstest.End{In: b.Outside, Name: "peer0"})
		b.Outside.Batch(GinkgoTB(), "link add link peer0 name peer9 type vlan id 9", "link set peer9 up", "address add 203.0.113.2/24 dev peer9")
		c := b.Attach(b.Call("one", container, conf("1.0.0", `"master":"net0","linkInContainer":true,"vlanId":9`, nstest.Static("203.0.113.50/24"))))
		nstest.ServeTCP(GinkgoTB(), b.Outside, "203.0.113.2:80")
		nstest.MustDial(GinkgoTB(), container, "203.0.113.2:80", "")
		By("naming the existing interface of the VLAN")
		again := b.Call("one", container, conf("1.0.0", `"master":"net0","linkInContainer":true,"vlanId":9`, noIPAM))
		again.IfName = "eth1"
		b.Refuse(again, types.CodeConfig, "VLAN 9 (802.1Q) of master net0 already has an interface, eth0 with the alias", "plumb:net1/one/eth0")
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(container.IP("-br link")).To(And(ContainSubstring("net0"), Not(ContainSubstring("eth0"))))
	})

	It("names the existing interface if the master already has one for the VLAN, and leaves nothing", func() {
		first := b.NewCall(conf("1.0.0", in100, static4))
		b.Add(first)
		second := b.Call("two", b.NewContainer(), conf("1.0.0", in100, b.HostLocal()))
		b.Refuse(second, types.CodeConfig, "VLAN 100 (802.1Q) of master uplink0 already has an interface, probably in another container")
		b.OK("DEL", first)
		b.Host.IP("link add link uplink0 name uplink0.100 type vlan id 100")
		b.Refuse(second, types.CodeConfig, "already has an interface, uplink0.100")
		b.Host.IP("link del uplink0.100")
		b.Add(second)
	})

	It("fails if another host on the segment has the address, and leaves nothing", func() {
		c := b.Call("one", nstest.New(GinkgoTB()), conf("1.0.0", in100, nstest.Static(outside6+"/64")))
		b.Refuse(c, attach.CodeDuplicate, outside6+"/64: the address is in use on the segment")
		c.Config = strings.Replace(c.Config, in100, in100+`,"optimisticDAD":true`, 1)
		b.Add(c)
		Eventually(func() string { return b.Run("CHECK", attachedTo(c)).Stdout }, "1m").Should(ContainSubstring("the address is in use on the segment"))
	})

	It("calls the ADD of an IPAM plugin that uses the link after it is up, and its DEL before the link is deleted", func() {
		c := b.NewCall(conf("1.1.0", in100, `{"type":"dhcp"}`))
		nstest.LinkForIPAM{Plugin: plugin(), Call: c}.Require(GinkgoTB(), "DEL")
	})
})

// attachedTo returns the call with a prevResult that contains the outside host's address.
func attachedTo(c nstest.Call) nstest.Call {
	c.Config = nstest.WithPrevResult(c.Config, `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"`+c.Container.Path()+`"}],"ips":[{"interface":0,"address":"`+outside6+`/64"}]}`)
	return c
}

var _ = Describe("CHECK", Label(nstest.Kernel), func() {
	It("passes after ADD, and names every difference", func() {
		b := newTaggedTestbed()
		c := b.Attach(b.NewCall(conf("1.0.0", in100, staticDual)))
		b.OK("CHECK", c)
		By("passing after a later plugin changed MAC and MTU, and after the MTU of the master was lowered")
		c.Container.Batch(GinkgoTB(), "link set eth0 address 02:00:00:00:00:99 mtu 1300")
		b.Host.IP("link set uplink0 mtu 1290")
		b.OK("CHECK", c)
		for _, d := range []struct{ change, undo, text string }{
			{"address del 198.18.100.50/24 dev eth0", "address add 198.18.100.50/24 dev eth0", "no address 198.18.100.50/24"},
			{"link set eth0 down", "link set eth0 up", "eth0 is down"},
		} {
			c.Container.Batch(GinkgoTB(), d.change)
			b.Fails("CHECK", c, types.CodeChanged, d.text)
			c.Container.Batch(GinkgoTB(), d.undo)
		}
		other := c
		other.Config = strings.Replace(c.Config, `"vlanId":100`, `"vlanId":101,"protocol":"802.1ad"`, 1)
		b.Fails("CHECK", other, types.CodeChanged, "interface eth0 has VLAN 100 (802.1Q), want 101 (802.1ad)")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "uplink1"}, nstest.End{In: b.Outside, Name: "uplink1"})
		b.Host.Batch(GinkgoTB(), "link set uplink0 down", "link set uplink0 name old0", "link set old0 up", "link set uplink1 down", "link set uplink1 name uplink0")
		b.Fails("CHECK", c, types.CodeChanged, "not on master uplink0")
		c.Container.Batch(GinkgoTB(), "link del eth0")
		b.Fails("CHECK", c, types.CodeChanged, "find link eth0")
		c.Container.Batch(GinkgoTB(), "link add eth0 type veth peer name eth1")
		b.Fails("CHECK", c, types.CodeChanged, `of kind "veth", want "vlan"`)
	})
})

var _ = Describe("DEL", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() { b = newTaggedTestbed() })

	It("restores the host, the container and the reservations, whatever has changed since ADD", func() {
		b.RequireDelOfContainerLink(b.NewCall(conf("1.0.0", in100, b.HostLocal())), conf("1.0.0", `"vlanId":5000,"mtu":9000`, b.HostLocal()))
	})

	It("leaves nothing if any step of ADD or DEL fails", func() {
		// Two containers cannot use the same VLAN of one master, so each container contains a master of its own.
		b.FaultSweep(nstest.Sweep{
			Config: conf("1.1.0", `"master":"net0","linkInContainer":true,"vlanId":100,"mtu":1400`, b.HostLocal()),
			PrepareContainer: func(container *nstest.NS) {
				container.SkipDAD(GinkgoTB())
				nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "net0"}, nstest.End{In: nstest.New(GinkgoTB()), Name: "peer0"})
			},
		})
	})
})
