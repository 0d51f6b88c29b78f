package main

import (
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// These specs need no VLAN interface, and so no kernel that has them.

var _ = Describe("without a VLAN interface", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		nstest.LeakCheck(GinkgoTB())
	})

	DescribeTable("ADD refuses an invalid configuration",
		func(config, args string, code int, texts ...string) {
			c := b.call("one", newPod(), config)
			c.Args = args
			b.mustRefuse(c, code, texts...)
		},
		Entry("no master", conf("1.0.0", `"vlanId":100`, static4), "", types.CodeConfig, `"master" field is required`),
		Entry("no master, with a name of the interface", conf("1.0.0", `"vlanId":100,"ifName":"x"`, static4), "", types.CodeConfig, `"master" field is required`, `"ifName" is only for a VLAN of CNI_IFNAME in a chain`),
		Entry("in a chain, a name that no interface can have", conf("1.0.0", inChain+`,"ifName":"a/b"`, noIPAM), "", types.CodeConfig, `"a/b" cannot be the name of the VLAN interface`),
		Entry("in a chain, addresses", conf("1.0.0", inChain, static4), "", types.CodeConfig, `a VLAN of CNI_IFNAME in a chain has no addresses: remove "ipam"`),
		Entry("in a chain, no prevResult", conf("1.0.0", inChain, noIPAM), "", types.CodeConfig, "ADD of vlan needs a prevResult"),
		Entry("in a chain, a prevResult without the interface", conf("1.0.0", inChain+`,"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth1","sandbox":"/x"}]}`, noIPAM), "",
			types.CodeConfig, "prevResult has no interface eth0 in the container"),
		Entry("no ID", conf("1.0.0", `"master":"uplink0"`, static4), "", types.CodeConfig, `"vlanId" is required`),
		Entry("an ID below zero", conf("1.0.0", `"master":"uplink0","vlanId":-1`, static4), "", types.CodeConfig, "invalid VLAN ID -1 (must be between 0 and 4094)"),
		Entry("the reserved ID", conf("1.0.0", `"master":"uplink0","vlanId":4095`, static4), "", types.CodeConfig, "invalid VLAN ID 4095"),
		Entry("an unknown protocol", conf("1.0.0", in100+`,"protocol":"802.1x"`, static4), "", types.CodeConfig, `unknown protocol: "802.1x"; want 802.1Q or 802.1ad`),
		Entry("an MTU too small", conf("1.0.0", in100+`,"mtu":67`, static4), "", types.CodeConfig, "mtu 67 is not between 68 and 65535"),
		Entry("an MTU larger than the master's", conf("1.0.0", in100+`,"mtu":1501`, static4), "", types.CodeConfig, "invalid MTU 1501, must be [0, master MTU(1500)]"),
		Entry("a multicast MAC", conf("1.0.0", in100, static4), "MAC=01:00:00:00:00:01", types.CodeConfig, "unicast"),
		Entry("the loopback interface as master", conf("1.0.0", `"master":"lo","vlanId":1`, static4), "", types.CodeConfig, "master lo is the loopback"),
		Entry("a master that does not exist", conf("1.0.0", `"master":"nope0","vlanId":1`, static4), "", types.CodeConfig, "master: find link nope0"),
		Entry("a master that is not in the container", conf("1.0.0", in100+`,"linkInContainer":true`, static4), "", types.CodeConfig, "master: find link uplink0"),
		Entry("several problems, which the error names all", conf("1.0.0", `"vlanId":5000,"mtu":-1,"mac":"y","protocol":"x"`, static4), "", types.CodeConfig,
			`"master" field is required`, "5000", "mtu -1", `"y"`, `"x"`),
		Entry("layer 2 before 0.3.0", conf("0.2.0", in100, noIPAM), "", types.CodeConfig, "cannot convert: no valid IP addresses"),
		Entry("a value of the wrong type", conf("1.0.0", `"master":"uplink0","vlanId":"100"`, static4), "", types.CodeDecode, `key "vlanId": want a number`),
		Entry("an unknown key with strict", conf("1.0.0", in100+`,"strict":true,"vlanID2":5`, static4), "", types.CodeUnsupported, `"vlanID2"`),
		Entry("an IPAM plugin that does not exist", conf("1.0.0", in100, `{"type":"nope"}`), "", types.CodeConfig, `failed to find plugin "nope"`),
	)

	It("ADD refuses an interface name that exists in the container, and reserves no address", func() {
		pod := newPod()
		in(pod, "ip link add eth0 type veth peer name eth1")
		b.mustRefuse(b.call("one", pod, conf("1.0.0", in100, b.hostLocal())), types.CodeConfig, `interface "eth0" already exists`)
	})

	It("ADD says that the kernel or the master has no VLANs, and releases the addresses", func() {
		c := b.call("one", newPod(), conf("1.0.0", in100, b.hostLocal()))
		c.Before = func(step string) error {
			if step == "add link eth0" {
				return syscall.EOPNOTSUPP
			}
			return nil
		}
		b.mustRefuse(c, types.CodeConfig, "the kernel has no VLAN interfaces (CONFIG_VLAN_8021Q), or master uplink0 can carry none")
	})

	DescribeTable("DEL succeeds, and releases the addresses",
		func(change func(c *nstest.Call)) {
			c := b.call("one", newPod(), conf("1.0.0", in100, b.hostLocal()))
			nstest.Exec(GinkgoTB(), b.path+"/host-local", c.With("ADD")).OK(GinkgoTB())
			Expect(b.reservations()).To(HaveLen(2))
			change(&c)
			run(c, "DEL").OK(GinkgoTB())
			Expect(b.reservations()).To(BeEmpty())
			run(c, "DEL").OK(GinkgoTB())
		},
		Entry("without the interface", func(*nstest.Call) {}),
		Entry("without CNI_NETNS", func(c *nstest.Call) { c.Pod = nil }),
		Entry("without the master", func(*nstest.Call) { in(b.Node, "ip link del uplink0") }),
		Entry("with a master whose MTU is too small now", func(c *nstest.Call) {
			in(b.Node, "ip link set uplink0 mtu 1300")
			c.Config = conf("1.0.0", in100+`,"mtu":1400`, b.hostLocal())
		}),
		Entry("with a master in a container that is gone", func(c *nstest.Call) {
			c.Pod = nil
			c.Config = conf("1.0.0", in100+`,"linkInContainer":true`, b.hostLocal())
		}),
		Entry("with a configuration that ADD refuses", func(c *nstest.Call) {
			c.Config = conf("1.0.0", `"vlanId":5000,"protocol":"x","mtu":-5`, b.hostLocal())
		}),
	)

	It("GC calls the IPAM plugin", func() {
		c := b.call("one", newPod(), conf("1.1.0", in100, b.hostLocal()))
		nstest.Exec(GinkgoTB(), b.path+"/host-local", c.With("ADD")).OK(GinkgoTB())
		run(b.call("", nil, conf("1.1.0", in100+`,"cni.dev/valid-attachments":[]`, b.hostLocal())), "GC").OK(GinkgoTB())
		Expect(b.reservations()).To(BeEmpty())
	})

	DescribeTable("STATUS fails if an ADD would fail",
		func(keys, ipam, text string) {
			reply := run(b.call("", nil, conf("1.1.0", keys, ipam)), "STATUS")
			if text == "" {
				reply.OK(GinkgoTB())
			} else {
				reply.RequireFailure(GinkgoTB(), types.CodeNotAvailable, text)
			}
		},
		Entry("success", in100, static4, ""),
		Entry("success without IPAM", in100, noIPAM, ""),
		Entry("success with a master in the container, which STATUS does not look for", `"master":"net0","vlanId":1,"linkInContainer":true`, noIPAM, ""),
		Entry("success in a chain", inChain, noIPAM, ""),
		Entry("the master does not exist", `"master":"nope0","vlanId":1`, static4, "find link nope0"),
		Entry("the MTU is larger than the master's", in100+`,"mtu":9000`, static4, "invalid MTU 9000"),
		Entry("the configuration is invalid", `"master":"uplink0"`, static4, `"vlanId" is required`),
		Entry("STATUS of the IPAM plugin fails", in100, `{"type":"static","addresses":[{"address":"x"}]}`, `IPAM plugin "static"`),
	)
})
