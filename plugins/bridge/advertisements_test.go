package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// ptp enables forwarding with the same function.
var _ = Describe("a host that configures itself from router advertisements", func() {
	const card = "eth7"
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		b.Host.SetForwarding(GinkgoTB(), "0")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: card}, nstest.End{In: b.Outside, Name: "router0"})
		b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/"+card+"/accept_ra", "1")
		b.Host.IP("-6 route del default") // the bed's
	})
	acceptRA := func(name string) string {
		GinkgoHelper()
		return b.Host.Sysctl(GinkgoTB(), "net/ipv6/conf/"+name+"/accept_ra")
	}
	advertise := func(lifetime uint16) {
		nstest.Advertisement{Prefix: nstest.AdvertisedPrefix, Lifetime: lifetime}.Send(GinkgoTB(), b.Outside, "router0")
	}
	learned := func() string {
		return b.Host.IP("-6 address show dev "+card+" scope global") + b.Host.IP("-6 route show default dev "+card)
	}
	add := func(id string) { b.Add(b.Call(id, newContainer(), b.conf("1.1.0", gatewayed, v6range))) }

	DescribeTable("still does so after ADD", func(lifetime uint16, before bool, forwarding string) {
		b.Host.SetForwarding(GinkgoTB(), forwarding)
		want := And(ContainSubstring("2001:db8:50:"), WithTransform(func(s string) bool { return strings.Contains(s, "default via fe80:") }, Equal(lifetime > 0)))
		if before {
			advertise(lifetime)
			Eventually(learned, "1m").Should(want)
		}
		c := b.Call("one", newContainer(), b.conf("1.1.0", gatewayed, v6range))
		c.Before = func(step string) error {
			if strings.Contains(step, "conf/all/forwarding=1") {
				Expect(acceptRA(card)).To(Equal("2"), "otherwise the kernel deletes the default route (rt6_purge_dflt_routers)")
			}
			return nil
		}
		b.Add(c)
		b.Host.IP("-6 address flush dev " + card + " scope global")
		b.Host.IP("-6 route flush dev " + card + " proto ra")
		advertise(lifetime)
		Eventually(learned, "1m").Should(want)
	},
		Entry("before the first advertisement", uint16(1800), false, "0"),
		Entry("after an advertisement", uint16(1800), true, "0"),
		Entry("with a router that only advertises a prefix", uint16(0), true, "0"),
		Entry("if the administrator has enabled forwarding", uint16(1800), false, "1"),
	)

	It("does so through a network card that is added later, and through interfaces above it, but not through others", func() {
		nstest.RequireTaps(GinkgoTB())
		By("not changing the default for later interfaces, or links of other programs' containers")
		b.Host.Batch(GinkgoTB(), "link add br1 up type bridge", "link add veth0 type veth peer name port1", "link set port1 up master br1",
			"link set veth0 up", "tuntap add tap0 mode tap", "link set tap0 up", "link add mv1 link br1 up type macvlan")
		b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/"+card+"/accept_ra", "0") // as systemd-networkd does
		add("one")
		for _, name := range []string{"default", "all", "br1", "veth0", "port1", "tap0", "mv1"} {
			Expect(acceptRA(name)).To(Equal("1"), name)
		}
		Expect(acceptRA(card)).To(Equal("0"))

		b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/"+card+"/accept_ra", "1")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "eth8"}, nstest.End{In: b.Outside, Name: "router1"})
		b.Host.Batch(GinkgoTB(), "link add mv0 link "+card+" up type macvlan", "link add br2 up type bridge", "link set eth8 master br2")
		add("two")
		for _, name := range []string{card, "mv0", "br2"} {
			Expect(acceptRA(name)).To(Equal("2"), name)
		}
		Expect(acceptRA("default")).To(Equal("1"))
	})

	It("does so after REPAIR, and through the bridge of the containers if that is its uplink", func() {
		b.Host.Batch(GinkgoTB(), "link add cni0 up type bridge", "link set "+card+" master cni0")
		c := b.Attach(b.Call("one", newContainer(), b.conf("1.1.0", gatewayed, v6range)))
		Expect(acceptRA("cni0")).To(Equal("2"))
		b.OK("CHECK", c)
		b.Host.SetForwarding(GinkgoTB(), "0")
		b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/cni0/accept_ra", "1")
		b.Fails("CHECK", c, types.CodeChanged, "forwarding")
		b.OK("REPAIR", c)
		Expect(acceptRA("cni0")).To(Equal("2"))
	})

	DescribeTable("does so through a VLAN or a bond", Label(nstest.Kernel), func(feature, link string) {
		_, err := b.Host.Exec("ip", strings.Fields("link add above0 up "+link)...)
		nstest.RequireFeature(GinkgoTB(), feature, err)
		add("one")
		Expect(acceptRA("above0")).To(Equal("2"))
	},
		Entry(nil, "8021q", "link "+card+" type vlan id 100"),
		Entry(nil, "bonding", "type bond"),
	)
})
