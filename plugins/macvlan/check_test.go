package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("CHECK", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		nstest.LeakCheck(GinkgoTB())
	})

	const odd = `{"type":"static","addresses":[{"address":"198.18.0.50/32"},{"address":"2001:db8:18::50/128"}],
		"routes":[{"dst":"198.18.0.2/32","scope":253},{"dst":"192.0.2.0/24","table":9,"scope":253},{"dst":"2001:db8:99::/64","table":9}]}`

	// attached calls ADD for a new container, and returns a call with its result as prevResult.
	attached := func(version, keys, ipam string) nstest.Call {
		GinkgoHelper()
		c := b.call("one", newPod(), conf(version, keys, ipam))
		c.Config = nstest.WithPrevResult(c.Config, run(c, "ADD").OK(GinkgoTB()).Stdout)
		return c
	}

	DescribeTable("passes after ADD",
		func(keys, ipam string, later ...string) {
			for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
				c := attached(version, keys, ipam)
				c.Pod.Batch(GinkgoTB(), later...)
				run(c, "CHECK").OK(GinkgoTB())
				run(c, "DEL").OK(GinkgoTB())
			}
		},
		Entry("dual stack", onUplink, staticDual),
		Entry("a master that was found by the default route", `"mode":"vepa"`, staticDual),
		Entry("layer 2", onUplink, noIPAM),
		Entry("/32, /128 and tables", onUplink, odd),
		Entry("after a later plugin changed MAC and MTU", onUplink+`,"mac":"02:00:00:00:00:01","mtu":1400`, staticDual,
			"link set eth0 address 02:00:00:00:00:99 mtu 1300"),
		Entry("with an additional address", onUplink, staticDual, "address add 192.0.2.9/24 dev eth0"),
	)

	It("passes if the default route of the node has another link now", func() {
		c := attached("1.0.0", "", staticDual)
		nstest.Join(GinkgoTB(), nstest.End{In: b.node, Name: "uplink1", Addrs: []string{"203.0.113.1/24"}}, nstest.End{In: b.outside, Name: "uplink1"})
		in(b.node, "ip route replace default via 203.0.113.2")
		run(c, "CHECK").OK(GinkgoTB())
	})

	DescribeTable("names every difference",
		func(change []string, texts ...string) {
			c := attached("1.0.0", onUplink, staticDual)
			c.Pod.Batch(GinkgoTB(), change...)
			f := run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeChanged), f.String())
			for _, text := range texts {
				Expect(f.Msg).To(ContainSubstring(text))
			}
		},
		Entry("no link", []string{"link del eth0"}, "find link eth0"),
		Entry("down", []string{"link set eth0 down"}, "eth0 is down"),
		Entry("another kind", []string{"link del eth0", "link add eth0 type veth peer name eth1"}, `of kind "veth", not "macvlan"`),
		Entry("another mode", []string{"link set eth0 type macvlan mode private"}, "eth0 has mode private, not bridge"),
		Entry("addresses gone", []string{"address del 198.18.0.50/24 dev eth0", "address del 2001:db8:18::50/64 dev eth0"},
			"no address 198.18.0.50/24", "no address 2001:db8:18::50/64"),
		Entry("another default gateway", []string{"route replace default via 198.18.0.3"}, "no route 0.0.0.0/0 via 198.18.0.2"),
		Entry("no IPv6 default route", []string{"route del default via 2001:db8:18::2"}, "no route ::/0 via 2001:db8:18::2"),
	)

	It("compares the master with the configured one", func() {
		c := attached("1.0.0", onUplink, staticDual)
		nstest.Join(GinkgoTB(), nstest.End{In: b.node, Name: "uplink1"}, nstest.End{In: b.outside, Name: "uplink1"})
		b.node.Batch(GinkgoTB(), "link set uplink0 name old0", "link set uplink1 name uplink0")
		f := run(c, "CHECK").Failure(GinkgoTB())
		Expect(f.Msg).To(ContainSubstring("not on master uplink0"))
		in(b.node, "ip link set uplink0 name new0")
		Expect(run(c, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring("master: find link uplink0"))
	})

	It("names an address that is a duplicate after an ADD with optimisticDAD", func() {
		c := b.call("one", newPodWithDAD(), conf("1.0.0", onUplink+`,"optimisticDAD":true`,
			`{"type":"static","addresses":[{"address":"`+nstest.OutsideV6+`/64"}]}`))
		c.Config = nstest.WithPrevResult(c.Config, run(c, "ADD").OK(GinkgoTB()).Stdout)
		Eventually(func() string { return run(c, "CHECK").Stdout }).Should(ContainSubstring("address " + nstest.OutsideV6 + "/64 of interface eth0: the address is in use on the segment"))
	})

	It("returns the error of the IPAM plugin", func() {
		c := attached("1.0.0", onUplink, b.hostLocal(hostLocal4))
		run(c, "CHECK").OK(GinkgoTB())
		other := b.call("one", c.Pod, conf("1.0.0", onUplink, b.hostLocal(hostLocal4)))
		Expect(nstest.Exec(GinkgoTB(), b.path+"/host-local", other.With("DEL")).Exit).To(BeZero())
		Expect(run(c, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring(`IPAM plugin "host-local"`))
	})

	It("fails without a prevResult that has the interface", func() {
		c := b.call("one", newPod(), conf("1.0.0", onUplink, static4))
		mustAdd(c)
		Expect(run(c, "CHECK").Failure(GinkgoTB()).Code).To(BeEquivalentTo(types.CodeConfig))
		c.Config = nstest.WithPrevResult(c.Config, `{"cniVersion":"1.0.0","interfaces":[{"name":"eth1","sandbox":"x"}],"ips":[{"address":"198.18.0.50/24"}]}`)
		Expect(run(c, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring(`prevResult has no interface "eth0"`))
	})
})
