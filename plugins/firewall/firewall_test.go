package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = It("the configuration may contain an unknown backend, of which ADD warns", func() {
	b := newTestbed()
	Expect(b.OK("ADD", b.call(key("backend", "ebpf"), 0)).Stderr).To(ContainSubstring(`backend "ebpf" must be`))
})

var _ = Describe("the policies in nftables", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })
	byNFT := key("backend", nftables)

	It("are set elements whose comments name the owner", func() {
		b.OK("ADD", b.call(byNFT+key("ingressPolicy", isolated)+`"publishedPorts":true,`, 0))
		b.OK("ADD", b.call(byNFT+key("ingressPolicy", sameBridge), 2))
		nstest.Golden(GinkgoTB(), "nftables", b.ruleset())
		By("a second ADD reads them once, and changes nothing")
		c, steps := b.call(byNFT+key("ingressPolicy", isolated)+`"publishedPorts":true,`, 0).RecordSteps()
		b.OK("ADD", c)
		Expect(strings.Count(strings.Join(*steps, "\n"), "nft list isolated_bridges ")).To(Equal(1))
		nstest.Golden(GinkgoTB(), "nftables", b.ruleset())
	})

	DescribeTable("lose an attachment's elements in DEL and GC", func(command string, config string) {
		for container := range 2 {
			b.OK("ADD", b.call(byNFT+key("ingressPolicy", isolated), container))
		}
		c := b.call("", 0)
		c.Config = config
		b.OK(command, c)
		Expect(b.elements()).To(And(Not(ContainSubstring("net1/c0")), ContainSubstring(`"veth1" comment "net1/c1/eth0"`), ContainSubstring(`"cni0" comment "net1/"`)))
		b.OK("CHECK", b.call(byNFT+key("ingressPolicy", isolated), 1))
		b.Host.Batch(GinkgoTB(), "link del veth0", "link del veth1")
		b.OK("GC", b.Call("", nil, kept()))
		Expect(b.elements()).To(BeEmpty())
	},
		Entry(nil, "DEL", conf("", 0)),
		Entry(nil, "DEL", bare("")),
		Entry(nil, "DEL", strings.Replace(conf("", 0), `{"name":"veth0"},`, `{"name":"other"},`, 1)),
		Entry(nil, "DEL", bare(`"ingressPolicy":"bogus",`)),
		Entry(nil, "GC", kept("c1")),
	)

	It("are not created for an empty policy, which means open for the reference plugin as well", func() {
		c := b.call(byNFT+key("ingressPolicy", ""), 0)
		b.OK("ADD", c)
		Expect(b.elements()).To(BeEmpty())
		b.OK("CHECK", c)
	})

	It("stay while another network's container is on the bridge", func() {
		c := b.call(byNFT+key("ingressPolicy", sameBridge), 1)
		c.Config = strings.Replace(c.Config, "net1", "net9", 1)
		b.OK("ADD", b.call(byNFT+key("ingressPolicy", sameBridge), 0))
		b.OK("ADD", c)
		b.Host.Batch(GinkgoTB(), "link del veth1")
		gc := b.Call("", nil, strings.Replace(kept(), "net1", "net9", 1))
		b.OK("GC", gc)
		b.OK("CHECK", b.call(byNFT+key("ingressPolicy", sameBridge), 0))
		b.Host.Batch(GinkgoTB(), "link del veth0")
		b.OK("GC", gc)
		Expect(b.elements()).To(BeEmpty())
	})

	It("are deleted after the bridge was deleted", func() {
		b.addReferencePolicy("cni1", "")
		b.OK("ADD", b.call(byNFT+key("ingressPolicy", sameBridge), 0))
		Expect(b.ruleset()).To(ContainSubstring(`"cni1" comment "` + policyPrefix))
		_, ok := types.ParseAttachment(policyPrefix)
		Expect(ok).To(BeFalse(), "plumb gc would delete the element, which belongs to no attachment")
		b.Host.Batch(GinkgoTB(), "link del cni0", "link del cni1")
		c := b.call("", 3)
		c.Config = bare("")
		b.OK("DEL", c)
		Expect(b.elements()).To(BeEmpty())
		b.OK("GC", b.Call("", nil, kept("c2")))
		Expect(b.saved()).NotTo(ContainSubstring("cni1"))
	})

	It("are compared by CHECK, and restored by REPAIR, which keeps what others added", func() {
		c := b.call(byNFT+key("ingressPolicy", isolated), 0)
		for _, broken := range []string{
			"flush set inet plumb isolated_bridges", "add element inet plumb same_bridge { cni0 . cni0 }", "add element inet plumb published { cni0 }",
			"flush chain inet plumb forward", "flush chain inet plumb isolation",
			"flush set bridge plumb isolated_ports", "flush chain bridge plumb forward", "flush ruleset",
		} {
			b.OK("ADD", c)
			before := b.sorted()
			b.OK("REPAIR", c)
			Expect(b.sorted()).To(Equal(before))
			b.Host.Must(GinkgoTB(), "nft", broken)
			Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Code).To(BeEquivalentTo(types.CodeChanged), broken)
			damaged := b.sorted()
			if strings.HasPrefix(broken, "add ") {
				b.Fails("REPAIR", c, types.CodeChanged, "but ingressPolicy is")
				Expect(b.sorted()).To(Equal(damaged), broken)
				continue
			}
			Expect(b.OK("REPAIR", c).Stderr).To(BeEmpty())
			Expect(b.sorted()).To(Equal(before), broken)
		}
	})

	It("get their element in same_bridge back in REPAIR, unless another ADD has set the policy isolated since", func() {
		older, newer := b.call(byNFT+key("ingressPolicy", sameBridge), 0), b.call(byNFT+key("ingressPolicy", isolated), 1)
		b.OK("ADD", older)
		before := b.sorted()
		b.Host.Must(GinkgoTB(), "nft", "flush set inet plumb same_bridge")
		b.OK("REPAIR", older)
		Expect(b.sorted()).To(Equal(before))
		b.OK("ADD", newer)
		before = b.sorted()
		b.Fails("REPAIR", older, types.CodeChanged, "lacks cni0")
		Expect(b.sorted()).To(Equal(before))
	})

	DescribeTable("that another ADD has set since are kept by REPAIR, also after a flush", func(first, second string) {
		older, newer := b.call(byNFT+key("ingressPolicy", first), 0), b.call(byNFT+key("ingressPolicy", second), 1)
		b.OK("ADD", older)
		b.OK("ADD", newer)
		b.Host.Must(GinkgoTB(), "nft", "flush ruleset")
		b.OK("REPAIR", newer)
		before := b.elements()
		_ = b.Run("REPAIR", older)
		b.OK("CHECK", newer)
		Expect(b.elements()).To(Equal(before))
	},
		Entry(nil, sameBridge, isolated),
		Entry(nil, isolated, sameBridge),
	)

	It("also apply to the host end of ptp", func() {
		b.serve()
		prev := `{"cniVersion":"1.1.0","interfaces":[{"name":"veth9"},{"name":"eth0","sandbox":"/container"}],"ips":[{"address":"10.8.0.2/32","interface":1}]}`
		container := nstest.New(GinkgoTB()).Named("routed")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "veth9", Addrs: []string{"10.8.0.1/24"}}, nstest.End{In: container, Name: "eth0", Addrs: []string{"10.8.0.2/24"}})
		container.Batch(GinkgoTB(), "route add default via 10.8.0.1")
		c := nstest.Call{ContainerID: "routed", Host: b.Host, Container: container, Config: confFor(byNFT+key("ingressPolicy", isolated), prev)}
		b.OK("ADD", c)
		b.OK("CHECK", c)
		b.OK("ADD", b.call(byNFT+key("ingressPolicy", sameBridge), 0))
		nstest.MustDial(GinkgoTB(), container, "10.9.2.2:80", "10.8.0.2")
		nstest.MustNotAnswer(GinkgoTB(), container, "10.9.0.2:80")
		By("until the host end is deleted")
		b.OK("GC", b.Call("", nil, kept()))
		Expect(b.elements()).To(ContainSubstring("veth9"))
		b.Host.Batch(GinkgoTB(), "link del veth9")
		b.OK("GC", b.Call("", nil, kept()))
		Expect(b.elements()).NotTo(ContainSubstring("veth9"))
	})

	DescribeTable("cannot be added to another program's table, which STATUS reports", func(keys, commands string) {
		b.Host.Must(GinkgoTB(), "nft", commands)
		before := b.Host.Must(GinkgoTB(), "nft", "list", "ruleset")
		b.Fails("STATUS", b.Call("", nil, bare(keys)), types.CodeNotAvailable, "differs from the table that plumb creates")
		Expect(b.Host.Must(GinkgoTB(), "nft", "list", "ruleset")).To(Equal(before))
		b.Fails("ADD", b.call(keys, 0), types.CodeConfig, "differs from the table that plumb creates")
	},
		Entry(nil, byNFT+key("ingressPolicy", sameBridge), "add table inet plumb; add chain inet plumb forward { type filter hook input priority 0; }"),
		Entry(nil, byNFT+key("ingressPolicy", sameBridge), "add table inet plumb; add map inet plumb isolated_bridges { type ipv4_addr : ipv4_addr; }"),
		Entry(nil, byNFT+key("ingressPolicy", isolated), "add table bridge plumb; add map bridge plumb isolated_ports { type ipv4_addr : ipv4_addr; }"),
		Entry(nil, byIPTables+key("ingressPolicy", isolated), "add table bridge plumb; add map bridge plumb isolated_ports { type ipv4_addr : ipv4_addr; }"),
	)

	DescribeTable("need nf_tables with every backend", func(backend string) {
		keys := key("backend", backend) + key("ingressPolicy", sameBridge)
		before := nstest.Snapshot(GinkgoTB(), b.Host)
		b.Fails("ADD", b.call(keys, 0).FailAt("open nftables", nft.ErrUnavailable), types.CodeConfig, "omit ingressPolicy")
		Expect(nstest.Compare(before, nstest.Snapshot(GinkgoTB(), b.Host))).To(BeEmpty())
		b.Fails("ADD", b.call(keys, 0).FailAt("nft create table inet plumb", nft.ErrUnavailable), types.CodeConfig, "omit ingressPolicy")
		Expect(b.saved()).NotTo(ContainSubstring("10.9.0.2"))
		b.Fails("STATUS", b.Call("", nil, bare(keys)).FailAt("open nftables", nft.ErrUnavailable), types.CodeNotAvailable, "omit ingressPolicy")
		b.OK("DEL", b.call(keys, 0).FailAt("open nftables", nft.ErrUnavailable))
	}, Entry(nil, iptables), Entry(nil, ""))

	It("are tested by STATUS, which creates no table", func() {
		for _, policy := range []string{open, sameBridge, isolated} {
			c := b.Call("", nil, bare(byNFT+key("ingressPolicy", policy)))
			b.OK("STATUS", c)
		}
		Expect(b.Host.Must(GinkgoTB(), "nft", "list", "ruleset")).To(BeEmpty())
		b.Fails("STATUS", b.Call("", nil, bare(key("ingressPolicy", "x"))), types.CodeNotAvailable)
	})
})

// A refused call changes nothing, so that all calls can share a host.
var _ = Describe("an invalid configuration", Ordered, ContinueOnFailure, func() {
	var b *testbed
	var before string
	BeforeAll(func() {
		b = newTestbed()
		before = nstest.Snapshot(GinkgoTB(), b.Host)
	})

	DescribeTable("is refused before the first change", func(config string, code int, text string) {
		c := nstest.Call{Host: b.Host, Container: b.containers[0], Config: config}
		b.Fails("ADD", c, code, text)
		Expect(nstest.Compare(before, nstest.Snapshot(GinkgoTB(), b.Host))).To(BeEmpty())
		By("but not by DEL")
		b.OK("DEL", c)
	},
		Entry(nil, conf(key("ingressPolicy", "bogus"), 0), types.CodeConfig, `unknown ingress policy: "bogus"`),
		Entry(nil, conf(byIPTables+key("iptablesAdminChainName", "A -j ACCEPT"), 0), types.CodeConfig, "iptablesAdminChainName"),
		Entry(nil, conf(byIPTables+key("iptablesAdminChainName", "../../etc"), 0), types.CodeConfig, "iptablesAdminChainName"),
		Entry(nil, conf(key("iptablesAdminChainName", "CNI-FORWARD")+key("ingressPolicy", "x"), 0), types.CodeConfig, "unknown ingress policy"),
		Entry(nil, conf(key("firewalldZone", strings.Repeat("z", 31)), 0), types.CodeConfig, "firewalldZone"),
		Entry(nil, conf(`"strict":true,"backend":"ebpf",`, 0), types.CodeConfig, `backend "ebpf" must be`),
		Entry(nil, conf(`"strict":true,"ingresPolicy":"open",`, 0), types.CodeUnsupported, "ingresPolicy"),
		Entry(nil, bare(""), types.CodeConfig, "prevResult"),
		Entry(nil, strings.ReplaceAll(conf("", 0), "1.1.0", "0.3.1"), types.CodeVersion, "incompatible CNI versions"),
		Entry(nil, confFor(key("ingressPolicy", isolated), `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/container"}],"ips":[{"address":"10.9.0.2/24"}]}`),
			types.CodeConfig, `interface needs to be set for ingress policy "isolated"`),
	)
})
