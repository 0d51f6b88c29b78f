package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("beside the reference plugin", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
	})
	reference := func(c nstest.Call, command string) nstest.Reply {
		GinkgoHelper()
		c.Config = strings.ReplaceAll(c.Config, `"cniVersion":"1.1.0"`, `"cniVersion":"1.0.0"`)
		return nstest.ExecReference(GinkgoTB(), "firewall", c.With(command)).OK(GinkgoTB())
	}
	// withoutMarkers returns saved without the markers, which only plumb adds.
	withoutMarkers := func() string {
		GinkgoHelper()
		var lines []string
		for line := range strings.Lines(b.saved()) {
			if !strings.Contains(line, markerPrefix) {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}

	It("adds the same rules", func() {
		c := b.call(byIPTables, 0)
		reference(c, "ADD")
		added := b.saved()
		By("and takes over the reference plugin's rules")
		b.OK("CHECK", c)
		b.OK("ADD", c)
		Expect(withoutMarkers()).To(Equal(added))
		b.OK("DEL", c)
		Expect(b.saved()).NotTo(ContainSubstring("10.9.0.2"))
		b.OK("ADD", c)
		Expect(withoutMarkers()).To(Equal(added))
		By("the reference plugin checks and deletes plumb's rules")
		reference(c, "CHECK")
		reference(c, "DEL")
		Expect(withoutMarkers()).NotTo(ContainSubstring("10.9.0.2"))
		By("GC deletes the markers that stay")
		b.OK("GC", b.Call("", nil, kept()))
		Expect(b.saved()).NotTo(ContainSubstring("10.9.0.2"))
	})

	It("isolates its bridges from the reference plugin's", func() {
		b.serve()
		reference(b.call(byIPTables+key("ingressPolicy", sameBridge), 2), "ADD")
		expect(toContainer(b.containers[0], 2, true))
		b.OK("ADD", b.call(key("ingressPolicy", isolated), 0))
		expect(toContainer(b.containers[0], 2, false), toContainer(b.containers[2], 0, false), toContainer(b.containers[0], 3, true), toContainer(b.containers[3], 2, true))
		reference(b.call(byIPTables+key("ingressPolicy", sameBridge), 2), "CHECK")
	})

	DescribeTable("checks and deletes the reference plugin's rules with any backend", func(backend, policy string) {
		attached := b.call(byIPTables+key("ingressPolicy", policy), 0)
		reference(attached, "ADD")
		c := b.call(key("backend", backend)+key("ingressPolicy", policy), 0)
		b.OK("CHECK", c)
		before := b.sorted()
		b.OK("REPAIR", c)
		Expect(b.sorted()).To(Equal(before))
		for _, broken := range []string{"-F " + stage2, "-F " + stage1, "-D FORWARD 1", "-I FORWARD 1 -j " + forwardChain} {
			b.Host.MustLine(GinkgoTB(), "iptables "+broken)
			b.Fails("CHECK", c, types.CodeChanged, "lacks cni0")
			b.Host.MustLine(GinkgoTB(), "iptables -F")
			reference(attached, "ADD")
			b.OK("CHECK", c)
		}
		b.Fails("CHECK", b.call(key("backend", backend), 0), types.CodeChanged, `contain cni0, but ingressPolicy is "open"`)
		b.OK("DEL", c)
		Expect(b.saved()).NotTo(ContainSubstring("10.9.0.2"))
		By("the next ADD moves the policy to nftables")
		b.OK("ADD", c)
		Expect(b.saved()).NotTo(ContainSubstring("cni0"))
		b.OK("CHECK", c)
		reference(attached, "DEL")
	}, Entry("by default, nftables", "", sameBridge), Entry(nil, iptables, isolated))
})
