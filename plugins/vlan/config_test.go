package main

import (
	"syscall"

	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// The specs of macvlan test what all plugins with a master share. The following specs run on kernels that do
// not support VLAN interfaces.

var _ = Describe("without a VLAN interface", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	DescribeTable("ADD rejects an invalid configuration",
		func(config, args string, code int, texts ...string) {
			c := b.NewCall(config)
			c.Args = args
			b.Refuse(c, code, texts...)
		},
		Entry("no master", conf("1.0.0", `"vlanId":100`, static4), "", types.CodeConfig, `master: "master" field is required`),
		Entry("no master, with a name of the interface", conf("1.0.0", `"vlanId":100,"ifName":"x"`, static4), "", types.CodeConfig, `master: "master" field is required`, `ifName: only allowed in a chain`),
		Entry("in a chain, a name that no interface can have", conf("1.0.0", inChain+`,"ifName":"a/b"`, noIPAM), "", types.CodeConfig, `ifName "a/b" is not an interface name`),
		Entry("in a chain, addresses", conf("1.0.0", inChain, static4), "", types.CodeConfig, `ipam: a VLAN interface in a chain gets no addresses; remove "ipam"`),
		Entry("in a chain, no prevResult", conf("1.0.0", inChain, noIPAM), "", types.CodeConfig, "ADD of vlan needs a prevResult"),
		Entry("in a chain, a prevResult without the interface", conf("1.0.0", inChain+`,"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth1","sandbox":"/x"}]}`, noIPAM), "",
			types.CodeConfig, "prevResult lacks the interface eth0 in the container"),
		Entry("no ID", conf("1.0.0", `"master":"uplink0"`, static4), "", types.CodeConfig, "vlanId is missing"),
		Entry("an ID below zero", conf("1.0.0", `"master":"uplink0","vlanId":-1`, static4), "", types.CodeConfig, "invalid VLAN ID -1 (must be between 0 and 4094)"),
		Entry("the reserved ID", conf("1.0.0", `"master":"uplink0","vlanId":4095`, static4), "", types.CodeConfig, "invalid VLAN ID 4095"),
		Entry("an unknown protocol", conf("1.0.0", in100+`,"protocol":"802.1x"`, static4), "", types.CodeConfig, `protocol "802.1x" must be 802.1Q or 802.1ad`),
		Entry("an MTU larger than the master's", conf("1.0.0", in100+`,"mtu":1501`, static4), "", types.CodeConfig, "invalid MTU 1501, must be [0, master MTU(1500)]"),
		Entry("a master that is not in the container", conf("1.0.0", in100+`,"linkInContainer":true`, static4), "", types.CodeConfig, "master: find link uplink0"),
		Entry("several problems, all of which the error names", conf("1.0.0", `"vlanId":5000,"mtu":-1,"mac":"y","protocol":"x"`, static4), "", types.CodeConfig,
			`master: "master" field is required`, "5000", "mtu -1", `"y"`, `"x"`),
		Entry("an unknown key with strict", conf("1.0.0", in100+`,"strict":true,"vlanID2":5`, static4), "", types.CodeUnsupported, "vlanID2: unknown key"),
	)

	It("ADD rejects an interface name that exists in the container, and reserves no address", func() {
		container := b.NewContainer()
		container.IP("link add eth0 type veth peer name eth1")
		b.Refuse(b.Call("one", container, conf("1.0.0", in100, b.HostLocal())), types.CodeConfig, `interface "eth0" already exists`)
	})

	It("ADD names a kernel or a master without support for VLANs in the error, and releases the addresses", func() {
		c := b.NewCall(conf("1.0.0", in100, b.HostLocal())).FailAt("add link eth0", syscall.EOPNOTSUPP)
		b.Refuse(c, types.CodeConfig, "the kernel does not support VLAN interfaces (CONFIG_VLAN_8021Q), or master uplink0 cannot carry them")
	})

	It("GC calls the IPAM plugin", func() { b.RequireGC(conf("1.1.0", in100+","+nstest.OnlyTwoValid, b.HostLocal())) })

	DescribeTable("STATUS reports whether an ADD would succeed:",
		func(keys, ipam, text string) { b.RequireStatus(conf("1.1.0", keys, ipam), text) },
		Entry("success", in100, static4, ""),
		Entry("success without IPAM", in100, noIPAM, ""),
		Entry("success with a master in the container, which STATUS does not check", `"master":"net0","vlanId":1,"linkInContainer":true`, noIPAM, ""),
		Entry("success in a chain", inChain, noIPAM, ""),
		Entry("the MTU is larger than the master's", in100+`,"mtu":9000`, static4, "invalid MTU 9000"),
	)
})
