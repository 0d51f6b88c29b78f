package masq_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
	"golang.org/x/sys/unix"
)

func TestMasq(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "pkg/masq")
}

func prefixes(texts ...string) []netip.Prefix {
	var ips []netip.Prefix
	for _, s := range texts {
		ips = append(ips, netip.MustParsePrefix(s))
	}
	return ips
}

// refChain is the chain of the reference plugins for network net1 and container cid1.
const refChain = "CNI-e8f6f419596f7f47b3468487"

// referenceIPTables returns the iptables rules of the reference plugins, for iptables-restore.
func referenceIPTables(interfaces ...string) string {
	const text = `-m comment --comment "name: \"net1\" id: \"cid1\""`
	var b strings.Builder
	fmt.Fprintf(&b, "*nat\n-N %s\n", refChain)
	for _, ip := range interfaces {
		p := netip.MustParsePrefix(ip)
		fmt.Fprintf(&b, "-A POSTROUTING -s %s %s -j %s\n", p.Addr(), text, refChain)
		fmt.Fprintf(&b, "-A %s -d %s %s -j ACCEPT\n-A %s ! -d 224.0.0.0/4 %s -j MASQUERADE\n", refChain, p.Masked(), text, refChain, text)
	}
	return b.String() + "COMMIT\n"
}

// referenceNFT contains the nftables rules of the reference plugins for net1/cid1/eth0,
// net1/cid2/eth0 and net2/cid1/eth0.
const referenceNFT = `
table inet cni_plugins_masquerade {
	comment "Masquerading for plugins from github.com/containernetworking/plugins"
	chain masq_checks {
		ip saddr 10.88.0.2 ip daddr != 10.88.0.0/16 masquerade comment "8e48f37d5de60467-0b65a318f52e521b, net: net1, if: eth0, id: cid1"
		ip6 saddr fd00:9::2 ip6 daddr != fd00:9::/64 masquerade comment "8e48f37d5de60467-0b65a318f52e521b, net: net1, if: eth0, id: cid1"
		ip saddr 10.88.0.3 ip daddr != 10.88.0.0/16 masquerade comment "8e48f37d5de60467-2222222222222222, net: net1, if: eth0, id: cid2"
		ip saddr 10.99.0.3 ip daddr != 10.99.0.0/16 masquerade comment "3333333333333333-0b65a318f52e521b, net: net2, if: eth0, id: cid1"
	}
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ip daddr 224.0.0.0/4 return
		ip6 daddr ff00::/8 return
		goto masq_checks
	}
}
`

var _ = Describe("masquerade", func() {
	var host *nstest.NS
	var m masq.Masq
	var u undo.Stack
	dual := prefixes("10.88.0.2/16", "fd00:9::2/64")

	BeforeEach(func() {
		host = nstest.NewHost(GinkgoTB())
		u = undo.Stack{}
		m = masq.Masq{HostNS: host.Open(GinkgoTB(), nil), Owner: types.Attachment{Network: "net1", ContainerID: "cid1", IfName: "eth0"}}
	})

	// ownedBy returns m for another attachment.
	ownedBy := func(network, id, ifName string) masq.Masq {
		o := m
		o.Owner = types.Attachment{Network: network, ContainerID: id, IfName: ifName}
		return o
	}
	ruleset := func() string {
		GinkgoHelper()
		return host.Must(GinkgoTB(), "nft", "list", "ruleset")
	}
	// saved returns the rules and the chains of the reference plugins in table nat.
	saved := func(program string) string {
		GinkgoHelper()
		var lines []string
		for line := range strings.Lines(host.Must(GinkgoTB(), program, "-t", "nat")) {
			if strings.HasPrefix(line, "-") || strings.HasPrefix(line, ":CNI") {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	load := func(program, rules string) {
		GinkgoHelper()
		args := []string{"--noflush"}
		if program == "nft" {
			args = []string{"-f", "-"}
		}
		_, err := host.ExecInput(rules, program, args...)
		Expect(err).NotTo(HaveOccurred())
	}

	Context("with nftables", func() {
		It("Status changes nothing, Add adds an element per address, and Del deletes them", func() {
			Expect(masq.Status(m.HostNS, "")).To(Succeed())
			Expect(ruleset()).To(BeEmpty())
			Expect(masq.Add(&u, m, dual)).To(Succeed())
			nstest.Golden(GinkgoTB(), "nftables", ruleset())
			Expect(masq.Check(m, dual)).To(Succeed())
			Expect(masq.Del(m, dual)).To(Succeed())
			nstest.Golden(GinkgoTB(), "nftables-cleaned", ruleset())
			Expect(masq.Check(m, dual)).To(MatchError(And(ContainSubstring("no element for the masquerade of 10.88.0.2"), ContainSubstring("no element for the masquerade of fd00:9::2"))))
			Expect(masq.Del(m, dual)).To(Succeed(), "nothing is left to delete")
			Expect(masq.Del(m, nil)).To(Succeed(), "nothing is left to delete")
		})

		It("Del deletes the chain if the Add was killed before it added the elements", func() {
			Expect(masq.Add(&u, m, dual)).To(Succeed())
			host.Must(GinkgoTB(), "nft", "flush map inet plumb masq4; flush map inet plumb masq6")
			Expect(masq.Del(m, nil)).To(Succeed())
			Expect(ruleset()).NotTo(ContainSubstring("masq/net1"))
		})

		It("Add creates the chain again that a concurrent Del deletes", func() {
			var wg sync.WaitGroup
			for i := range 4 {
				mine, ip := ownedBy("net1", fmt.Sprint("cid", i), "eth0"), prefixes(fmt.Sprintf("10.88.0.%d/16", 2+i))
				mine.HostNS = host.Open(GinkgoTB(), nil)
				wg.Go(func() {
					defer GinkgoRecover()
					for range nstest.FullOrShort(50, 10) {
						Expect(masq.Add(new(undo.Stack), mine, ip)).To(Succeed())
						Expect(masq.Check(mine, ip)).To(Succeed())
						Expect(masq.Del(mine, ip)).To(Succeed())
					}
				})
			}
			wg.Wait()
			Expect(ruleset()).NotTo(ContainSubstring("masq/net1"))
		})

		It("Add warns when it takes an address over, and Del, GC and the undo give it back", func() {
			var warnings []string
			first, second := ownedBy("net2", "cid0", "eth0"), ownedBy("net1", "cid1", "eth0")
			second.Warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
			Expect(masq.Add(&u, first, prefixes("10.88.0.2/24", "fd00:9::2/64"))).To(Succeed())
			u.Commit()
			before := ruleset()
			for _, end := range []func(){
				func() { Expect(masq.Del(second, dual)).To(Succeed()) },
				func() { Expect(masq.Del(second, nil)).To(Succeed()) },
				func() { Expect(u.Rollback()).To(Succeed()) },
				func() { Expect(masq.GC(m.HostNS, "net1", types.Set{})).To(Succeed()) },
			} {
				Expect(masq.Add(&u, second, dual)).To(Succeed())
				Expect(masq.Check(second, dual)).To(Succeed())
				Expect(masq.Check(first, prefixes("10.88.0.2/24"))).To(MatchError(ContainSubstring("10.88.0.2 belongs to net1/cid1/eth0 now")))
				end()
				Expect(masq.Check(first, prefixes("10.88.0.2/24", "fd00:9::2/64"))).To(Succeed())
				u.Commit()
			}
			Expect(warnings).To(HaveLen(8))
			Expect(warnings[0]).To(Equal("the masquerade of 10.88.0.2 was held by net2/cid0/eth0, and is taken over"))
			Expect(strings.Contains(before, "former")).To(BeFalse())
			Expect(masq.Del(first, nil)).To(Succeed())
			Expect(ruleset()).NotTo(ContainSubstring("elements"))
		})

		It("Add adds the rule that protects 127.0.0.0/8 after the ruleset was flushed", func() {
			host.Must(GinkgoTB(), "nft", "flush ruleset")
			Expect(masq.Add(&u, m, dual)).To(Succeed())
			Expect(ruleset()).To(ContainSubstring(`ip daddr 127.0.0.0/8 meta iifkind != "vrf" drop`))
		})

		It("GC deletes, in its network only, unused chains and elements of attachments that are not in the list", func() {
			stale, other := ownedBy("net1", "cid2", "eth0"), ownedBy("net10", "cid3", "eth0")
			Expect(masq.Add(&u, m, dual[:1])).To(Succeed())
			Expect(masq.Add(&u, stale, prefixes("10.88.0.3/16", "10.77.0.3/16"))).To(Succeed())
			Expect(masq.Add(&u, other, dual[1:])).To(Succeed())
			Expect(masq.GC(m.HostNS, "net1", types.Set{m.Owner: true})).To(Succeed())
			nstest.Golden(GinkgoTB(), "nftables-gc", ruleset())
			Expect(masq.GC(m.HostNS, "net1", types.Set{})).To(Succeed())
			Expect(masq.GC(m.HostNS, "net10", types.Set{})).To(Succeed())
			Expect(ruleset()).NotTo(Or(ContainSubstring("chain masq/"), ContainSubstring("elements")))
		})
	})

	Context("with rules of the reference plugins", func() {
		BeforeEach(func() {
			load("nft", referenceNFT)
			load("iptables-nft-restore", referenceIPTables("10.88.0.2/16"))
			load("iptables-legacy-restore", referenceIPTables("10.88.0.2/16"))
		})

		It("Check accepts the rules", func() {
			Expect(masq.Check(m, dual)).To(Succeed())
			host.Must(GinkgoTB(), "nft", "delete table inet cni_plugins_masquerade")
			Expect(masq.Check(m, dual[:1])).To(Succeed())
			host.Must(GinkgoTB(), "nft", "delete table ip nat")
			Expect(masq.Check(m, dual[:1])).To(Succeed())
			host.Must(GinkgoTB(), "iptables-legacy", "-t", "nat", "-F")
			Expect(masq.Check(m, dual[:1])).NotTo(Succeed())
		})

		DescribeTable("Del deletes the rules of the attachment only", func(ips []netip.Prefix) {
			Expect(masq.Del(m, ips)).To(Succeed())
			nstest.Golden(GinkgoTB(), "reference-cleaned", ruleset())
			Expect(saved("iptables-nft-save")).To(BeEmpty())
			Expect(saved("iptables-legacy-save")).To(BeEmpty())
		},
			Entry("found by the addresses", dual),
			Entry("found by the owner", nil),
		)

		It("GC deletes the rules of attachments that are not in the list", func() {
			keep := types.Set{{Network: "net1", ContainerID: "cid1", IfName: "eth0"}: true}
			Expect(masq.GC(m.HostNS, "net1", keep)).To(Succeed())
			Expect(masq.Check(m, dual)).To(Succeed())
			Expect(ruleset()).NotTo(ContainSubstring("cid2"))
			Expect(saved("iptables-nft-save")).To(ContainSubstring(refChain))
			Expect(saved("iptables-legacy-save")).To(ContainSubstring(refChain))
			Expect(masq.GC(m.HostNS, "net1", types.Set{})).To(Succeed())
			Expect(ruleset()).To(And(Not(ContainSubstring("net1")), ContainSubstring("net2")))
			Expect(saved("iptables-nft-save")).To(BeEmpty())
			Expect(saved("iptables-legacy-save")).To(BeEmpty())
		})
	})

	Context("with iptables", func() {
		BeforeEach(func() { m.Backend = iptables.BackendIPTables })

		It("Add uses the names and comments of the reference plugins, and adds each ACCEPT before MASQUERADE", func() {
			Expect(masq.Add(&u, m, append(prefixes("10.88.0.2/16", "10.77.0.2/16"), dual[1]))).To(Succeed())
			nstest.Golden(GinkgoTB(), "iptables", saved("iptables-save")+saved("ip6tables-save"))
			Expect(masq.Check(m, dual)).To(Succeed())
			Expect(masq.Del(m, nil)).To(Succeed())
			Expect(saved("iptables-save") + saved("ip6tables-save")).To(BeEmpty())
		})

		DescribeTable("two interfaces of a container share the chain", func(ips, otherIPs []netip.Prefix) {
			otherInterface := ownedBy("net1", "cid1", "eth1")
			Expect(masq.Add(&u, m, prefixes("10.88.0.2/16"))).To(Succeed())
			Expect(masq.Add(&u, otherInterface, prefixes("10.77.0.2/16"))).To(Succeed())
			nstest.Golden(GinkgoTB(), "iptables-shared", saved("iptables-save"))
			Expect(masq.Del(m, ips)).To(Succeed())
			nstest.Golden(GinkgoTB(), "iptables-other-interface", saved("iptables-save"))
			Expect(masq.Check(otherInterface, prefixes("10.77.0.2/16"))).To(Succeed())
			Expect(masq.Check(m, prefixes("10.88.0.2/16"))).NotTo(Succeed())
			Expect(masq.Del(otherInterface, otherIPs)).To(Succeed())
			Expect(saved("iptables-save")).To(BeEmpty())
		},
			Entry("found by the addresses", prefixes("10.88.0.2/16"), prefixes("10.77.0.2/16")),
			Entry("found by the owner", nil, nil),
		)

		DescribeTable("Check names the chain that lacks a rule, with iptables-nft and iptables-legacy", func(save, restore, missing string) {
			Expect(masq.Add(&u, m, dual)).To(Succeed())
			rules := host.Must(GinkgoTB(), "iptables-nft-save", "-t", "nat")
			host.Must(GinkgoTB(), "iptables-nft", "-t", "nat", "-F")
			host.Must(GinkgoTB(), "iptables-nft", "-t", "nat", "-X")
			load(restore, rules)
			Expect(masq.Check(m, dual)).To(Succeed())
			kept := slices.DeleteFunc(strings.SplitAfter(host.Must(GinkgoTB(), save, "-t", "nat"), "\n"), func(line string) bool { return strings.Contains(line, missing) })
			host.Must(GinkgoTB(), restore[:len(restore)-len("-restore")], "-t", "nat", "-F")
			load(restore, strings.Join(kept, ""))
			Expect(masq.Check(m, dual)).To(MatchError(And(ContainSubstring("for 10.88.0.2 is missing: chain CNI-"), Not(ContainSubstring("fd00:9::2")))))
		},
			Entry("ACCEPT", "iptables-nft-save", "iptables-nft-restore", "-j ACCEPT"),
			Entry("MASQUERADE", "iptables-nft-save", "iptables-nft-restore", "-j MASQUERADE"),
			Entry("the jump", "iptables-nft-save", "iptables-nft-restore", "-A POSTROUTING"),
			Entry("legacy tables, ACCEPT", "iptables-legacy-save", "iptables-legacy-restore", "-j ACCEPT"),
			Entry("legacy tables, MASQUERADE", "iptables-legacy-save", "iptables-legacy-restore", "-j MASQUERADE"),
		)

		It("Add adds a second interface of a container whose first one has rules of the reference plugins", func() {
			load("iptables-restore", referenceIPTables("10.88.0.2/16"))
			otherInterface := ownedBy("net1", "cid1", "eth1")
			Expect(masq.Add(&u, otherInterface, prefixes("10.77.0.2/16"))).To(Succeed())
			Expect(masq.Add(&u, otherInterface, prefixes("10.77.0.2/16"))).To(Succeed(), "repeated")
			Expect(masq.Del(otherInterface, nil)).To(Succeed())
			Expect(masq.Check(m, prefixes("10.88.0.2/16"))).NotTo(Succeed(), "a jump of the reference plugins does not name the interface")
		})

		DescribeTable("is the default on a host without nf_tables, and the backend nftables is an error there", func(refused error, steps ...string) {
			m.Backend = ""
			m.HostNS = host.Open(GinkgoTB(), &trace.Tracer{Before: func(step string) error {
				if slices.Contains(steps, step) {
					return refused
				}
				return nil
			}})
			Expect(masq.Add(&u, m, dual)).To(Succeed())
			Expect(saved("iptables-save")).To(ContainSubstring(refChain))
			Expect(masq.Status(m.HostNS, "")).To(Succeed())
			m.Backend = iptables.BackendNFTables
			Expect(types.AsError(masq.Add(&u, m, dual))).To(HaveField("Code", BeEquivalentTo(types.CodeConfig)))
			Expect(masq.Status(m.HostNS, iptables.BackendNFTables)).To(HaveField("Code", BeEquivalentTo(types.CodeNotAvailable)))
		},
			Entry("no nf_tables", nft.ErrUnavailable, "open nftables"),
			Entry("nf_tables without NAT in the family inet", unix.EOPNOTSUPP, "nft create table inet plumb", "nft propose table inet plumb"),
		)
	})

	DescribeTable("Check, Restore, Del and GC know the exceptions of Add, and attachments without them are unaffected", func(backend string) {
		m.Backend = backend
		state := func() string { return ruleset() + saved("iptables-save") + saved("ip6tables-save") }
		other := ownedBy("net1", "cid2", "eth0")
		Expect(masq.Add(&u, other, prefixes("10.88.0.3/16", "fd00:9::3/64"))).To(Succeed())
		before := state()
		m.Except = prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fd00::/8")
		Expect(masq.Add(&u, m, dual)).To(Succeed())
		Expect(masq.Check(m, dual)).To(Succeed())
		added := state()
		changed := m
		changed.Except, changed.OnlyFree = m.Except[:2], true
		Expect(masq.Check(changed, dual)).To(MatchError(ContainSubstring("masquerade of net1/cid1/eth0")))
		Expect(masq.Restore(&u, changed, dual)).To(Succeed())
		Expect(masq.Check(changed, dual)).To(Succeed())
		Expect(masq.Del(ownedBy("net1", "cid1", "eth0"), dual)).To(Succeed())
		Expect(masq.GC(m.HostNS, "net1", types.Set{m.Owner: true, other.Owner: true})).To(Succeed())
		Expect(state()).To(Equal(before))
		Expect(masq.Add(&u, m, dual)).To(Succeed())
		Expect(state()).To(Equal(added))
		Expect(masq.GC(m.HostNS, "net1", types.Set{other.Owner: true})).To(Succeed())
		Expect(state()).To(Equal(before))
	}, Entry(nil, iptables.BackendNFTables), Entry(nil, iptables.BackendIPTables))

	It("Add undoes what an iptables program has applied before it failed", func() {
		m.Backend = iptables.BackendIPTables
		Expect(masq.Add(&u, ownedBy("net1", "warm", "eth0"), prefixes("10.88.0.9/16"))).To(Succeed())
		before := saved("iptables-save")
		m.HostNS = host.Open(GinkgoTB(), &trace.Tracer{After: func(step string) error {
			if strings.HasPrefix(step, "iptables-restore: add ") {
				return errors.New("killed")
			}
			return nil
		}})
		u.Commit()
		Expect(masq.Add(&u, m, dual)).To(MatchError(ContainSubstring("killed")))
		Expect(saved("iptables-save")).NotTo(Equal(before))
		Expect(u.Rollback()).To(Succeed())
		Expect(saved("iptables-save")).To(Equal(before))
	})

	// To simulate a killed plugin, all later steps fail, and the undo does not run.
	DescribeTable("Del deletes everything that remains of an Add that was killed at any step", func(backend string, lost bool) {
		m.Backend = backend
		Expect(masq.Add(&u, ownedBy("net1", "warm", "eth0"), append(prefixes("10.88.0.9/16"), netip.MustParsePrefix("fd00:9::9/64")))).To(Succeed())
		state := func() string { return ruleset() + saved("iptables-save") + saved("ip6tables-save") }
		before := state()
		for k := 1; ; k++ {
			steps := 0
			fail := func(string) error {
				if steps++; steps >= k {
					return errors.New("killed")
				}
				return nil
			}
			killed := m
			killed.HostNS = host.Open(GinkgoTB(), &trace.Tracer{Before: fail})
			if lost {
				killed.HostNS = host.Open(GinkgoTB(), &trace.Tracer{After: fail})
			}
			err := masq.Add(new(undo.Stack), killed, dual)
			Expect(masq.Del(m, nil)).To(Succeed())
			Expect(state()).To(Equal(before), "killed at step %d", k)
			if err == nil {
				Expect(k).To(BeNumerically(">", 2))
				break
			}
			Expect(err).To(MatchError(ContainSubstring("killed")))
		}
	},
		Entry("nftables, before a step", iptables.BackendNFTables, false),
		Entry("nftables, after a step, so that its outcome is unknown", iptables.BackendNFTables, true),
		Entry("iptables, before a step", iptables.BackendIPTables, false),
		Entry("iptables, after a step, so that its outcome is unknown", iptables.BackendIPTables, true),
	)
})
