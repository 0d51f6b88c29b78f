package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const other4 = "198.18.0.51"

var static = nstest.Static(other4 + "/24")

var _ = Describe("ADD", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() { b = newIPVlanTestbed() })

	It("connects the container with the segment of the master, and containers with each other", func() {
		container := nstest.New(GinkgoTB()).Named("container") // with duplicate address detection
		result := b.Add(b.Call("one", container, b.conf("1.1.0", onUplink+`,"mtu":1400`, nstest.StaticDual)))
		Expect(container.IP("-6 address show dev eth0 tentative")).To(BeEmpty())
		nstest.RequireTraffic(GinkgoTB(), container, b.Outside, nstest.ContainerV4, nstest.OutsideV4)
		nstest.RequireTraffic(GinkgoTB(), container, b.Outside, nstest.ContainerV6, nstest.OutsideV6)
		other := b.NewContainer()
		b.Add(b.Call("two", other, b.conf("1.1.0", onUplink, static)))
		nstest.MustDial(GinkgoTB(), other, nstest.ContainerV4+":80", other4)

		By("returning what it created")
		Expect(result.Interfaces).To(HaveLen(1))
		Expect(result.Interfaces[0]).To(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", container.Path())))
		Expect(b.Host.IP("link show uplink0")).To(ContainSubstring(result.Interfaces[0].MAC))
		Expect(details(container)).To(And(ContainSubstring("ipvlan mode l2 bridge"), ContainSubstring("mtu 1400"), ContainSubstring("alias plumb:net1/one/eth0")))
		Expect(container.IP("-4 route")).To(Equal("default via 198.18.0.2 dev eth0\n198.18.0.0/24 dev eth0 proto kernel scope link src 198.18.0.50"))
		for key, want := range map[string]string{"net/ipv4/conf/eth0/arp_notify": "1", "net/ipv6/conf/eth0/ndisc_notify": "1", "net/ipv6/conf/eth0/accept_ra": "1"} {
			Expect(container.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
		}
	})

	It("lets the interface configure itself from router advertisements", func() {
		b.RequireAutoconfiguration(b.conf("1.1.0", onUplink, nstest.StaticV4), nstest.Uplink)
	})

	It("announces its addresses on the segment", func() {
		b.Outside.Batch(GinkgoTB(), "neigh add "+nstest.ContainerV4+" lladdr 02:00:00:00:00:ee dev uplink0 nud stale", "neigh add "+nstest.ContainerV6+" lladdr 02:00:00:00:00:ee dev uplink0 nud stale")
		mac := b.Add(b.NewCall(b.conf("1.1.0", onUplink, nstest.StaticDual))).Interfaces[0].MAC
		for _, addr := range []string{nstest.ContainerV4, nstest.ContainerV6} {
			Eventually(func() string { return b.Outside.IP("neigh show " + addr) }, "1m").Should(ContainSubstring(mac), addr)
		}
	})

	It("returns the result in the form of each version", func() {
		_, rest, _ := strings.Cut(b.Host.IP("-o link show uplink0"), "link/ether ")
		mac, _, _ := strings.Cut(rest, " ")
		b.RequireResults(func(version string) string { return b.conf(version, onUplink, nstest.StaticDual) }, mac, "MASTER")
	})

	It("works in each mode with each flag, and CHECK compares them", func() {
		for _, mode := range []string{"l2", "l3", "l3s"} {
			for _, flag := range []string{"bridge", "private", "vepa"} {
				container := b.NewContainer()
				c := b.Attach(b.Call("one", container, b.conf("1.0.0", onUplink+`,"mode":"`+mode+`","flag":"`+flag+`"`, nstest.StaticDual)))
				Expect(details(container)).To(ContainSubstring("ipvlan mode " + mode + " " + flag))
				nstest.ServeTCP(GinkgoTB(), container, nstest.ContainerV4+":80")
				if mode != "l2" { // without ARP, the host outside needs a route
					b.Outside.Batch(GinkgoTB(), "route replace "+nstest.ContainerV4+" via "+nstest.HostV4)
				}
				Eventually(func() error { _, err := nstest.Dial(b.Outside, nstest.ContainerV4+":80"); return err }, "1m").Should(Succeed(), mode+flag)
				b.OK("CHECK", c)
				container.IP("link set eth0 type ipvlan mode " + map[string]string{"l2": "l3", "l3": "l3s", "l3s": "l2"}[mode])
				b.Fails("CHECK", c, types.CodeChanged, "interface eth0 has mode "+map[string]string{"l2": "l3", "l3": "l3s", "l3s": "l2"}[mode], ", want mode "+mode)
				b.OK("DEL", c)
			}
		}
	})

	It("does not change the mode or the flag of other ipvlans on the master", func() {
		first := b.Attach(b.NewCall(b.conf("1.1.0", onUplink, nstest.StaticV4)))
		second := b.Call("two", b.NewContainer(), b.conf("1.1.0", onUplink+`,"mode":"l3"`, b.HostLocal()))
		b.Refuse(second, types.CodeConfig, "the master has mode l2, flag bridge for the attachment net1/one/eth0", "a new ipvlan with mode l3, flag bridge would change those of that attachment")
		b.Refuse(b.Call("two", second.Container, b.conf("1.1.0", onUplink+`,"flag":"private"`, static)), types.CodeConfig, "the master has mode l2, flag bridge")
		b.OK("CHECK", first)
		By("accepting another mode on another master, and after DEL or GC")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "uplink1"}, nstest.End{In: b.Outside, Name: "uplink1"})
		other := b.Call("three", b.NewContainer(), b.conf("1.1.0", `"master":"uplink1","mode":"l3s"`, static))
		b.Add(other)
		b.OK("GC", b.Call("", nil, b.conf("1.1.0", onUplink+`,"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"},{"containerID":"three","ifname":"eth0"}]`, noIPAM)))
		Expect(b.recordFiles()).To(HaveLen(2))
		b.Refuse(second, types.CodeConfig, "net1/one/eth0")
		b.OK("DEL", first)
		b.Add(second)
		second.Container.IP("link del eth0")
		b.OK("GC", b.Call("", nil, b.conf("1.1.0", onUplink+`,"cni.dev/valid-attachments":[{"containerID":"three","ifname":"eth0"}]`, noIPAM)))
		Expect(b.recordFiles()).To(HaveLen(1))
		By("comparing ipvlans that other programs created on the host")
		b.Host.IP("link add link uplink0 name ipv0 type ipvlan mode l3s")
		b.Refuse(b.Call("four", b.NewContainer(), b.conf("1.1.0", onUplink, nstest.StaticV4)), types.CodeConfig, "the master has mode l3s, flag bridge for the interface ipv0")
		b.Refuse(b.Call("four", b.NewContainer(), b.conf("1.1.0", `"master":"ipv0"`, nstest.StaticV4)), types.CodeConfig, "the master has mode l3s, flag bridge for the interface ipv0")
		four := b.Attach(b.Call("four", b.NewContainer(), b.conf("1.1.0", `"master":"ipv0","mode":"l3s"`, nstest.StaticV4)))
		b.OK("CHECK", four)
	})

	It("gets its routes back from REPAIR on the container's side, even with a gateway outside of its networks", func() {
		c := b.Attach(b.NewCall(b.conf("1.0.0", onUplink+`,"mode":"l3"`,
			`{"type":"static","addresses":[{"address":"198.18.0.50/32","gateway":"192.0.2.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`)))
		b.RequireContainerRepair(c, func() { c.Container.IP("link set eth0 down") }, "interface eth0 is down")
	})

	It("takes master, addresses and routes from prevResult", func() {
		prev := `{"cniVersion":"1.0.0","interfaces":[{"name":"uplink0"}],"ips":[{"address":"198.18.0.50/24","gateway":"198.18.0.2"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["192.0.2.1"]}}`
		container := b.NewContainer()
		c := b.Call("one", container, b.conf("1.0.0", `"prevResult":`+prev, noIPAM))
		reply := b.OK("ADD", c)
		result := reply.Result(GinkgoTB())
		Expect(result.Interfaces).To(HaveExactElements(HaveField("Name", "eth0")))
		Expect(result.IPs).To(HaveExactElements(And(HaveField("Interface", 0), HaveField("Address", HaveField("String()", nstest.ContainerV4+"/24")))))
		Expect(result.DNS.Nameservers).To(Equal([]string{"192.0.2.1"}))
		Expect(container.IP("route")).To(ContainSubstring("default via 198.18.0.2 dev eth0"))
		c.Config = nstest.WithPrevResult(b.conf("1.0.0", "", noIPAM), reply.Stdout)
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(container.IP("-br link")).NotTo(ContainSubstring("eth0"))
	})

	It("works on a master in the container, and DEL deletes it", func() {
		container := b.NewContainer()
		nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "net0"}, nstest.End{In: b.Outside, Name: "peer0", Addrs: []string{"203.0.113.2/24"}})
		c := b.Attach(b.Call("one", container, b.conf("1.0.0", `"master":"net0","linkInContainer":true`, nstest.Static("203.0.113.50/24"))))
		nstest.ServeTCP(GinkgoTB(), b.Outside, "203.0.113.2:80")
		nstest.MustDial(GinkgoTB(), container, "203.0.113.2:80", "")
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(container.IP("-br link")).To(And(ContainSubstring("net0"), Not(ContainSubstring("eth0"))))
	})

	It("fails if the master has macvlans or is a bridge port", func() {
		b.Host.IP("link add link uplink0 name mv0 type macvlan")
		b.Refuse(b.NewCall(b.conf("1.0.0", onUplink, nstest.StaticV4)), types.CodeConfig, "master uplink0 has macvlans, or is a port")
		b.Host.Batch(GinkgoTB(), "link del mv0", "link add br0 type bridge", "link set uplink0 master br0")
		b.Refuse(b.NewCall(b.conf("1.0.0", onUplink, nstest.StaticV4)), types.CodeConfig, "master uplink0 has macvlans, or is a port")
	})

	It("fails if another host, or another ipvlan of the master, has the address", func() {
		b.Refuse(b.Call("one", nstest.New(GinkgoTB()), b.conf("1.0.0", onUplink, nstest.Static(nstest.OutsideV6+"/64"))),
			attach.CodeDuplicate, nstest.OutsideV6+"/64: the address is in use on the segment")
		b.Add(b.NewCall(b.conf("1.0.0", onUplink, nstest.StaticDual)))
		for _, addr := range []string{nstest.ContainerV4 + "/24", nstest.ContainerV6 + "/64"} {
			b.Refuse(b.Call("two", b.NewContainer(), b.conf("1.0.0", onUplink, nstest.Static(addr))),
				attach.CodeDuplicate, "another ipvlan of master uplink0", addr)
		}
	})

	It("accepts a gateway outside the container's subnets in modes without neighbors", func() {
		ipam := `{"type":"static","addresses":[{"address":"198.18.0.50/32","gateway":"192.0.2.1"},{"address":"2001:db8:18::50/128"}],
			"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"2001:db8:19::1"}]}`
		b.Refuse(b.NewCall(b.conf("1.0.0", onUplink, ipam)), types.CodeConfig, "192.0.2.1, the gateway of the route to 0.0.0.0/0, is in none of the networks of eth0")
		container := b.NewContainer()
		c := b.Attach(b.Call("one", container, b.conf("1.0.0", onUplink+`,"mode":"l3"`, ipam)))
		b.Outside.Batch(GinkgoTB(), "route add "+nstest.ContainerV4+" via "+nstest.HostV4)
		nstest.ServeTCP(GinkgoTB(), b.Outside, nstest.OutsideV4+":80")
		nstest.MustDial(GinkgoTB(), container, nstest.OutsideV4+":80", nstest.ContainerV4)
		b.OK("CHECK", c)
	})

	It("calls the ADD of an IPAM plugin that uses the link after it is up, and its DEL before the link is deleted", func() {
		c := b.NewCall(b.conf("1.1.0", onUplink, `{"type":"dhcp"}`))
		nstest.LinkForIPAM{Plugin: plugin(), Call: c}.Require(GinkgoTB(), "DEL")
	})

	It("adds and deletes many at once", func() {
		b.RequireManyAtOnce(b.conf("1.1.0", onUplink, b.HostLocal()), nstest.FullOrShort(8, 4), 1)
	})

	It("succeeds with a warning if /proc/sys is read-only", func() {
		nstest.RequireAddOnReadOnlySysctls(GinkgoTB(), plugin(), b.Call("one", nstest.New(GinkgoTB()), b.conf("1.1.0", onUplink, nstest.StaticDual)))
	})
})

// details returns what ip shows of the container's interface, with one space between the words.
func details(container *nstest.NS) string {
	GinkgoHelper()
	return strings.Join(strings.Fields(container.IP("-d link show eth0")), " ")
}

var _ = Describe("CHECK", Label(nstest.Kernel), func() {
	It("names every difference", func() {
		b := newIPVlanTestbed()
		c := b.Attach(b.NewCall(b.conf("1.0.0", onUplink, nstest.StaticDual)))
		c.Container.Batch(GinkgoTB(), "link set eth0 mtu 1300")
		b.OK("CHECK", c)
		c.Container.Batch(GinkgoTB(), "address del 198.18.0.50/24 dev eth0")
		b.Fails("CHECK", c, types.CodeChanged, "no address 198.18.0.50/24")
		c.Container.Batch(GinkgoTB(), "link set eth0 down")
		b.Fails("CHECK", c, types.CodeChanged, "eth0 is down")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "uplink1"}, nstest.End{In: b.Outside, Name: "uplink1"})
		b.Host.Batch(GinkgoTB(), "link set uplink0 down", "link set uplink0 name old0", "link set old0 up", "link set uplink1 down", "link set uplink1 name uplink0")
		b.Fails("CHECK", c, types.CodeChanged, "not on master uplink0")
		c.Container.Batch(GinkgoTB(), "link del eth0", "link add eth0 type veth peer name eth1")
		b.Fails("CHECK", c, types.CodeChanged, `of kind "veth", want "ipvlan"`)
	})
})

var _ = Describe("DEL", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() { b = newIPVlanTestbed() })

	It("restores the host, the container and the files, whatever has changed since ADD", func() {
		c := b.NewCall(b.conf("1.0.0", onUplink, b.HostLocal()))
		b.RequireDelOfContainerLink(c, b.conf("1.0.0", `"master":"nope0","mode":"x"`, b.HostLocal()))
	})

	It("leaves nothing if any step of ADD or DEL fails", func() {
		b.FaultSweep(nstest.Sweep{
			Config: b.conf("1.1.0", onUplink+`,"mtu":1400,"mode":"l3"`, b.HostLocal()),
			Prepare: func(host, _ *nstest.NS) {
				outside := nstest.New(GinkgoTB()).Named("outside")
				nstest.Join(GinkgoTB(), nstest.End{In: host, Name: "uplink0"}, nstest.End{In: outside, Name: "uplink0"})
			},
			PrepareContainer: func(container *nstest.NS) { container.SkipDAD(GinkgoTB()) },
		})
	})
})
