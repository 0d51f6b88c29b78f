package main

import (
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("ADD", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() {
		nstest.LeakCheck(GinkgoTB())
		b = newTestbed(GinkgoTB())
	})

	It("moves the interface with its routes and addresses, and DEL moves them back", func() {
		before := snapshot(b.pod)
		c := b.call("net1", conf(blue))
		added(c)
		Expect(b.ip("-d link show blue")).To(And(ContainSubstring("vrf table 1000"), ContainSubstring("alias plumb:net/test/net1"), ContainSubstring(",UP")))
		Expect(b.ip("-4 route show vrf blue")).To(Equal("default via 10.1.0.1 dev net1\n10.1.0.0/24 dev net1 proto kernel scope link src 10.1.0.2\n192.0.2.0/24 via 10.1.0.9 dev net1 proto static mtu 1300"))
		Expect(b.ip("-6 route show vrf blue default")).To(Equal("default via fd01::1 dev net1 metric 1024 pref medium"))
		Expect(b.ip("-6 route show vrf blue fd01::/64")).To(ContainSubstring("proto kernel metric 256"))
		By("leaving other interfaces and tables as they are")
		Expect(b.ip("-4 route")).To(Equal("10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.2"))
		Expect(b.ip("-6 route show default")).To(Equal("default via fd01::1 dev eth0 metric 1024 pref medium"))
		Expect(b.ip("-4 route show table 77")).To(Equal("198.51.100.0/24 via 10.1.0.1 dev net1"))
		Expect(b.reaches("blue", "203.0.113.2")).To(BeTrue())
		Expect(b.reaches("blue", "fd01::1")).To(BeTrue())

		again := snapshot(b.pod)
		added(c)
		Expect(restored(again, b.pod)).To(BeEmpty(), "a second ADD changes nothing")
		run(c, "CHECK").OK(GinkgoTB())
		run(c, "DEL").OK(GinkgoTB())
		Expect(restored(before, b.pod)).To(BeEmpty())
		run(c, "DEL").OK(GinkgoTB())
		Expect(restored(before, b.pod)).To(BeEmpty())
	})

	It("separates two interfaces with the same subnets", func() {
		calls := []nstest.Call{b.call("net1", conf(blue)), b.call("eth0", conf(`"vrfname":"red"`))}
		b.ip("route append default via 10.1.0.1 dev eth0 metric 5")
		before := snapshot(b.pod)
		for _, reply := range nstest.RunAll(plugin(), "ADD", calls) {
			reply.OK(GinkgoTB())
		}
		Expect(b.ip("-4 route")).To(BeEmpty())
		Expect(b.reaches("blue", "203.0.113.2")).To(BeTrue())
		Expect(b.reaches("red", "203.0.113.1")).To(BeTrue())
		Expect(b.reaches("blue", "203.0.113.1")).To(BeFalse())
		for _, c := range calls {
			run(c, "CHECK").OK(GinkgoTB())
			run(c, "DEL").OK(GinkgoTB())
		}
		Expect(restored(before, b.pod)).To(BeEmpty())
	})

	It("puts two interfaces into one VRF, which the last DEL deletes", func() {
		before := snapshot(b.pod)
		calls := []nstest.Call{b.call("net1", conf(blue)), b.call("eth0", conf(blue))}
		for i := range calls {
			for _, reply := range nstest.RunAll(plugin(), "ADD", calls) {
				reply.OK(GinkgoTB())
			}
			run(calls[i], "DEL").OK(GinkgoTB())
			run(calls[1-i], "CHECK").OK(GinkgoTB())
			run(calls[1-i], "DEL").OK(GinkgoTB())
			Expect(restored(before, b.pod)).To(BeEmpty())
		}
	})

	It("keeps IPv6 addresses of an interface that does not keep them when it is set down, without waiting", func() {
		b.pod.SetSysctl(GinkgoTB(), "net/ipv6/conf/net1/keep_addr_on_down", "0")
		b.pod.SetSysctl(GinkgoTB(), "net/ipv6/conf/net1/accept_dad", "1")
		before := snapshot(b.pod)
		c := b.call("net1", conf(blue))
		added(c)
		Expect(b.ip("-6 addr show dev net1 scope global")).To(And(ContainSubstring("fd01::2/64"), Not(ContainSubstring("tentative"))))
		Expect(b.pod.Sysctl(GinkgoTB(), "net/ipv6/conf/net1/accept_dad")).To(Equal("1"))
		run(c, "DEL").OK(GinkgoTB())
		Expect(restored(before, b.pod)).To(BeEmpty())
	})

	It("adds the IPv6 addresses again where it may not write sysctls, and they are usable at once", func() {
		b.pod.SetSysctl(GinkgoTB(), "net/ipv6/conf/net1/keep_addr_on_down", "0")
		b.pod.SetSysctl(GinkgoTB(), "net/ipv6/conf/net1/accept_dad", "1")
		c := b.call("net1", conf(blue))
		restore := nstest.ReadOnlySysctls(GinkgoTB())
		added(c)
		usable := And(ContainSubstring("fd01::2/64"), Not(ContainSubstring("tentative")))
		Expect(b.ip("-6 addr show dev net1 scope global")).To(usable)
		Expect(b.ip("-6 route show vrf blue default")).To(ContainSubstring("via fd01::1 dev net1"))
		run(c, "DEL").OK(GinkgoTB())
		restore()
		Expect(b.ip("-6 addr show dev net1 scope global")).To(usable)
	})

	It("leaves the routes of router advertisements to the kernel, and sets up a VRF that is down", func() {
		b.pod.Batch(GinkgoTB(), "route add 2001:db8:7::/48 via fe80::9 dev net1 proto ra")
		c := b.call("net1", conf(blue))
		added(c)
		Expect(b.ip("-6 route show vrf blue")).NotTo(ContainSubstring("2001:db8:7::/48"))
		b.ip("link set blue down")
		added(c)
		run(c, "CHECK").OK(GinkgoTB())
	})

	It("takes an existing VRF, and the configured table", func() {
		b.pod.Batch(GinkgoTB(), "link add blue type vrf table 5", "link set blue alias somebody", "route add default via 10.1.0.1 dev eth0 table 1000")
		c := b.call("net1", conf(blue+`,"table":5`))
		added(c)
		Expect(b.ip("-4 route show table 5 default")).To(Equal("default via 10.1.0.1 dev net1"))
		other := b.call("net1", conf(blue+`,"table":6`))
		Expect(run(other, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring("different routing table: 5, not 6"))
		run(c, "DEL").OK(GinkgoTB())
		Expect(b.ip("link show blue")).To(ContainSubstring("alias somebody"), "DEL does not delete the VRF of another program")
		By("and a free one where none is configured")
		red := b.call("net1", conf(`"vrfname":"red"`))
		added(red)
		Expect(b.ip("-d link show red")).To(ContainSubstring("vrf table 1001"))
		run(red, "DEL").OK(GinkgoTB())
	})

	It("shares the configured table with another VRF, and warns", func() {
		b.pod.Batch(GinkgoTB(), "link add other type vrf table 6")
		before := snapshot(b.pod)
		c := b.call("net1", conf(blue+`,"table":6`))
		Expect(run(c, "ADD").OK(GinkgoTB()).Stderr).To(ContainSubstring("VRF blue: VRF other has table 6 as well, so that both use the same routes"))
		Expect(b.ip("-4 route show table 6 default")).To(Equal("default via 10.1.0.1 dev net1"))
		run(c, "CHECK").OK(GinkgoTB())
		run(c, "DEL").OK(GinkgoTB())
		Expect(restored(before, b.pod)).To(BeEmpty())
	})

	It("fails and changes nothing where it cannot work", func() {
		b.pod.Batch(GinkgoTB(), "link add br0 type bridge", "link add other type vrf table 6")
		refused(b.call("net1", conf(`"vrfname":"br0"`)), 7, `interface br0 is not a VRF, but of kind "bridge"`)
		refused(b.call("net1", conf(`"vrfname":"other","table":7`)), 7, "VRF other already exists with a different routing table: 6, not 7")
		b.pod.Batch(GinkgoTB(), "link set net1 master br0")
		refused(b.call("net1", conf(blue)), 7, "interface net1 has already a master set")
		b.pod.Batch(GinkgoTB(), "link set net1 nomaster", "link set net1 master other")
		refused(b.call("net1", conf(blue)), 7, "interface net1 has already a master set")
	})

	DescribeTable("returns prevResult in the form of each version", func(version string) {
		c := b.call("net1", confOf(version, blue))
		nstest.Golden(GinkgoTB(), "add-"+version, run(c, "ADD").OK(GinkgoTB()).Stdout)
	},
		EntryDescription("%s"),
		Entry(nil, "0.3.1"), Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"),
	)
})

var _ = Describe("DEL", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() {
		nstest.LeakCheck(GinkgoTB())
		b = newTestbed(GinkgoTB())
	})

	DescribeTable("needs nothing but the container", func(change func(*nstest.Call)) {
		before := snapshot(b.pod)
		c := b.call("net1", conf(blue))
		added(c)
		change(&c)
		run(c, "DEL").OK(GinkgoTB())
		Expect(restored(before, b.pod)).To(BeEmpty())
	},
		Entry("without prevResult", func(c *nstest.Call) { c.Config = `{"cniVersion":"1.1.0","name":"net","type":"vrf","vrfname":"blue"}` }),
		Entry("with a configuration that ADD refuses", func(c *nstest.Call) {
			c.Config = `{"cniVersion":"9","name":"net","type":"vrf","vrfname":7,"table":"x","prevResult":3}`
		}),
		Entry("without a name", func(c *nstest.Call) { c.Config = `{"cniVersion":"1.1.0","name":"net","type":"vrf"}` }),
	)

	It("deletes the empty VRF if the interface is gone", func() {
		c := b.call("net1", conf(blue))
		added(c)
		b.pod.Batch(GinkgoTB(), "link del net1")
		run(c, "DEL").OK(GinkgoTB())
		Expect(b.ip("-br link")).NotTo(ContainSubstring("blue"))
	})

	It("leaves an interface alone that is in another VRF, or of another attachment", func() {
		b.pod.Batch(GinkgoTB(), "link add red type vrf table 6", "link set red up", "link set net1 master red")
		before := snapshot(b.pod)
		run(b.call("net1", conf(blue)), "DEL").OK(GinkgoTB())
		run(b.call("net1", `{"cniVersion":"1.1.0","name":"net","type":"vrf"}`), "DEL").OK(GinkgoTB())
		Expect(restored(before, b.pod)).To(BeEmpty())
		By("also if the container has the VRF of the name, with another interface")
		added(b.call("eth0", conf(blue)))
		before = snapshot(b.pod)
		run(b.call("net1", conf(blue)), "DEL").OK(GinkgoTB())
		Expect(restored(before, b.pod)).To(BeEmpty())
		b.pod.Batch(GinkgoTB(), "link set net1 alias plumb:net/other/net1")
		before = snapshot(b.pod)
		run(b.call("net1", conf(`"vrfname":"red"`)), "DEL").OK(GinkgoTB())
		Expect(restored(before, b.pod)).To(BeEmpty())
	})
})

var _ = Describe("CHECK", Label(nstest.Kernel), func() {
	DescribeTable("names what differs", func(change, want string) { // change is a command of ip
		nstest.LeakCheck(GinkgoTB())
		b := newTestbed(GinkgoTB())
		c := b.call("net1", conf(blue+`,"table":1000`))
		added(c)
		run(c, "CHECK").OK(GinkgoTB())
		b.ip(change)
		f := run(c, "CHECK").Failure(GinkgoTB())
		Expect(f.Code).To(BeEquivalentTo(types.CodeChanged))
		Expect(f.Msg).To(ContainSubstring(want))
	},
		Entry(nil, "link set net1 nomaster", "interface net1 is not in VRF blue"),
		Entry(nil, "link set blue down", "VRF blue is down"),
		Entry(nil, "link del blue", "VRF blue does not exist"),
		Entry(nil, "link del net1", "find link net1"),
	)
})

var _ = It("leaves nothing behind if a step fails", Label(nstest.Kernel), func() {
	requireVRF(GinkgoTB(), nstest.NewNode(GinkgoTB()))
	nstest.FaultSweep(GinkgoTB(), nstest.Sweep{Plugin: plugin(), Config: conf(blue), PreparePod: func(pod *nstest.NS) {
		requireVRF(GinkgoTB(), pod)
		pod.Batch(GinkgoTB(), "link add eth0 up type veth peer name peer0", "link set peer0 up", "addr add 10.66.0.2/24 dev eth0", "addr add fd66::2/64 dev eth0 nodad",
			"route add default via 10.66.0.1", "route add default via fd66::1", "route add 172.31.0.0/16 via 10.66.0.9 table 77")
		pod.SetSysctl(GinkgoTB(), "net/ipv6/conf/eth0/keep_addr_on_down", "1") // as plumb's interface plugins set it
		pod.SetSysctl(GinkgoTB(), "net/ipv6/conf/eth0/accept_dad", "0")
	}})
})

// reference is the path of the plugin in Debian's package containernetworking-plugins.
const reference = "/usr/lib/cni/vrf"

var _ = Describe("beside the reference plugin", Label(nstest.Kernel), func() {
	It("checks and deletes what that made, and the reverse", func() {
		if _, err := os.Stat(reference); err != nil {
			Skip("containernetworking-plugins is not installed: " + err.Error())
		}
		b := newTestbed(GinkgoTB())
		c := b.call("net1", confOf("1.0.0", blue))
		runReference := func(command string) { nstest.Exec(GinkgoTB(), reference, c.With(command)).OK(GinkgoTB()) }
		runReference("ADD")
		run(c, "CHECK").OK(GinkgoTB())
		run(c, "DEL").OK(GinkgoTB())
		Expect(b.ip("-br link")).NotTo(ContainSubstring("blue"))
		added(c)
		runReference("CHECK")
		runReference("DEL")
		Expect(b.ip("-br link")).NotTo(ContainSubstring("blue"))
		run(c, "DEL").OK(GinkgoTB())
	})
})

var _ = It("works in a chain of bridge, vrf and sbr", Label(nstest.Kernel), func() {
	node, pod := nstest.NewNodeAndPod(GinkgoTB())
	requireVRF(GinkgoTB(), pod)
	bin := nstest.Build(GinkgoTB(), "bridge", "static", "vrf", "sbr")
	before := snapshot(pod)
	confs := map[string]string{
		"bridge": `{"cniVersion":"1.1.0","name":"net","type":"bridge","isGateway":true,"ipam":{"type":"static",
			"addresses":[{"address":"10.9.0.2/24","gateway":"10.9.0.1"},{"address":"fd09::2/64","gateway":"fd09::1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`,
		"vrf": `{"cniVersion":"1.1.0","name":"net","type":"vrf","vrfname":"blue"}`,
		"sbr": `{"cniVersion":"1.1.0","name":"net","type":"sbr"}`,
	}
	c := nstest.Call{Node: node, Pod: pod, Path: bin}
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
	inPod := &testbed{pod: pod}
	Expect(inPod.reaches("blue", "10.9.0.1")).To(BeTrue())
	Expect(inPod.ip("route get 192.0.2.1 from 10.9.0.2")).To(ContainSubstring("via 10.9.0.1 dev eth0 table 100"))
	Expect(inPod.ip("-4 route")).To(BeEmpty())
	for _, plugin := range []string{"bridge", "vrf", "sbr"} {
		call("CHECK", plugin)
	}
	for _, plugin := range []string{"sbr", "vrf", "bridge"} {
		call("DEL", plugin)
	}
	Expect(restored(before, pod)).To(BeEmpty())
})

var _ = Describe("without a VRF in the kernel or in the container", func() {
	It("ADD fails if the kernel has no VRFs", func() {
		node, pod := nstest.NewNodeAndPod(GinkgoTB())
		if _, err := pod.Exec("ip", "link", "add", "test", "type", "vrf", "table", "9"); err == nil {
			return // this kernel has them
		}
		pod.Batch(GinkgoTB(), "link add net1 up type veth peer name peer1")
		refused(nstest.Call{Node: node, Pod: pod, IfName: "net1", Config: conf(blue)}, 7, "this kernel has no VRFs (CONFIG_NET_VRF)")
	})

	DescribeTable("ADD refuses a configuration", func(config string, code int, texts ...string) {
		node, pod := nstest.NewNodeAndPod(GinkgoTB())
		refused(nstest.Call{Node: node, Pod: pod, IfName: "net1", Config: config}, code, texts...)
	},
		Entry("without a name", conf(`"table":5`), 7, `configuration is expected to have a valid vrf name: the key "vrfname" is missing or empty`),
		Entry("with several problems", conf(`"vrfname":"a/b","table":254`), 7, `vrfname "a/b" is not an interface name`, "table 254 is one of the kernel's tables"),
		Entry("with a table above the largest", conf(blue+`,"table":4294967296`), 7, "table 4294967296 is not between"),
		Entry("with the table default", conf(blue+`,"table":253`), 7, "table 253 is one of the kernel's tables"),
		Entry("with the table local", conf(blue+`,"table":255`), 7, "table 255 is one of the kernel's tables"),
		Entry("with the name of the loopback interface", conf(`"vrfname":"lo"`), 7, `vrfname "lo" is the name of another interface`),
		Entry("with the name of the interface", conf(`"vrfname":"net1"`), 7, "is the name of another interface"),
		Entry("with a negative table", conf(blue+`,"table":-1`), 7, "table -1 is not between"),
		Entry("with a value of the wrong type", conf(`"vrfname":1`), 6, "vrfname"),
		Entry("without prevResult", `{"cniVersion":"1.1.0","name":"net","type":"vrf","vrfname":"blue"}`, 7, "must be called as chained plugin"),
		Entry("without the interface", conf(blue), 7, "find link net1"),
		Entry("of a version that it does not support", confOf("0.3.0", blue), 1, "incompatible CNI versions"),
	)

	It("DEL succeeds", func() {
		node, pod := nstest.NewNodeAndPod(GinkgoTB())
		before := snapshot(pod)
		for _, config := range []string{conf(blue), conf(`"vrfname":"lo"`), `{"cniVersion":"1.1.0","name":"net","type":"vrf"}`} {
			run(nstest.Call{Node: node, Pod: pod, IfName: "net1", Config: config}, "DEL").OK(GinkgoTB())
			run(nstest.Call{Node: node, IfName: "net1", Config: config}, "DEL").OK(GinkgoTB())
			run(nstest.Call{Node: node, NetNS: "/nonexistent", IfName: "net1", Config: config}, "DEL").OK(GinkgoTB())
		}
		Expect(restored(before, pod)).To(BeEmpty())
	})

	It("CHECK and STATUS fail", func() {
		node, pod := nstest.NewNodeAndPod(GinkgoTB())
		pod.Batch(GinkgoTB(), "link add net1 up type veth peer name peer1")
		f := run(nstest.Call{Node: node, Pod: pod, IfName: "net1", Config: conf(blue)}, "CHECK").Failure(GinkgoTB())
		Expect(f.Code).To(BeEquivalentTo(types.CodeChanged))
		Expect(f.Msg).To(ContainSubstring("VRF blue does not exist"))
		status := func(keys string) nstest.Reply {
			return run(nstest.Call{Node: node, Env: []string{"CNI_IFNAME="}, Config: `{"cniVersion":"1.1.0","name":"net","type":"vrf"` + keys + `}`}, "STATUS")
		}
		status("," + blue).OK(GinkgoTB())
		status("").RequireFailure(GinkgoTB(), types.CodeNotAvailable, `the key "vrfname" is missing or empty`)
		Expect(status("").Stdout).NotTo(ContainSubstring("another interface"))
	})
})
