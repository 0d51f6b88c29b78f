package main

import (
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// The tests of macvlan cover what all plugins share whose interface is only in the container (attach.ContainerLink).

// These specs need no dummy interface, and therefore run on any kernel.
var _ = Describe("without a dummy interface", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	DescribeTable("ADD rejects an invalid configuration and names all problems",
		func(version, keys, ipam string, texts ...string) {
			b.Refuse(b.call(conf(version, keys, ipam)), types.CodeConfig, texts...)
		},
		Entry("two values", "1.1.0", `"mtu":67,"mac":"x"`, metadata, "mtu 67 must be between 68 and 65535", `invalid MAC address "x"`),
		Entry("no address before 0.3.0", "0.2.0", "", noIPAM, types.ErrNoAddress.Error()),
		Entry("dhcp", "1.1.0", "", `{"type":"dhcp"}`, "ipam.type: a dummy interface cannot reach a DHCP server"),
	)

	It("ADD fails if an interface with that name exists in the container, and reserves nothing", func() {
		b.container.IP("link add eth0 type veth peer name eth1")
		b.Refuse(b.call(conf("1.1.0", "", b.HostLocal())), types.CodeConfig, `interface "eth0" already exists in container`)
	})

	It("ADD fails and releases the addresses if the kernel does not support dummy interfaces", func() {
		c := b.call(conf("1.1.0", "", b.HostLocal())).FailAt("add link eth0", syscall.EOPNOTSUPP)
		b.Refuse(c, types.CodeConfig, "this kernel does not support dummy interfaces", "CONFIG_DUMMY")
	})

	It("GC calls the IPAM plugin", func() { b.RequireGC(conf("1.1.0", nstest.OnlyTwoValid, b.HostLocal())) })

})

var _ = Describe("a dummy interface", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() {
		requireDummy()
		b = newTestbed()
	})

	It("gets addresses of both families, which a server in the container can use at once", func() {
		result := b.Add(b.call(conf("1.1.0", `"mtu":1400,"mac":"02:00:00:00:00:01"`, metadata)))
		Expect(b.container.IP("-6 address show dev eth0 tentative")).To(BeEmpty())
		Expect(b.container.IP("-d link show eth0")).To(And(ContainSubstring("<BROADCAST,NOARP,UP,LOWER_UP>"), ContainSubstring("dummy"),
			ContainSubstring("mtu 1400"), ContainSubstring("02:00:00:00:00:01"), ContainSubstring("alias plumb:net1/one/eth0")))
		Expect(result.Interfaces).To(ConsistOf(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", b.container.Path()))))
		Expect(result.IPs).To(HaveEach(HaveField("Interface", 0)))
		b.container.IP("link set lo up")
		for _, addr := range []string{"169.254.169.254:80", "[fd00:ec2::254]:80"} {
			nstest.ServeTCP(GinkgoTB(), b.container, addr)
			nstest.MustDial(GinkgoTB(), b.container, addr, "")
		}
	})

	It("is returned in each version's result format", func() {
		b.RequireResults(func(version string) string { return conf(version, `"mac":"02:00:00:00:00:01"`, static) })
	})

	It("is up, but gets no addresses, without ipam", func() {
		c := b.Attach(b.call(conf("0.3.1", "", noIPAM)))
		Expect(b.container.IP("-o link show eth0")).To(ContainSubstring("UP,LOWER_UP"))
		Expect(b.container.IP("-4 -br address show eth0")).NotTo(ContainSubstring("."))
		c.Config = strings.Replace(c.Config, "0.3.1", "0.4.0", 1)
		b.OK("CHECK", c)
		b.OK("DEL", c)
	})

	It("passes CHECK after ADD and after changes of MAC and MTU, but not if it is of another kind", func() {
		c := b.Attach(b.call(conf("1.0.0", "", static)))
		b.container.IP("link set eth0 address 02:00:00:00:00:99 mtu 1300")
		b.OK("CHECK", c)
		b.container.Batch(GinkgoTB(), "address flush dev eth0")
		b.Fails("CHECK", c, types.CodeChanged, "no address 10.1.0.2/24", "no address fd00:1::2/64", "no route 0.0.0.0/0")
		b.container.Batch(GinkgoTB(), "link del eth0", "link add eth0 type veth peer name eth1")
		b.Fails("CHECK", c, types.CodeChanged, `of kind "veth", want "dummy"`)
	})

	It("is deleted by DEL, which restores host, container and reservations", func() {
		restored := b.Restored(b.Host, b.container)
		c := b.Attach(b.call(conf("1.1.0", "", b.HostLocal())))
		b.OK("DEL", c)
		b.OK("DEL", c)
		restored()
	})

	It("is not deleted by DEL if it is of another kind", func() {
		b.container.IP("link add eth0 type veth peer name eth1")
		b.OK("DEL", b.call(conf("1.1.0", "", noIPAM)))
		b.container.IP("link show eth0")
	})

	DescribeTable("leaves nothing if any step of ADD or DEL fails",
		func(config func(b *testbed) string) { b.FaultSweep(nstest.Sweep{Config: config(b)}) },
		Entry("dual stack", func(b *testbed) string { return conf("1.1.0", `"mtu":1400,"mac":"02:00:00:00:00:01"`, b.HostLocal()) }),
		Entry("without addresses", func(*testbed) string { return conf("1.1.0", "", noIPAM) }),
	)
})
