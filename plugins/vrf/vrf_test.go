package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("ADD", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("moves the interface with its routes and addresses, and DEL moves them back", func() {
		restored := b.Restored(b.container)
		c := b.call("net1", conf(blue))
		b.Add(c)
		Expect(b.container.IP("-d link show blue")).To(And(ContainSubstring("vrf table 1000"), ContainSubstring("alias plumb:net1/test/net1"), ContainSubstring(",UP")))
		Expect(b.container.IP("-4 route show vrf blue")).To(Equal("default via 10.1.0.1 dev net1\n10.1.0.0/24 dev net1 proto kernel scope link src 10.1.0.2\n192.0.2.0/24 via 10.1.0.9 dev net1 proto static mtu 1300"))
		Expect(b.container.IP("-6 route show vrf blue default")).To(Equal("default via fd01::1 dev net1 metric 1024 pref medium"))
		Expect(b.container.IP("-6 route show vrf blue fd01::/64")).To(ContainSubstring("proto kernel metric 256"))
		By("leaving other interfaces and tables as they are")
		Expect(b.container.IP("-4 route")).To(Equal("10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.2"))
		Expect(b.container.IP("-6 route show default")).To(Equal("default via fd01::1 dev eth0 metric 1024 pref medium"))
		Expect(b.container.IP("-4 route show table 77")).To(Equal("198.51.100.0/24 via 10.1.0.1 dev net1"))
		Expect(reaches(b.container, "blue", "203.0.113.2")).To(BeTrue())
		Expect(reaches(b.container, "blue", "fd01::1")).To(BeTrue())

		again := b.Restored(b.container)
		b.Add(c)
		again() // a second ADD changes nothing
		b.OK("CHECK", c)
		b.OK("DEL", c)
		restored()
		b.OK("DEL", c)
		restored()
	})

	It("separates two interfaces with the same subnets", func() {
		calls := []nstest.Call{b.call("net1", conf(blue)), b.call("eth0", conf(`"vrfname":"red"`))}
		b.container.IP("route append default via 10.1.0.1 dev eth0 metric 5")
		restored := b.Restored(b.container)
		for _, reply := range nstest.RunAll(plugin(), "ADD", calls) {
			reply.OK(GinkgoTB())
		}
		Expect(b.container.IP("-4 route")).To(BeEmpty())
		Expect(reaches(b.container, "blue", "203.0.113.2")).To(BeTrue())
		Expect(reaches(b.container, "red", "203.0.113.1")).To(BeTrue())
		Expect(reaches(b.container, "blue", "203.0.113.1")).To(BeFalse())
		for _, c := range calls {
			b.OK("CHECK", c)
			b.OK("DEL", c)
		}
		restored()
	})

	It("puts two interfaces into one VRF, which the last DEL deletes", func() {
		restored := b.Restored(b.container)
		calls := []nstest.Call{b.call("net1", conf(blue)), b.call("eth0", conf(blue))}
		for i := range calls {
			for _, reply := range nstest.RunAll(plugin(), "ADD", calls) {
				reply.OK(GinkgoTB())
			}
			b.OK("DEL", calls[i])
			b.OK("CHECK", calls[1-i])
			b.OK("DEL", calls[1-i])
			restored()
		}
	})

	It("keeps IPv6 addresses of an interface that does not keep them when it is set down, without waiting", func() {
		b.container.SetSysctl(GinkgoTB(), "net/ipv6/conf/net1/keep_addr_on_down", "0")
		b.container.SetSysctl(GinkgoTB(), "net/ipv6/conf/net1/accept_dad", "1")
		restored := b.Restored(b.container)
		c := b.call("net1", conf(blue))
		b.Add(c)
		Expect(b.container.IP("-6 addr show dev net1 scope global")).To(And(ContainSubstring("fd01::2/64"), Not(ContainSubstring("tentative"))))
		Expect(b.container.Sysctl(GinkgoTB(), "net/ipv6/conf/net1/accept_dad")).To(Equal("1"))
		b.OK("DEL", c)
		restored()
	})

	It("adds the IPv6 addresses again, usable at once, if /proc/sys is read-only", func() {
		b.container.SetSysctl(GinkgoTB(), "net/ipv6/conf/net1/keep_addr_on_down", "0")
		b.container.SetSysctl(GinkgoTB(), "net/ipv6/conf/net1/accept_dad", "1")
		c := b.call("net1", conf(blue))
		restore := nstest.ReadOnlySysctls(GinkgoTB())
		b.Add(c)
		usable := And(ContainSubstring("fd01::2/64"), Not(ContainSubstring("tentative")))
		Expect(b.container.IP("-6 addr show dev net1 scope global")).To(usable)
		Expect(b.container.IP("-6 route show vrf blue default")).To(ContainSubstring("via fd01::1 dev net1"))
		b.OK("DEL", c)
		restore()
		Expect(b.container.IP("-6 addr show dev net1 scope global")).To(usable)
	})

	It("leaves the routes of router advertisements to the kernel, and sets up a VRF that is down", func() {
		b.container.Batch(GinkgoTB(), "route add 2001:db8:7::/48 via fe80::9 dev net1 proto ra")
		c := b.call("net1", conf(blue))
		b.Add(c)
		Expect(b.container.IP("-6 route show vrf blue")).NotTo(ContainSubstring("2001:db8:7::/48"))
		b.container.IP("link set blue down")
		b.Add(c)
		b.OK("CHECK", c)
	})

	It("uses an existing VRF with the configured table", func() {
		b.container.Batch(GinkgoTB(), "link add blue type vrf table 5", "link set blue alias somebody", "route add default via 10.1.0.1 dev eth0 table 1000")
		c := b.call("net1", conf(blue+`,"table":5`))
		b.Add(c)
		Expect(b.container.IP("-4 route show table 5 default")).To(Equal("default via 10.1.0.1 dev net1"))
		other := b.call("net1", conf(blue+`,"table":6`))
		Expect(b.Run("CHECK", other).Failure(GinkgoTB()).Msg).To(ContainSubstring("different routing table: 5, want 6"))
		b.OK("DEL", c)
		Expect(b.container.IP("link show blue")).To(ContainSubstring("alias somebody"), "DEL does not delete the VRF of another program")
		By("choosing a free table if none is configured")
		red := b.call("net1", conf(`"vrfname":"red"`))
		b.Add(red)
		Expect(b.container.IP("-d link show red")).To(ContainSubstring("vrf table 1001"))
		b.OK("DEL", red)
	})

	It("shares the configured table with another VRF, and warns", func() {
		b.container.Batch(GinkgoTB(), "link add other type vrf table 6")
		restored := b.Restored(b.container)
		c := b.call("net1", conf(blue+`,"table":6`))
		Expect(b.OK("ADD", c).Stderr).To(ContainSubstring("VRF blue: VRF other uses table 6 as well, and therefore the same routes"))
		Expect(b.container.IP("-4 route show table 6 default")).To(Equal("default via 10.1.0.1 dev net1"))
		b.OK("CHECK", c)
		b.OK("DEL", c)
		restored()
	})

	It("fails and changes nothing if the interface or the VRF cannot be used", func() {
		b.container.Batch(GinkgoTB(), "link add br0 type bridge", "link add other type vrf table 6")
		b.Refuse(b.call("net1", conf(`"vrfname":"br0"`)), 7, `interface br0 is not a VRF, but of kind "bridge"`)
		b.Refuse(b.call("net1", conf(`"vrfname":"other","table":7`)), 7, "VRF other already exists with a different routing table: 6, want 7")
		b.container.Batch(GinkgoTB(), "link set net1 master br0")
		b.Refuse(b.call("net1", conf(blue)), 7, "interface net1 has already a master set")
		b.container.Batch(GinkgoTB(), "link set net1 nomaster", "link set net1 master other")
		b.Refuse(b.call("net1", conf(blue)), 7, "interface net1 has already a master set")
	})

	DescribeTable("returns prevResult in the form of each version", func(version string) {
		c := b.call("net1", confOf(version, blue))
		nstest.Golden(GinkgoTB(), "add-"+version, b.OK("ADD", c).Stdout)
	},
		EntryDescription("%s"),
		Entry(nil, "0.3.1"), Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"),
	)
})

var _ = Describe("DEL", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	DescribeTable("needs nothing but the container", func(change func(*nstest.Call)) {
		restored := b.Restored(b.container)
		c := b.call("net1", conf(blue))
		b.Add(c)
		change(&c)
		b.OK("DEL", c)
		restored()
	},
		Entry("without prevResult", func(c *nstest.Call) { c.Config = `{"cniVersion":"1.1.0","name":"net1","type":"vrf","vrfname":"blue"}` }),
		Entry("with a configuration that ADD rejects", func(c *nstest.Call) {
			c.Config = `{"cniVersion":"9","name":"net1","type":"vrf","vrfname":7,"table":"x","prevResult":3}`
		}),
		Entry("without a name", func(c *nstest.Call) { c.Config = `{"cniVersion":"1.1.0","name":"net1","type":"vrf"}` }),
	)

	It("deletes the empty VRF if the interface is gone", func() {
		c := b.call("net1", conf(blue))
		b.Add(c)
		b.container.Batch(GinkgoTB(), "link del net1")
		b.OK("DEL", c)
		Expect(b.container.IP("-br link")).NotTo(ContainSubstring("blue"))
	})

	It("does not change an interface that is in another VRF or belongs to another attachment", func() {
		b.container.Batch(GinkgoTB(), "link add red type vrf table 6", "link set red up", "link set net1 master red")
		restored := b.Restored(b.container)
		b.OK("DEL", b.call("net1", conf(blue)))
		b.OK("DEL", b.call("net1", `{"cniVersion":"1.1.0","name":"net1","type":"vrf"}`))
		restored()
		By("even if another interface is in the configured VRF")
		b.Add(b.call("eth0", conf(blue)))
		restored = b.Restored(b.container)
		b.OK("DEL", b.call("net1", conf(blue)))
		restored()
		b.container.Batch(GinkgoTB(), "link set net1 alias plumb:net1/other/net1")
		restored = b.Restored(b.container)
		b.OK("DEL", b.call("net1", conf(`"vrfname":"red"`)))
		restored()
	})
})

var _ = Describe("CHECK", Label(nstest.Kernel), func() {
	DescribeTable("names what differs", func(change, want string) { // change contains the arguments of ip
		b := newTestbed()
		c := b.call("net1", conf(blue+`,"table":1000`))
		b.Add(c)
		b.OK("CHECK", c)
		b.container.IP(change)
		b.Fails("CHECK", c, types.CodeChanged, want)
	},
		Entry(nil, "link set net1 nomaster", "interface net1 is not in VRF blue"),
		Entry(nil, "link set blue down", "VRF blue is down"),
		Entry(nil, "link del blue", "VRF blue does not exist"),
		Entry(nil, "link del net1", "find link net1"),
	)
})

var _ = It("leaves nothing behind if a step fails", Label(nstest.Kernel), func() {
	requireVRF(nstest.NewHost(GinkgoTB()))
	nstest.FaultSweep(GinkgoTB(), nstest.Sweep{Plugin: plugin(), Config: conf(blue), PrepareContainer: func(container *nstest.NS) {
		requireVRF(container)
		container.Batch(GinkgoTB(), "link add eth0 up type veth peer name peer0", "link set peer0 up", "addr add 10.66.0.2/24 dev eth0", "addr add fd66::2/64 dev eth0 nodad",
			"route add default via 10.66.0.1", "route add default via fd66::1", "route add 172.31.0.0/16 via 10.66.0.9 table 77")
		container.SetSysctl(GinkgoTB(), "net/ipv6/conf/eth0/keep_addr_on_down", "1") // as plumb's interface plugins set it
		container.SetSysctl(GinkgoTB(), "net/ipv6/conf/eth0/accept_dad", "0")
	}})
})

var _ = Describe("beside the reference plugin", Label(nstest.Kernel), func() {
	It("checks and deletes what the reference plugin created, and the reference plugin what plumb created", func() {
		b := newTestbed()
		c := b.call("net1", confOf("1.0.0", blue))
		runReference := func(command string) { nstest.ExecReference(GinkgoTB(), "vrf", c.With(command)).OK(GinkgoTB()) }
		runReference("ADD")
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(b.container.IP("-br link")).NotTo(ContainSubstring("blue"))
		b.Add(c)
		runReference("CHECK")
		runReference("DEL")
		Expect(b.container.IP("-br link")).NotTo(ContainSubstring("blue"))
		b.OK("DEL", c)
	})
})

var _ = It("works in a chain of bridge, vrf and sbr", Label(nstest.Kernel), func() {
	b := newEmptyTestbed()
	container := b.container
	requireVRF(container)
	bin := nstest.Build(GinkgoTB(), "bridge", "static", "vrf", "sbr")
	restored := b.Restored(container)
	confs := map[string]string{
		"bridge": `{"cniVersion":"1.1.0","name":"net1","type":"bridge","isGateway":true,"ipam":{"type":"static",
			"addresses":[{"address":"10.9.0.2/24","gateway":"10.9.0.1"},{"address":"fd09::2/64","gateway":"fd09::1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`,
		"vrf": `{"cniVersion":"1.1.0","name":"net1","type":"vrf","vrfname":"blue"}`,
		"sbr": `{"cniVersion":"1.1.0","name":"net1","type":"sbr"}`,
	}
	c := nstest.Call{Host: b.Host, Container: container, Path: bin}
	result := ""
	call := func(command, plugin string) nstest.Reply {
		c.Config = confs[plugin]
		if result != "" {
			c.Config = nstest.WithPrevResult(c.Config, result)
		}
		return nstest.Exec(GinkgoTB(), bin+"/"+plugin, c.With(command)).OK(GinkgoTB())
	}
	for _, plugin := range []string{"bridge", "vrf", "sbr"} {
		result = call("ADD", plugin).Stdout
	}
	Expect(reaches(container, "blue", "10.9.0.1")).To(BeTrue())
	Expect(container.IP("route get 192.0.2.1 from 10.9.0.2")).To(ContainSubstring("via 10.9.0.1 dev eth0 table 100"))
	Expect(container.IP("-4 route")).To(BeEmpty())
	for _, plugin := range []string{"bridge", "vrf", "sbr"} {
		call("CHECK", plugin)
	}
	for _, plugin := range []string{"sbr", "vrf", "bridge"} {
		call("DEL", plugin)
	}
	restored()
})

var _ = Describe("without a VRF in the kernel or in the container", func() {
	var b *testbed
	BeforeEach(func() { b = newEmptyTestbed() })

	It("ADD fails if the kernel does not support VRFs", func() {
		if _, err := b.container.Exec("ip", "link", "add", "test", "type", "vrf", "table", "9"); err == nil {
			return // this kernel supports VRFs
		}
		b.container.Batch(GinkgoTB(), "link add net1 up type veth peer name peer1")
		b.Refuse(b.call("net1", conf(blue)), 7, "this kernel does not support VRFs (CONFIG_NET_VRF)")
	})

	It("DEL succeeds", func() {
		restored := b.Restored(b.container)
		for _, config := range []string{conf(blue), conf(`"vrfname":"lo"`), `{"cniVersion":"1.1.0","name":"net1","type":"vrf"}`} {
			b.OK("DEL", b.call("net1", config))
			b.OK("DEL", nstest.Call{Host: b.Host, IfName: "net1", Config: config})
			b.OK("DEL", nstest.Call{Host: b.Host, NetNS: "/nonexistent", IfName: "net1", Config: config})
		}
		restored()
	})

	It("CHECK and STATUS fail", func() {
		b.container.Batch(GinkgoTB(), "link add net1 up type veth peer name peer1")
		b.Fails("CHECK", b.call("net1", conf(blue)), types.CodeChanged, "VRF blue does not exist")
		b.RequireStatus(nstest.Conf("vrf", "1.1.0", blue, ""), "")
		b.RequireStatus(nstest.Conf("vrf", "1.1.0", "", ""), "vrfname: configuration is expected to have a valid vrf name")
		Expect(b.Run("STATUS", b.Call("", nil, nstest.Conf("vrf", "1.1.0", "", ""))).Stdout).NotTo(ContainSubstring("another interface"))
	})
})

// A refused call changes nothing, so that all calls can share a host.
var _ = Describe("an invalid configuration", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newEmptyTestbed() })

	DescribeTable("ADD rejects a configuration", func(config string, code int, texts ...string) {
		b.Refuse(b.call("net1", config), code, texts...)
	},
		Entry("without a name", conf(`"table":5`), 7, "vrfname: configuration is expected to have a valid vrf name; the key is missing or empty"),
		Entry("with several problems", conf(`"vrfname":"a/b","table":254`), 7, `vrfname "a/b" is not an interface name`, "table 254 is one of the kernel's tables"),
		Entry("with a table above the largest", conf(blue+`,"table":4294967296`), 7, "table 4294967296 must be between"),
		Entry("with the table default", conf(blue+`,"table":253`), 7, "table 253 is one of the kernel's tables"),
		Entry("with the table local", conf(blue+`,"table":255`), 7, "table 255 is one of the kernel's tables"),
		Entry("with the name of the loopback interface", conf(`"vrfname":"lo"`), 7, `vrfname "lo" is the name of another interface`),
		Entry("with the name of the interface", conf(`"vrfname":"net1"`), 7, "is the name of another interface"),
		Entry("with a negative table", conf(blue+`,"table":-1`), 7, "table -1 must be between"),
		Entry("without prevResult", `{"cniVersion":"1.1.0","name":"net1","type":"vrf","vrfname":"blue"}`, 7, "must be called as chained plugin"),
		Entry("without the interface", conf(blue), 7, "find link net1"),
		Entry("of a version that it does not support", confOf("0.3.0", blue), 1, "incompatible CNI versions"),
	)
})
