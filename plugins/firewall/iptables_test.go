package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const byIPTables = `"backend":"iptables",`

// The specs change only rules, so that all can share a host.
var _ = Describe("the backend iptables", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newTestbed() })
	BeforeEach(func() { b.Host.Must(GinkgoTB(), "nft", "flush ruleset") })

	DescribeTable("adds the reference plugin's rules, and one marker for each address", func(name, keys string) {
		c := b.call(byIPTables+keys, 0)
		b.OK("ADD", c)
		nstest.Golden(GinkgoTB(), name, b.saved())
		By("a second ADD changes nothing")
		b.OK("ADD", c)
		nstest.Golden(GinkgoTB(), name, b.saved())
		before := nstest.Snapshot(GinkgoTB(), b.Host)
		b.OK("CHECK", c)
		Expect(nstest.Compare(before, nstest.Snapshot(GinkgoTB(), b.Host))).To(BeEmpty())
		By("DEL leaves only the shared chains and rules, with and without prevResult")
		b.OK("DEL", c)
		after := b.saved()
		nstest.Golden(GinkgoTB(), name+"-deleted", after)
		b.OK("ADD", c)
		c.Config = bare("")
		b.OK("DEL", c)
		Expect(b.saved()).To(Equal(after))
		b.OK("DEL", c)
	},
		Entry(nil, "open", ""),
		Entry("with a policy, which is in nftables", "open", key("ingressPolicy", isolated)+`"publishedPorts":true,`),
		Entry(nil, "admin", key("iptablesAdminChainName", "NOMAD-ADMIN")),
	)

	It("adds no rules for loopback addresses, which the plugin loopback returns", func() {
		c := b.call(byIPTables, 0)
		c.Config = strings.Replace(c.Config, `"ips":[`, `"ips":[{"address":"127.0.0.1/8"},{"address":"::1/128"},`, 1)
		b.OK("ADD", c)
		nstest.Golden(GinkgoTB(), "open", b.saved())
		b.OK("CHECK", c)
	})

	It("reports each missing rule in CHECK, and restores it in REPAIR", func() {
		c := b.call(byIPTables, 0)
		for _, broken := range []struct{ command, names string }{
			{"-D CNI-FORWARD -s 10.9.0.2 -j ACCEPT", "lacks what ADD adds: -A CNI-FORWARD -s 10.9.0.2/32 -j ACCEPT"},
			{"-D CNI-FORWARD -d 10.9.0.2 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "lacks what ADD adds: -A CNI-FORWARD -d 10.9.0.2/32"},
			{"-F CNI-FORWARD", "CNI-ADMIN"},
			{"-D FORWARD 1", "-j CNI-FORWARD"},
		} {
			b.OK("ADD", c)
			before := b.sorted()
			b.Host.Must(GinkgoTB(), "iptables", strings.Fields(broken.command)...)
			By(broken.command)
			b.Fails("CHECK", c, types.CodeChanged, broken.names)
			Expect(b.OK("REPAIR", c).Stderr).To(BeEmpty())
			Expect(b.sorted()).To(Equal(before))
			b.Host.Must(GinkgoTB(), "iptables", "-F")
		}
	})

	It("creates no table in CHECK", func() {
		b.Fails("CHECK", b.call(byIPTables, 0), types.CodeChanged, "has no chain CNI-FORWARD")
		Expect(b.Host.Must(GinkgoTB(), "nft", "list", "ruleset")).To(BeEmpty())
	})

	It("jumps to its chain after the reference plugin's rules of a policy", func() {
		b.addReferencePolicy("cni1", "")
		b.Host.MustLine(GinkgoTB(), "iptables -D FORWARD 2")
		c := b.call(byIPTables, 0)
		b.OK("ADD", c)
		Expect(b.saved()).To(MatchRegexp(`(?s)iptables -A FORWARD [^\n]* -j CNI-ISOLATION-STAGE-1\niptables -A FORWARD [^\n]* -j CNI-FORWARD\n`))
		b.OK("CHECK", c)
	})

	It("finds its rules by network, container and interface", func() {
		c, other := b.call(byIPTables, 0), b.call(byIPTables, 1)
		otherInterface := c
		otherInterface.IfName = "eth1"
		otherInterface.Config = strings.ReplaceAll(c.Config, "10.9.0.2", "10.9.0.4")
		otherNetwork := other
		otherNetwork.Config = strings.ReplaceAll(strings.ReplaceAll(other.Config, "net1", "net10"), "10.9.0.3", "10.9.0.5")
		for _, c := range []nstest.Call{c, other, otherInterface, otherNetwork} {
			b.OK("ADD", c)
		}
		c.Config = bare("")
		b.OK("DEL", c)
		Expect(b.saved()).To(And(Not(ContainSubstring("10.9.0.2")), ContainSubstring("10.9.0.4"), ContainSubstring("10.9.0.3")))
		By("the rules of an address stay while another interface has the address")
		Expect(b.saved()).To(ContainSubstring("-A CNI-FORWARD -s fd00:1::2/128 -j ACCEPT"))
		By("GC keeps valid attachments and other networks")
		b.OK("GC", b.Call("", nil, kept("c1")))
		Expect(b.saved()).To(And(Not(ContainSubstring("10.9.0.4")), ContainSubstring("10.9.0.3"), ContainSubstring("10.9.0.5")))
		b.OK("GC", b.Call("", nil, kept()))
		Expect(b.saved()).To(And(Not(ContainSubstring("10.9.0.3")), ContainSubstring("10.9.0.5")))
	})

	It("replaces an attachment's rules if its address has changed", func() {
		c := b.call(byIPTables, 0)
		b.OK("ADD", c)
		c.Config = strings.ReplaceAll(c.Config, "10.9.0.2", "10.9.0.4")
		b.OK("ADD", c)
		Expect(b.saved()).To(And(Not(ContainSubstring("10.9.0.2")), ContainSubstring("10.9.0.4")))
	})

	It("runs no program in CHECK, DEL and GC, which keep other rules for the address", func() {
		others := []string{"-s 10.9.0.2 -p tcp", "-d 10.9.0.2 -m conntrack --ctstate NEW", "-d 10.9.0.2", "-d 10.9.0.2 -m conntrack --ctstate RELATED,ESTABLISHED -i cni0"}
		c, steps := b.call(byIPTables, 0).RecordSteps()
		for _, del := range []nstest.Call{c, b.Call("", nil, kept())} {
			b.Host.Must(GinkgoTB(), "nft", "flush ruleset")
			b.OK("ADD", c)
			for _, other := range others {
				b.Host.MustLine(GinkgoTB(), "iptables -A CNI-FORWARD "+other+" -j ACCEPT")
			}
			*steps = nil
			b.OK("CHECK", c)
			del.Before = c.Before
			command := "DEL"
			if del.Config != c.Config {
				command = "GC"
			}
			b.OK(command, del)
			Expect(*steps).NotTo(ContainElement(MatchRegexp("^ip6?tables")))
			Expect(strings.Count(b.saved(), "10.9.0.2")).To(Equal(len(others)), "%s", b.saved())
			Expect(b.saved()).NotTo(ContainSubstring("fd00:1::2"))
		}
	})

	DescribeTable("DEL and GC run no program for the rules of other programs", func(command, config string) {
		b.OK("ADD", b.call(key("backend", nftables)+key("ingressPolicy", sameBridge), 0))
		for _, family := range []string{"ip", "ip6"} {
			b.Host.Must(GinkgoTB(), "nft", fmt.Sprintf("table %s filter { chain CNI-FORWARD { accept comment \"other\"; }; }", family))
		}
		c, steps := b.call("", 0).RecordSteps()
		c.Config = config
		b.OK(command, c)
		Expect(*steps).NotTo(ContainElement(MatchRegexp("^ip6?tables")))
	},
		Entry(nil, "DEL", conf("", 0)),
		Entry(nil, "DEL", bare("")),
		Entry(nil, "GC", kept()),
	)

	DescribeTable("looks for the programs of both families before the first change", func(missing string, installed ...string) {
		bin := GinkgoT().TempDir()
		for _, name := range installed {
			Expect(os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\necho $0 >> "+bin+"/ran\n"), 0o755)).To(Succeed())
		}
		GinkgoT().Setenv("PATH", bin)
		replies := make(chan nstest.Reply)
		go func() {
			defer GinkgoRecover()
			defer close(replies)
			runtime.LockOSThread() // the thread ends with the goroutine, because only it may see the empty directories
			Expect(unix.Unshare(unix.CLONE_NEWNS)).To(Succeed())
			Expect(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")).To(Succeed())
			for _, dir := range []string{"/usr/sbin", "/usr/local/sbin"} {
				Expect(unix.Mount("none", dir, "tmpfs", 0, "")).To(Succeed())
			}
			replies <- b.Run("ADD", b.call(byIPTables, 0))
		}()
		failure := (<-replies).Failure(GinkgoTB())
		Expect(failure).To(And(HaveField("Code", BeEquivalentTo(types.CodeConfig)), HaveField("Details", BeEmpty())))
		Expect(failure.Msg).To(ContainSubstring("program " + missing + ": "))
		Expect(filepath.Join(bin, "ran")).NotTo(BeAnExistingFile())
	},
		Entry("no programs", "iptables-restore"),
		Entry("only the programs of IPv4", "ip6tables-restore", "iptables", "iptables-restore"),
	)
})
