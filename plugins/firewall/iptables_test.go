package main

import (
	"net/netip"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

const byIPTables = `"backend":"iptables",`

var _ = Describe("the backend iptables", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	DescribeTable("has the rules of the reference plugin, and one marker for each address", func(name, keys string) {
		c := b.call(byIPTables+keys, 0)
		ok(c, "ADD")
		nstest.Golden(GinkgoTB(), name, b.saved())
		By("which a second ADD leaves as they are")
		ok(c, "ADD")
		nstest.Golden(GinkgoTB(), name, b.saved())
		before := nstest.Snapshot(GinkgoTB(), b.Host)
		ok(c, "CHECK")
		Expect(nstest.Compare(before, nstest.Snapshot(GinkgoTB(), b.Host))).To(BeEmpty())
		By("and of which DEL leaves what containers share, with and without prevResult")
		ok(c, "DEL")
		after := b.saved()
		nstest.Golden(GinkgoTB(), name+"-deleted", after)
		ok(c, "ADD")
		c.Config = bare("")
		ok(c, "DEL")
		Expect(b.saved()).To(Equal(after))
		ok(c, "DEL")
	},
		Entry(nil, "open", ""),
		Entry(nil, "same-bridge", key("ingressPolicy", sameBridge)),
		Entry(nil, "isolated", key("ingressPolicy", isolated)),
		Entry(nil, "published", key("ingressPolicy", isolated)+`"publishedPorts":true,`),
		Entry(nil, "admin", key("iptablesAdminChainName", "NOMAD-ADMIN")),
	)

	It("has no rules for the addresses of lo, which loopback returns", func() {
		c := b.call(byIPTables, 0)
		c.Config = strings.Replace(c.Config, `"ips":[`, `"ips":[{"address":"127.0.0.1/8"},{"address":"::1/128"},`, 1)
		ok(c, "ADD")
		nstest.Golden(GinkgoTB(), "open", b.saved())
		ok(c, "CHECK")
	})

	It("names what CHECK misses", func() {
		c := b.call(byIPTables+key("ingressPolicy", isolated), 0)
		for _, broken := range []struct{ command, names string }{
			{"-D CNI-FORWARD -s 10.9.0.2 -j ACCEPT", "has no rule -s 10.9.0.2/32 -j ACCEPT"},
			{"-D CNI-FORWARD -d 10.9.0.2 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "has no rule -d 10.9.0.2/32"},
			{"-F CNI-FORWARD", "CNI-ADMIN"},
			{"-D FORWARD 2", "-j CNI-FORWARD"},
			{"-D FORWARD 1", "does not jump to CNI-ISOLATION-STAGE-1"},
			{"-F CNI-ISOLATION-STAGE-1", "-i cni0 -o cni0"},
			{"-D CNI-ISOLATION-STAGE-2 1", "-o cni0"},
			{"-I FORWARD 1 -j CNI-FORWARD", "before the one that jumps to CNI-FORWARD"},
		} {
			ok(c, "ADD")
			b.Host.Must(GinkgoTB(), "iptables", strings.Fields(broken.command)...)
			failed := failure(c, "CHECK")
			Expect(failed.Code).To(BeEquivalentTo(types.CodeChanged), broken.command)
			Expect(failed.Msg).To(ContainSubstring(broken.names), broken.command)
			b.Host.Must(GinkgoTB(), "iptables", "-F")
		}
	})

	It("has elements for isolated, which CHECK misses", func() {
		c := b.call(byIPTables+key("ingressPolicy", isolated), 0)
		for _, broken := range []string{"flush set bridge plumb isolated_ports", "flush chain bridge plumb forward", "delete table bridge plumb"} {
			ok(c, "ADD")
			ok(c, "CHECK")
			b.Host.Must(GinkgoTB(), "nft", broken)
			failed := failure(c, "CHECK")
			Expect(failed.Code).To(BeEquivalentTo(types.CodeChanged), broken)
			Expect(failed.Msg).To(ContainSubstring("table bridge plumb"))
		}
		By("but not those of rules that the reference plugin made")
		b.Host.Must(GinkgoTB(), "iptables", "-D", forwardChain, "-s", "10.9.0.2/32", "-m", "comment", "--comment", "firewall: net1/c0/eth0")
		b.Host.Must(GinkgoTB(), "ip6tables", "-D", forwardChain, "-s", "fd00:1::2/128", "-m", "comment", "--comment", "firewall: net1/c0/eth0")
		ok(c, "CHECK")
	})

	It("makes no table to CHECK", func() {
		Expect(failure(b.call(byIPTables, 0), "CHECK").Msg).To(ContainSubstring("has no chain CNI-FORWARD"))
		Expect(b.Host.Must(GinkgoTB(), "nft", "list", "ruleset")).To(BeEmpty())
	})

	It("restores the jumps in their order", func() {
		c := b.call(byIPTables+key("ingressPolicy", sameBridge), 0)
		ok(c, "ADD")
		whole := b.saved()
		b.Host.Must(GinkgoTB(), "iptables", "-D", "FORWARD", "2")
		ok(c, "ADD")
		Expect(b.saved()).To(Equal(whole))
		b.Host.Must(GinkgoTB(), "iptables", "-D", "FORWARD", "1")
		ok(c, "ADD")
		Expect(b.saved()).To(Equal(whole))
	})

	It("moves the rules for published ports before a rule that the reference plugin has inserted", func() {
		c := b.call(byIPTables+key("ingressPolicy", isolated)+`"publishedPorts":true,`, 0)
		ok(c, "ADD")
		whole := b.saved()
		inserted := "-i cni1 ! -o cni1 -j " + stage2
		b.Host.Must(GinkgoTB(), "iptables", append([]string{"-I", stage1, "1"}, strings.Fields(inserted)...)...)
		ok(c, "CHECK")
		ok(c, "ADD")
		Expect(b.saved()).To(MatchRegexp(`(?s)--ctstate DNAT --ctdir ORIGINAL .*--ctstate DNAT --ctdir REPLY .*` + inserted))
		b.Host.Must(GinkgoTB(), "iptables", append([]string{"-D", stage1}, strings.Fields(inserted)...)...)
		Expect(b.saved()).To(Equal(whole))
	})

	It("knows its rules by network, container and interface", func() {
		c, other := b.call(byIPTables, 0), b.call(byIPTables, 1)
		sister := c
		sister.IfName = "eth1"
		sister.Config = strings.ReplaceAll(c.Config, "10.9.0.2", "10.9.0.4")
		foreign := other
		foreign.Config = strings.ReplaceAll(strings.ReplaceAll(other.Config, "net1", "net10"), "10.9.0.3", "10.9.0.5")
		for _, c := range []nstest.Call{c, other, sister, foreign} {
			ok(c, "ADD")
		}
		c.Config = bare("")
		ok(c, "DEL")
		Expect(b.saved()).To(And(Not(ContainSubstring("10.9.0.2")), ContainSubstring("10.9.0.4"), ContainSubstring("10.9.0.3")))
		By("the address that both interfaces have stays with the other one")
		Expect(b.saved()).To(ContainSubstring("-A CNI-FORWARD -s fd00:1::2/128 -j ACCEPT"))
		By("GC keeps what is listed, and other networks")
		ok(nstest.Call{Host: b.Host, Config: kept("c1")}, "GC")
		Expect(b.saved()).To(And(Not(ContainSubstring("10.9.0.4")), ContainSubstring("10.9.0.3"), ContainSubstring("10.9.0.5")))
		ok(nstest.Call{Host: b.Host, Config: kept()}, "GC")
		Expect(b.saved()).To(And(Not(ContainSubstring("10.9.0.3")), ContainSubstring("10.9.0.5")))
	})

	DescribeTable("works for a bridge with a quotation mark in its name, which iptables-save does not quote", func(name, policy string) {
		b.Host.Must(GinkgoTB(), "ip", "link", "set", "cni0", "down")
		b.Host.Must(GinkgoTB(), "ip", "link", "set", "cni0", "name", name, "up")
		c, other := b.call(byIPTables+key("ingressPolicy", policy)+`"publishedPorts":true,`, 0), b.call(byIPTables+key("ingressPolicy", policy), 2)
		c.Config = strings.ReplaceAll(c.Config, `"cni0"`, strconv.Quote(name))
		ok(other, "ADD")
		before := b.saved()
		ok(c, "ADD")
		whole := b.saved()
		ok(c, "ADD")
		Expect(b.saved()).To(Equal(whole))
		ok(c, "CHECK")
		ok(other, "CHECK")
		ok(c, "DEL")
		b.Host.Must(GinkgoTB(), "ip", "link", "delete", name)
		ok(nstest.Call{Host: b.Host, Config: kept()}, "GC")
		Expect(b.saved()).To(Equal(before))
	},
		Entry(nil, `cni"0`, sameBridge),
		Entry(nil, `"cni0`, isolated),
		Entry(nil, `"cni0\"`, isolated),
		Entry(nil, `cni'0`, isolated),
	)

	It("replaces the rules of an attachment that has another address now", func() {
		c := b.call(byIPTables, 0)
		ok(c, "ADD")
		c.Config = strings.ReplaceAll(c.Config, "10.9.0.2", "10.9.0.4")
		ok(c, "ADD")
		Expect(b.saved()).To(And(Not(ContainSubstring("10.9.0.2")), ContainSubstring("10.9.0.4")))
	})

	It("deletes what is in tables of iptables-legacy", func() {
		c := b.call(byIPTables, 0)
		b.Host.Must(GinkgoTB(), "iptables-legacy", "-N", forwardChain)
		for _, line := range accepts(netip.MustParseAddr("10.9.0.2")) {
			b.Host.Must(GinkgoTB(), "iptables-legacy", strings.Fields(line)...)
		}
		ok(c, "DEL")
		Expect(b.saved("-legacy")).NotTo(ContainSubstring("10.9.0.2"))
	})
})
