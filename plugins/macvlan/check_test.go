package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("CHECK", func() {
	var b *nstest.Bed
	BeforeEach(func() { b = newBed() })

	const odd = `{"type":"static","addresses":[{"address":"198.18.0.50/32"},{"address":"2001:db8:18::50/128"}],
		"routes":[{"dst":"198.18.0.2/32","scope":253},{"dst":"192.0.2.0/24","table":9,"scope":253},{"dst":"2001:db8:99::/64","table":9}]}`

	DescribeTable("passes after ADD",
		func(keys, ipam string, later ...string) {
			for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
				c := b.Attach(b.NewCall(conf(version, keys, ipam)))
				c.Container.Batch(GinkgoTB(), later...)
				b.OK("CHECK", c)
				b.OK("DEL", c)
			}
		},
		Entry("dual stack", onUplink, nstest.StaticDual),
		Entry("a master that was found by the default route", `"mode":"vepa"`, nstest.StaticDual),
		Entry("layer 2", onUplink, noIPAM),
		Entry("/32, /128 and tables", onUplink, odd),
		Entry("after a later plugin changed MAC and MTU", onUplink+`,"mac":"02:00:00:00:00:01","mtu":1400`, nstest.StaticDual,
			"link set eth0 address 02:00:00:00:00:99 mtu 1300"),
		Entry("with an additional address", onUplink, nstest.StaticDual, "address add 192.0.2.9/24 dev eth0"),
	)

	It("passes if the default route of the host now uses another link", func() {
		c := b.Attach(b.NewCall(conf("1.0.0", "", nstest.StaticDual)))
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "uplink1", Addrs: []string{"203.0.113.1/24"}}, nstest.End{In: b.Outside, Name: "uplink1"})
		b.Host.IP("route replace default via 203.0.113.2")
		b.OK("CHECK", c)
	})

	// test/faults/check_test.go tests the other differences.
	It("names several differences, and another kind", func() {
		c := b.Attach(b.NewCall(conf("1.0.0", onUplink, nstest.StaticDual)))
		c.Container.Batch(GinkgoTB(), "address del 198.18.0.50/24 dev eth0", "address del 2001:db8:18::50/64 dev eth0")
		b.Fails("CHECK", c, types.CodeChanged, "no address 198.18.0.50/24", "no address 2001:db8:18::50/64")
		c.Container.Batch(GinkgoTB(), "link del eth0", "link add eth0 type veth peer name eth1")
		b.Fails("CHECK", c, types.CodeChanged, `of kind "veth", want "macvlan"`)
	})

	DescribeTable("and REPAIR on the container's side restores the interface, so that traffic passes",
		func(text string, damage ...string) {
			c := b.Attach(b.NewCall(conf("1.0.0", onUplink, nstest.StaticDual)))
			c.Container.Batch(GinkgoTB(), "link add own0 up type bridge", "address add 192.0.2.9/24 dev own0", "route add 192.168.0.0/16 via 192.0.2.1")
			b.RequireContainerRepair(c, func() {
				for _, line := range damage {
					c.Container.MustLine(GinkgoTB(), line)
				}
			}, text)
			nstest.RequireTraffic(GinkgoTB(), c.Container, b.Outside, nstest.ContainerV4, nstest.OutsideV4)
			nstest.RequireTraffic(GinkgoTB(), c.Container, b.Outside, nstest.ContainerV6, nstest.OutsideV6)
		},
		Entry("that is down", "interface eth0 is down", "ip link set eth0 down"),
		Entry("that is down and lost its addresses", "interface eth0 has no address 2001:db8:18::50/64",
			"ip address del 198.18.0.50/24 dev eth0", "ip address del 2001:db8:18::50/64 dev eth0", "ip link set eth0 down"),
		Entry("without IPv6", "interface eth0 has no address 2001:db8:18::50/64", "sysctl -q -w net.ipv6.conf.eth0.disable_ipv6=1"),
		Entry("without routes, not even to its networks", "interface eth0 has no route 0.0.0.0/0 via 198.18.0.2",
			"ip route flush dev eth0", "ip -6 route del default", "ip -6 route del 2001:db8:18::/64 dev eth0"),
	)

	DescribeTable("and REPAIR does not add on the container's side",
		func(text string, damage ...string) {
			c := b.Attach(b.NewCall(conf("1.0.0", onUplink, b.HostLocal(nstest.RangeV4))))
			b.RequireNoRepair(c.OnContainerSide(), func() {
				c.Container.MustLine(GinkgoTB(), "ip address del 198.18.0.100/24 dev eth0")
				for _, line := range damage {
					c.Container.MustLine(GinkgoTB(), strings.ReplaceAll(line, "DIR", b.DataDir))
				}
			}, text)
		},
		Entry("an address that another container has", "address 198.18.0.100 is allocated to two", `sed -i s/one/two/ DIR/net1/198.18.0.100`),
		Entry("to the interface of another attachment", "the namespace path now belongs to net1/two/eth0", "ip link set eth0 alias plumb:net1/two/eth0"),
	)

	It("and REPAIR on the container's side waits for duplicate address detection", func() {
		c := b.Attach(b.Call("one", nstest.New(GinkgoTB()), conf("1.0.0", onUplink, nstest.StaticDual)))
		c.Container.IP("address del 2001:db8:18::50/64 dev eth0")
		b.Outside.IP("address add 2001:db8:18::50/64 dev uplink0 nodad")
		b.Fails("REPAIR", c.OnContainerSide(), attach.CodeDuplicate, "2001:db8:18::50")
		c.Container.IP("address del 2001:db8:18::50/64 dev eth0")
		b.Outside.IP("address del 2001:db8:18::50/64 dev uplink0")
		b.OK("REPAIR", c.OnContainerSide())
		Expect(c.Container.IP("-6 address show dev eth0")).NotTo(ContainSubstring("tentative"))
	})

	It("compares the master with the configured one", func() {
		c := b.Attach(b.NewCall(conf("1.0.0", onUplink, nstest.StaticDual)))
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "uplink1"}, nstest.End{In: b.Outside, Name: "uplink1"})
		b.Host.Batch(GinkgoTB(), "link set uplink0 name old0", "link set uplink1 name uplink0")
		f := b.Run("CHECK", c).Failure(GinkgoTB())
		Expect(f.Msg).To(ContainSubstring("not on master uplink0"))
		b.Host.IP("link set uplink0 name new0")
		Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Msg).To(ContainSubstring("master: find link uplink0: no such device; rename the master back, or set the key \"master\" to its new name"))
	})

	It("names an address that is a duplicate after an ADD with optimisticDAD", func() {
		c := b.Call("one", nstest.New(GinkgoTB()), conf("1.0.0", onUplink+`,"optimisticDAD":true`,
			nstest.Static(nstest.OutsideV6+"/64")))
		c = b.Attach(c)
		Eventually(func() string { return b.Run("CHECK", c).Stdout }).Should(ContainSubstring("address " + nstest.OutsideV6 + "/64 of interface eth0: the address is in use on the segment"))
	})

	It("returns the error of the IPAM plugin", func() {
		c := b.Attach(b.NewCall(conf("1.0.0", onUplink, b.HostLocal(nstest.RangeV4))))
		b.OK("CHECK", c)
		other := b.Call("one", c.Container, conf("1.0.0", onUplink, b.HostLocal(nstest.RangeV4)))
		Expect(nstest.Exec(GinkgoTB(), b.Path+"/host-local", other.With("DEL")).Exit).To(BeZero())
		Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Msg).To(ContainSubstring(`IPAM plugin "host-local"`))
	})

	It("fails without a prevResult that contains the interface", func() {
		c := b.NewCall(conf("1.0.0", onUplink, nstest.StaticV4))
		b.Add(c)
		b.Fails("CHECK", c, types.CodeConfig)
		c.Config = nstest.WithPrevResult(c.Config, `{"cniVersion":"1.0.0","interfaces":[{"name":"eth1","sandbox":"x"}],"ips":[{"address":"198.18.0.50/24"}]}`)
		Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Msg).To(ContainSubstring(`prevResult has no interface "eth0"`))
	})
})
