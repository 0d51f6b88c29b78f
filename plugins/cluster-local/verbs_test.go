package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("ADD", func() {
	var n *testNode
	BeforeEach(func() { n = newNode(newCluster(GinkgoTB()), "n1") })

	It("claims a small warm pool at first, and a larger one when the node runs more containers", func() {
		owned := 0
		for i := range 20 {
			before := owned
			n.add(fmt.Sprint("c", i), variant{})
			owned = len(n.state().Claims)
			switch claimed := owned - before; i {
			case 0: // a 64th of what is free
				Expect(n.cluster.calls()).To(Equal([]string{"register", "claim"}))
				Expect(claimed).To(Equal(3))
			case 3, 6: // as many as there are containers
				Expect(n.cluster.calls()).To(Equal([]string{"claim"}))
				Expect(claimed).To(Equal(i))
			case 12:
				Expect(n.cluster.calls()).To(Equal([]string{"claim"}))
				Expect(claimed).To(Equal(8))
			default:
				Expect(n.cluster.calls()).To(BeEmpty(), "ADD %d", i)
			}
			n.expectAgreement()
		}
	})

	It("claims a whole warm pool at first if many addresses are free", func() {
		n.add("c0", variant{IPAM: `"subnet": "10.1.0.0/20"`})
		Expect(n.state().Claims).To(HaveLen(8))
	})

	It("never allocates an address that another node owns", func() {
		n2 := n.peer("n2")
		small := variant{IPAM: `"subnet": "10.1.2.0/28"`}
		added := 0
		for i, failed := 0, 0; failed < 2; i++ {
			failed = 0
			for _, node := range []*testNode{n, n2} {
				if _, reply := node.tryAdd(fmt.Sprint("c", i), small); reply.Exit == 0 {
					added++
				} else {
					failed++
				}
			}
		}
		Expect(added).To(Equal(13))
		f := n.Fails("ADD", "more", small)
		Expect(f.Code).To(BeEquivalentTo(types.CodeTryAgain))
		Expect(f.Msg).To(Equal("no IP addresses available in range set: 10.1.2.1-10.1.2.14: fake-datastore: no address of segment net is free"))
		n.expectAgreement()
		n2.expectAgreement()
	})

	It("allocates the address that was released last after all others of the warm pool", func() {
		first := n.add("c1", variant{})
		n.del("c1", variant{})
		Expect(n.add("c2", variant{})).NotTo(Equal(first))
	})

	It("allocates from two families, with one claim each", func() {
		two := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`}
		Expect(n.add("c1", two)).To(MatchRegexp(`^10\.1\.2\.\d+ fd00::\d$`))
		Expect(n.cluster.calls()).To(Equal([]string{"register", "claim", "claim"}))
		Expect(n.Reserved()).To(HaveLen(2))
		n.expectAgreement()
	})

	It("reserves a requested address that the node owns, or claims only that address", func() {
		n.add("c1", variant{})
		n.cluster.calls()
		own := "10.1.2.3"
		Expect(n.add("c2", variant{Args: "IP=" + own})).To(Equal(own))
		Expect(n.cluster.calls()).To(BeEmpty())
		Expect(n.add("c3", variant{Args: "IP=10.1.2.99"})).To(Equal("10.1.2.99"))
		Expect(n.cluster.calls()).To(Equal([]string{"claim"}))
		Expect(n.state().Claims).To(HaveLen(4))
	})

	It("names the node that owns a requested address", func() {
		n.cluster.give("n7", "10.1.2.99")
		n.Run("ADD", "c1", variant{Args: "IP=10.1.2.99"}).RequireFailure(GinkgoTB(), types.CodeTryAgain,
			`10.1.2.99 belongs to node n7; delete the container that uses it there; if there is none, the address is in the warm pool of that node; add addresses that containers request to "onRequestOnly" on all nodes`)
		Expect(n.Reserved()).To(BeEmpty())
	})

	It("registers if the node owns a requested address and does not know it", func() {
		n.add("c1", variant{})
		n.cluster.give("n1", "10.1.2.99")
		n.cluster.calls()
		Expect(n.add("c2", variant{Args: "IP=10.1.2.99"})).To(Equal("10.1.2.99"))
		Expect(n.cluster.calls()).To(Equal([]string{"claim", "register"}))
		n.expectAgreement()
	})

	It("allocates an address of onRequestOnly on request only, and DEL returns it at once", func() {
		onRequestOnly := variant{IPAM: `"subnet": "10.1.2.0/28", "onRequestOnly": ["10.1.2.8/29"]`}
		asked := onRequestOnly
		asked.Args = "IP=10.1.2.9"
		Expect(n.add("db", asked)).To(Equal("10.1.2.9"))
		for i := range 6 {
			Expect(n.add(fmt.Sprint("c", i), onRequestOnly)).To(MatchRegexp(`^10\.1\.2\.[2-7]$`))
		}
		n.Fails("ADD", "more", onRequestOnly)
		n.del("db", onRequestOnly)
		Expect(n.cluster.owned("n1")).To(HaveLen(6))
		Expect(n.peer("n2").add("db", asked)).To(Equal("10.1.2.9"))
	})

	It("with sticky, allocates the address of the pod's last container while the node owns the address", func() {
		sticky := func(pod string) variant {
			return variant{IPAM: `"subnet": "10.1.2.0/24", "sticky": "pod"`, Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod}
		}
		first := n.add("c1", sticky("web-0"))
		n.del("c1", sticky("web-0"))
		Expect(n.add("c2", sticky("web-1"))).NotTo(Equal(first))
		n.cluster.calls()
		Expect(n.add("c3", sticky("web-0"))).To(Equal(first))
		Expect(n.cluster.calls()).To(BeEmpty())
		n.del("c3", sticky("web-0"))
		empty := sticky("web-1")
		empty.IPAM += `, "warmPool": 0`
		n.del("c2", empty) // which returns all free addresses
		Expect(n.peer("n2").add("other", variant{Args: "IP=" + first})).To(Equal(first))
		Expect(n.add("c4", sticky("web-0"))).NotTo(Equal(first))
		n.expectAgreement()
	})

	It("keeps an address of onRequestOnly while its cooldown lasts", func() {
		onRequestOnly := variant{IPAM: `"subnet": "10.1.2.0/28", "onRequestOnly": ["10.1.2.8/29"], "cooldown": 60`, Args: "IP=10.1.2.9"}
		n.add("db", onRequestOnly)
		n.del("db", onRequestOnly)
		Expect(n.cluster.owned("n1")).To(HaveKey(netip.MustParseAddr("10.1.2.9")))
		n.Clock += 2 * time.Minute
		other := onRequestOnly
		other.Args = "IP=10.1.2.10"
		n.add("other", other)
		n.del("other", other)
		Expect(n.cluster.owned("n1")).NotTo(HaveKey(netip.MustParseAddr("10.1.2.9")))
	})

	It("allocates different addresses to the networks of a segment", func() {
		lan := variant{IPAM: `"segment": "lan", "subnet": "10.1.2.0/28"`}
		other := lan
		other.Network = "other"
		for i := range 6 {
			n.add(fmt.Sprint("a", i), lan)
			n.add(fmt.Sprint("b", i), other)
		}
		segment := cluster{n.cluster.dir, "lan"}
		Expect(len(segment.owned("n1:net"))).To(BeNumerically(">=", 6))
		Expect(len(segment.owned("n1:other"))).To(BeNumerically(">=", 6))
	})

	It("registers once before it says that no address is free", func() {
		n.add("c1", variant{})
		for i := range 253 {
			n.cluster.give("n1", fmt.Sprint("10.1.2.", 2+i))
		}
		n.cluster.calls()
		for i := range 3 {
			n.add(fmt.Sprint("d", i), variant{})
		}
		Expect(n.cluster.calls()).To(Equal([]string{"claim", "register"}))
		n.expectAgreement()
		Expect(n.peer("n2").Fails("ADD", "c1", variant{}).Msg).To(ContainSubstring("no address of segment net is free"))
		Expect(n.cluster.calls()).To(Equal([]string{"register", "claim"}))
	})

	It("fails with a second data directory of a node, and names both", func() {
		n.add("c1", variant{})
		other := n.peer("n1")
		other.Run("ADD", "c2", variant{}).RequireFailure(GinkgoTB(), types.CodeConfig,
			"machine-of-n1:"+n.DataDir, "machine-of-n1:"+other.DataDir)
	})

	It("fails on a machine with the node name of another one, and names both", func() {
		n.add("c1", variant{})
		clone := n.peer("n1")
		Expect(os.WriteFile(clone.identity(), []byte("copy"), 0o600)).To(Succeed())
		clone.Run("ADD", "c2", variant{}).RequireFailure(GinkgoTB(), types.CodeConfig, "machine-of-n1", "copy")
	})
})

var _ = Describe("DEL", func() {
	var n *testNode
	BeforeEach(func() { n = newNode(newCluster(GinkgoTB()), "n1") })

	It("returns what exceeds the warm pool, until half of it is left", func() {
		for i := range 20 {
			n.add(fmt.Sprint("c", i), variant{})
		}
		n.cluster.calls()
		for i := range 20 {
			n.del(fmt.Sprint("c", i), variant{})
		}
		calls := n.cluster.calls()
		Expect(len(calls)).To(BeNumerically("<=", 5))
		Expect(calls).To(HaveEach("release"))
		Expect(len(n.state().Claims)).To(BeNumerically("<=", 8))
		n.expectAgreement()
		n.del("c0", variant{})
		Expect(n.cluster.calls()).To(BeEmpty())
	})

	It("returns the address at once if few are free", func() {
		for i := range 230 {
			n.cluster.give("n9", fmt.Sprint("10.1.2.", 24+i))
		}
		n.add("c1", variant{})
		Expect(n.state().Claims).To(HaveLen(1))
		n.add("c2", variant{})
		n.del("c1", variant{})
		n.del("c2", variant{})
		Expect(n.state().Claims).To(BeEmpty())
		n.expectAgreement()
	})

	It("does not fail because of the datastore, and the next session registers", func() {
		none := variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 0`}
		for _, does := range []string{"refuse unreachable", "die", "done, die", "done, unknown", "done, garbage", "later", "refuse frozen"} {
			n.add("c1", none)
			n.cluster.script("release", does)
			n.Clock += time.Minute
			n.del("c1", none)
			Expect(n.Reserved()).To(BeEmpty(), does)
			n.expectNoForeign()
			n.add("c2", none)
			n.cluster.applyLate()
			n.expectAgreement()
			n.Clock += time.Minute
			n.del("c2", none)
			n.expectAgreement()
		}
	})

	It("does not ask the datastore again for a while after a failure", func() {
		none := variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 0`}
		for _, id := range []string{"c1", "c2", "c3"} {
			n.add(id, none)
		}
		n.cluster.calls()
		n.cluster.script("release", "refuse unreachable")
		n.del("c1", none)
		n.del("c2", none)
		Expect(n.cluster.calls()).To(Equal([]string{"release"}))
		before := n.state().Calls
		Expect(before.Failed).To(BeEquivalentTo(1))
		n.Clock += time.Minute
		n.del("c3", none)
		Expect(n.state().Calls.Total).To(BeNumerically(">", before.Total))
		Expect(n.state().Calls.Failed).To(Equal(before.Failed))
		Expect(time.Unix(n.state().Calls.LastSuccess, 0)).To(BeTemporally("~", time.Now(), time.Hour))
		Expect(n.cluster.owned("n1")).To(BeEmpty())
		n.expectAgreement()
	})

	It("waits for a datastore that hangs only once, even if there are many DELs at the same time", func() {
		none := variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 0`}
		for i := range 6 {
			n.add(fmt.Sprint("c", i), none)
		}
		n.cluster.calls()
		n.cluster.script("release", "hang")
		n.cluster.script("register", "hang")
		n.timeout = 1
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				defer GinkgoRecover()
				nstest.Run(n.Plugin(), n.Call(fmt.Sprint("c", i), none).With("DEL")).OK(GinkgoTB())
			})
		}
		wg.Wait()
		Expect(len(n.cluster.calls())).To(BeNumerically("<=", 1))
		Expect(n.Reserved()).To(BeEmpty())
	})

	DescribeTable("returns what an earlier DEL failed to return", func(does, next string) {
		onRequestOnly := variant{IPAM: `"subnet": "10.1.2.0/28", "onRequestOnly": ["10.1.2.8/29"]`}
		asked := onRequestOnly
		asked.Args = "IP=10.1.2.9"
		n.add("db", asked)
		if does == "none" { // DEL was killed after it had removed the reservation
			Expect(os.Remove(n.Net("10.1.2.9"))).To(Succeed())
			clear(n.inUse)
		} else {
			n.cluster.script("release", does)
			n.del("db", onRequestOnly)
			n.Clock += time.Minute
		}
		if next == "ADD" {
			n.add("c1", onRequestOnly)
		} else {
			n.del("db", onRequestOnly)
		}
		Expect(n.peer("n2").add("db", asked)).To(Equal("10.1.2.9"))
		n.expectAgreement()
	},
		Entry("at the next DEL, which releases nothing", "refuse unreachable", "DEL"),
		Entry("at the next ADD that calls the datastore", "refuse unreachable", "ADD"),
		Entry("at the next DEL, if the datastore was killed", "die", "DEL"),
		Entry("at its repetition, if it was killed", "none", "DEL"),
	)

	It("works without a datastore, and with a configuration that ADD rejects", func() {
		n.add("c1", variant{})
		n.Run("DEL", "c1", variant{IPAM: `"subnet": "x", "warmPool": -1`}).OK(GinkgoTB())
		Expect(n.Reserved()).To(BeEmpty())
		n.Run("DEL", "c1", variant{IPAM: `"subnet": "x", "warmPool": "8"`}).OK(GinkgoTB())
	})
})

var _ = Describe("after a reboot", func() {
	It("the node registers with new claims, and a late release does nothing", func() {
		n := newNode(newCluster(GinkgoTB()), "n1")
		none := variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 0`}
		n.add("c1", none)
		n.cluster.script("release", "later")
		n.del("c1", none)
		n.Boot("boot-2")
		n.cluster.calls()
		n.add("c2", none)
		Expect(n.cluster.calls()[0]).To(Equal("register"))
		n.cluster.applyLate()
		n.expectNoForeign()
		n.peer("n2").add("c3", none)
		n.expectAgreement()
	})

	It("ADD returns code 11 until the datastore answers", func() {
		n := newNode(newCluster(GinkgoTB()), "n1")
		n.add("c1", variant{})
		n.Boot("boot-2")
		clear(n.inUse)
		n.cluster.script("register", "refuse unreachable")
		f := n.Fails("ADD", "c2", variant{})
		Expect(f.Code).To(BeEquivalentTo(types.CodeTryAgain))
		Expect(f.Msg).To(Equal("fake-datastore: refused: refuse unreachable; until it answers, the node does not know which addresses it owns, and allocates none of its warm pool"))
		n.add("c2", variant{})
		Expect(n.Reserved()).To(HaveLen(1))
		n.expectAgreement()
	})
})

var _ = Describe("a second machine with the identity and name of a node", func() {
	none := variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 0`}
	var n *testNode
	// asClone calls f on a second machine, which has other files at the same paths and another boot ID.
	asClone := func(boot string, f func()) {
		GinkgoHelper()
		aside := n.DataDir + ".aside"
		Expect(os.Rename(n.DataDir, aside)).To(Succeed())
		n.Boot(boot)
		f()
		Expect(os.RemoveAll(n.DataDir)).To(Succeed())
		Expect(os.Rename(aside, n.DataDir)).To(Succeed())
		n.Boot("boot-1-of-n1")
	}
	BeforeEach(func() { n = newNode(newCluster(GinkgoTB()), "n1") })

	DescribeTable("is noticed at the next call of the datastore, and from then on the node allocates nothing", func(boot string, next func() string) {
		n.add("c1", variant{})
		warmPool := n.state().Claims
		Expect(len(warmPool)).To(BeNumerically(">", 1))
		asClone(boot, func() { n.Run("ADD", "d1", variant{}).Result(GinkgoTB()) })
		Expect(next()).To(ContainSubstring("has been registered by another boot of machine machine-of-n1"))
		n.Run("ADD", "c3", none).RequireFailure(GinkgoTB(), types.CodeConfig,
			"node n1 of segment net", "a second machine has its identity and name", "restored from a backup")
		Expect(n.Fails("ADD", "c3", variant{Args: "IP=10.1.2.3"}).Code).To(BeEquivalentTo(types.CodeConfig))
		n.Run("STATUS", "", variant{}).RequireFailure(GinkgoTB(), types.CodeNotAvailable, "a second machine")
		n.del("c3", none)
		n.Boot("boot-2-of-n1")
		clear(n.inUse)
		Expect(n.Fails("ADD", "c3", none).Code).To(BeEquivalentTo(types.CodeConfig))

		Expect(n.resync()).To(BeZero())
		n.Run("STATUS", "", variant{}).OK(GinkgoTB())
		n.add("c3", none)
		n.expectAgreement()
	},
		Entry("an ADD", "boot-of-clone", func() string {
			for i := range 8 {
				if r := n.Run("ADD", fmt.Sprint("x", i), variant{}); r.Exit != 0 {
					return r.Failure(GinkgoTB()).Msg
				}
			}
			return ""
		}),
		Entry("an ADD, where both are containers of one host", "boot-1-of-n1", func() string {
			return n.Fails("ADD", "x", variant{IPAM: `"subnet": "10.1.3.0/24"`}).Msg
		}),
		Entry("a DEL that returns addresses", "boot-of-clone", func() string { return n.Run("DEL", "c1", none).Stderr }),
		Entry("a GC", "boot-of-clone", func() string { return n.gc("c1").Failure(GinkgoTB()).Msg }),
	)

	It("is not suspected after a restore from a backup, because frozen and behind come first", func() {
		n.add("c1", none)
		n.cluster.change(func(st *fakeState) {
			st.Nodes["n1"], st.Frozen = strings.Fields(st.Nodes["n1"])[0]+" earlier", "today by hand"
		})
		Expect(n.Fails("ADD", "c2", none).Code).To(BeEquivalentTo(types.CodeTryAgain))
		n.cluster.change(func(st *fakeState) { st.Frozen = "" })
		n.add("c2", none)
		n.expectAgreement()
	})
})

var _ = Describe("a datastore that fails during ADD", func() {
	DescribeTable("causes ADD to fail with code 11, and the next ADD succeeds and agrees with the datastore", func(verb, does, text string) {
		n := newNode(newCluster(GinkgoTB()), "n1")
		if verb == "claim" {
			n.add("c0", variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 1`})
		}
		n.cluster.script(verb, does)
		if strings.Contains(does, "hang") {
			n.timeout = 1
		}
		n.Run("ADD", "c1", variant{}).RequireFailure(GinkgoTB(), types.CodeTryAgain, text)
		n.timeout = 60
		n.expectNoForeign()
		n.add("c2", variant{})
		n.expectAgreement()
	},
		Entry("register: it dies", "register", "die", "exit status 3"),
		Entry("register: it dies afterwards", "register", "done, die", "exit status 3"),
		Entry("register: its outcome is unknown", "register", "done, unknown", "no confirmation"),
		Entry("claim: it dies", "claim", "die", "exit status 3"),
		Entry("claim: it dies afterwards", "claim", "done, die", "exit status 3"),
		Entry("claim: it hangs afterwards", "claim", "done, hang", "no answer within 3s, killed"),
		Entry("claim: its outcome is unknown", "claim", "done, unknown", "no confirmation"),
		Entry("claim: no JSON", "claim", "done, garbage", "decode answer"),
		Entry("claim: an address of another range", "claim", "done, foreign", "address 192.0.2.1 was not requested"),
		Entry("claim: unreachable", "claim", "refuse unreachable", "refused"),
		Entry("claim: space", "claim", "refuse space", "refused"),
	)
})

// prev50 adds a prevResult with the address 10.1.2.50.
var prev50 = variant{More: `"prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.50/24"}]}`}

var _ = Describe("REPAIR", func() {
	var n *testNode
	BeforeEach(func() {
		n = newNode(newCluster(GinkgoTB()), "n1")
		n.add("c1", variant{Args: "IP=10.1.2.50"})
		n.cluster.calls()
	})

	It("reserves an address of the node again, and asks no datastore", func() {
		Expect(os.Remove(n.Net("10.1.2.50"))).To(Succeed())
		n.Run("CHECK", "c1", prev50).RequireFailure(GinkgoTB(), types.CodeChanged, "no address is reserved for net/c1/eth0")
		n.Run("REPAIR", "c1", prev50).OK(GinkgoTB())
		n.Run("CHECK", "c1", prev50).OK(GinkgoTB())
		Expect(n.cluster.calls()).To(BeEmpty())
		n.del("c1", variant{})
		n.expectAgreement()
	})

	It("does not reserve an address that the node does not own any more", func() {
		Expect(os.Remove(n.Net("10.1.2.50"))).To(Succeed())
		n.gcWith(variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 0`}).OK(GinkgoTB())
		Expect(n.state().Claims).To(BeEmpty())
		n.Run("REPAIR", "c1", prev50).RequireFailure(GinkgoTB(), types.CodeChanged, "no address is reserved for net/c1/eth0")
		Expect(n.Reserved()).To(BeEmpty())
	})
})

var _ = Describe("a removed node", func() {
	var n *testNode
	BeforeEach(func() {
		n = newNode(newCluster(GinkgoTB()), "n1")
		n.add("c1", variant{Args: "IP=10.1.2.50"})
		n.cluster.change(func(st *fakeState) {
			clear(st.Nodes)
			clear(st.Owners)
		})
	})

	It("claims the addresses of its containers again", func() {
		n.add("c2", variant{})
		Expect(n.cluster.owned("n1")).To(HaveKey(netip.MustParseAddr("10.1.2.50")))
		n.Run("CHECK", "c1", prev50).OK(GinkgoTB())
		n.expectAgreement()
	})

	It("allocates addresses although another node owns the address of a container, which ADD, GC and CHECK report", func() {
		n.cluster.give("n9", "10.1.2.50")
		for _, id := range []string{"c2", "c3"} {
			n.add(id, variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 1`})
			Expect(n.stderr).To(ContainSubstring("warning: reservation %s of container c1: fake-datastore: 10.1.2.50 belongs to node n9; delete the container; if it does not exist, run plumb gc or remove the file", n.Net("10.1.2.50")))
		}
		n.gc("c1", "c2", "c3").RequireFailure(GinkgoTB(), types.CodeTryAgain, "of container c1: fake-datastore: 10.1.2.50 belongs to node n9")
		n.Run("CHECK", "c1", prev50).RequireFailure(GinkgoTB(), types.CodeChanged,
			"address 10.1.2.50 of net/c1/eth0 does not belong to node n1 in segment net")
		n.del("c1", variant{})
		n.gc("c2", "c3").OK(GinkgoTB())
		n.expectAgreement()
	})

	It("claims the address of a container as soon as the other node has been removed", func() {
		n.cluster.give("n9", "10.1.2.50")
		n.add("c2", variant{})
		n.cluster.change(func(st *fakeState) { delete(st.Owners, netip.MustParseAddr("10.1.2.50")) })
		n.add("c3", variant{Args: "IP=10.1.2.60"})
		n.expectAgreement()
	})

	It("passes CHECK until the datastore has told it what it owns", func() {
		n.cluster.script("register", "refuse unreachable")
		n.Fails("ADD", "c2", variant{Args: "IP=10.1.2.60"})
		Expect(n.state().Claims).To(BeEmpty())
		n.Run("CHECK", "c1", prev50).OK(GinkgoTB())
	})
})

var _ = Describe("a store that was restored from a backup", func() {
	var n, n2 *testNode
	BeforeEach(func() {
		n = newNode(newCluster(GinkgoTB()), "n1")
		n2 = n.peer("n2")
		n.add("c1", variant{Args: "IP=10.1.2.50"})
		n2.add("c1", variant{})
	})
	restore := func(revision int64) {
		n.cluster.change(func(st *fakeState) {
			clear(st.Nodes)
			clear(st.Owners)
			st.Revision = revision
		})
	}
	thaw := func() { n.cluster.change(func(st *fakeState) { st.Frozen = "" }) }

	It("receives the nodes' addresses when the nodes notice it, and assigns none until the segment is thawed", func() {
		restore(1)
		n.cluster.calls()
		n.Run("ADD", "c2", variant{}).RequireFailure(GinkgoTB(), types.CodeTryAgain, "has been frozen since")
		Expect(n.cluster.calls()).To(ContainElement("resync"))
		n.expectAgreement()
		n2.gc("c1").OK(GinkgoTB())
		n2.expectAgreement()
		thaw()
		n.add("c2", variant{})
		n.expectAgreement()
		n.Run("CHECK", "c1", prev50).OK(GinkgoTB())
	})

	It("is noticed by its ID, whatever its revision is", func() {
		restore(1000)
		n.cluster.change(func(st *fakeState) { st.Store = "another-store-than-before" })
		Expect(n.Fails("ADD", "c2", variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 0`, Args: "IP=10.1.2.99"}).Msg).To(ContainSubstring("has been frozen since"))
		n.expectAgreement()
		n2.gc("c1").OK(GinkgoTB())
		n2.expectAgreement()
		thaw()
		n.add("c2", variant{})
		n.expectAgreement()
	})

	It("receives the nodes' addresses from GC and from the command resync if the segment is frozen", func() {
		restore(1000)
		n.cluster.change(func(st *fakeState) { st.Frozen = "today by hand" })
		for _, node := range []*testNode{n, n2} {
			node.gc("c1").OK(GinkgoTB())
			node.expectAgreement()
		}
		n.cluster.calls()
		Expect(n.resync()).To(BeZero())
		Expect(n.cluster.calls()).To(ContainElement("resync"))
		Expect(n.resync("more")).To(Equal(1))
		thaw()
		n.add("c2", variant{})
		n2.add("c2", variant{})
	})

	It("causes an error that names the other node if both own an address", func() {
		restore(1000)
		n.cluster.change(func(st *fakeState) { st.Frozen = "today by hand" })
		n.cluster.give("n7", "10.1.2.50")
		n2.gc("c1").OK(GinkgoTB())
		n.gc("c1").RequireFailure(GinkgoTB(), types.CodeTryAgain, "address 10.1.2.50 of container c1 also belongs to node n7")
		thaw()
		n.add("c2", variant{})
		Expect(n.stderr).To(ContainSubstring("10.1.2.50 belongs to node n7"))
		n.del("c1", variant{})
		n.add("c3", variant{})
		n.expectAgreement()
	})
})

var _ = Describe("GC", func() {
	It("releases reservations of invalid attachments, registers, and returns the surplus", func() {
		n := newNode(newCluster(GinkgoTB()), "n1")
		for i := range 12 {
			n.add(fmt.Sprint("c", i), variant{})
		}
		n.cluster.give("n1", "10.1.2.200")
		n.cluster.calls()
		n.gc("c1").OK(GinkgoTB())
		Expect(n.cluster.calls()).To(Equal([]string{"register", "release"}))
		Expect(n.Reserved()).To(HaveLen(1))
		Expect(n.state().Claims).To(HaveLen(5))
		n.expectAgreement()
	})

	It("does nothing before the first ADD, and reports that the datastore does not answer", func() {
		n := newNode(newCluster(GinkgoTB()), "n1")
		n.gc().OK(GinkgoTB())
		Expect(n.cluster.calls()).To(BeEmpty())
		Expect(n.DataDir).NotTo(BeADirectory())
		n.add("c1", variant{})
		n.cluster.script("register", "refuse unreachable")
		n.gc().RequireFailure(GinkgoTB(), types.CodeTryAgain, "fake-datastore")
		Expect(n.Reserved()).To(BeEmpty())
	})
})

var _ = Describe("STATUS", func() {
	var n *testNode
	full := variant{IPAM: `"subnet": "10.1.2.0/28", "failStatusWhenFull": true`}
	BeforeEach(func() { n = newNode(newCluster(GinkgoTB()), "n1") })

	It("does not call the datastore, but looks for its executable", func() {
		n.Run("STATUS", "", variant{}).OK(GinkgoTB())
		n.add("c1", variant{})
		n.cluster.calls()
		n.Run("STATUS", "", variant{}).OK(GinkgoTB())
		Expect(n.cluster.calls()).To(BeEmpty())
		Expect(os.Remove(n.cluster.dir + "/fake-datastore")).To(Succeed())
		n.Run("STATUS", "", variant{}).RequireFailure(GinkgoTB(), types.CodeNotAvailable, `failed to find plugin "fake-datastore"`)
	})

	It("with failStatusWhenFull asks the datastore while no owned address is free", func() {
		n.Run("STATUS", "", full).OK(GinkgoTB())
		for i := range 13 {
			n.add(fmt.Sprint("c", i), full)
		}
		n.cluster.calls()
		n.Run("STATUS", "", full).RequireFailure(GinkgoTB(), types.CodeNotAvailable, "ipam.subnet: no address is free in segment net")
		Expect(n.cluster.calls()).To(Equal([]string{"status"}))
		n.Clock += time.Minute
		n.cluster.script("status", "refuse unreachable")
		Expect(n.Fails("STATUS", "", full).Code).To(BeEquivalentTo(types.CodeNotAvailable))
		n.del("c1", full)
	})

	It("with failStatusWhenFull uses an answer of the datastore for 30 seconds, until the boot or the ranges change", func() {
		for i := range 13 {
			n.add(fmt.Sprint("c", i), full)
		}
		n.cluster.calls()
		n.Fails("STATUS", "", full)
		n.Clock += 29 * time.Second
		Expect(n.Fails("STATUS", "", full).Msg).To(HaveSuffix("ipam.subnet: no address is free in segment net (29s ago)"))
		Expect(n.cluster.calls()).To(Equal([]string{"status"}))
		n.Clock += time.Second
		Expect(n.Fails("STATUS", "", full).Msg).NotTo(ContainSubstring("ago"))
		Expect(n.cluster.calls()).To(Equal([]string{"status"}))

		By("changing the ranges")
		larger := variant{IPAM: `"subnet": "10.1.2.0/27", "failStatusWhenFull": true`}
		for range 2 {
			n.Run("STATUS", "", larger).OK(GinkgoTB())
		}
		Expect(n.cluster.calls()).To(Equal([]string{"status"}))

		By("booting")
		n.Boot("boot-2")
		clear(n.inUse)
		n.Run("STATUS", "", larger).OK(GinkgoTB())
		Expect(n.cluster.calls()).To(Equal([]string{"status"}))

		By("damaging the file")
		Expect(os.WriteFile(filepath.Join(n.DataDir, ".plumb", ".status", "net"), []byte("{"), 0o600)).To(Succeed())
		n.Run("STATUS", "", larger).OK(GinkgoTB())
		Expect(n.cluster.calls()).To(Equal([]string{"status"}))
	})
})

var _ = Describe("the configuration", func() {
	DescribeTable("that exceeds the limits of a request causes STATUS to fail", func(ipam, text string) {
		n := newNode(newCluster(GinkgoTB()), "n1")
		n.Run("STATUS", "", variant{IPAM: ipam}).RequireFailure(GinkgoTB(), types.CodeNotAvailable, text)
	},
		Entry("a range larger than a /64", `"subnet": "fd00::/48"`, "ipam.subnet: fd00::1-fd00::ffff:ffff:ffff:ffff:ffff must be in one /64"),
		Entry("too many exclusions", `"subnet": "10.1.2.0/24", "exclude": ["10.1.2.2`+strings.Repeat(`", "10.1.2.3`, 98)+`"]`,
			"ipam.subnet: want at most 100 ranges and exclusions, got 101"),
	)

	DescribeTable("with an error causes ADD to fail with code 7", func(ipam string, texts ...string) {
		n := newNode(newCluster(GinkgoTB()), "n1")
		n.Keys = nil
		n.Run("ADD", "c1", variant{IPAM: ipam}).RequireFailure(GinkgoTB(), types.CodeConfig, texts...)
		Expect(n.DataDir).NotTo(BeADirectory())
	},
		Entry("no datastore", `"subnet": "10.1.2.0/24"`, "ipam.datastore is missing"),
		Entry("no type", `"subnet": "10.1.2.0/24", "datastore": {}`, `ipam.datastore.type "" must be the name of an executable`),
		Entry("a path as type", `"subnet": "10.1.2.0/24", "datastore": {"type": "../x"}`, `ipam.datastore.type "../x"`),
		Entry("all at once", `"subnet": "x", "warmPool": 1000, "segment": "a b", "node": "-", "onRequestOnly": ["y"], "datastore": {"type": "e", "timeout": 0}`,
			"ipam.subnet: ", "ipam.warmPool 1000", `ipam.segment "a b"`, `ipam.node "-`, `ipam.onRequestOnly[0]: "y"`, "ipam.datastore.timeout 0"),
		Entry("a datastore that is not an object", `"subnet": "10.1.2.0/24", "datastore": "etcd"`, "ipam.datastore: json"),
	)

	It("with a datastore that is not in CNI_PATH causes ADD to fail with code 7", func() {
		n := newNode(newCluster(GinkgoTB()), "n1")
		Expect(os.Remove(n.cluster.dir + "/fake-datastore")).To(Succeed())
		n.Run("ADD", "c1", variant{}).RequireFailure(GinkgoTB(), types.CodeConfig, "fake-datastore")
	})

	It("may change to another segment, where the node claims the addresses of its containers", func() {
		n := newNode(newCluster(GinkgoTB()), "n1")
		ip := n.add("c1", variant{})
		lan := cluster{n.cluster.dir, "lan"}
		changed := variant{IPAM: `"segment": "lan", "subnet": "10.1.2.0/24"`}
		n.add("c2", changed)
		Expect(lan.owned("n1:net")).To(HaveKey(netip.MustParseAddr(ip)))
		Expect(n.state().Claims).To(Equal(lan.owned("n1:net")))
	})
})
