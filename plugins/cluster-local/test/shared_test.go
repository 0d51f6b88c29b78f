package datastore

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// A bed is a store with the executable of its datastore.
type bed interface {
	newCaller(segment, node string, ranges ...string) caller
	// owners returns the node and claim of each owned address of a segment, with a space between them.
	owners(segment string) map[netip.Addr]string
	// configAt returns a configuration of the datastore with a proxy. The proxy calls f before it forwards the part of a call
	// with this number. The number of the first part is 1.
	configAt(part int, f func()) json.RawMessage
}

// owned returns the addresses that a node of the segment owns, with their claims.
func owned(b bed, segment, node string) map[netip.Addr]string {
	GinkgoHelper()
	all := b.owners(segment)
	for a, owner := range all {
		claim, is := strings.CutPrefix(owner, node+" ")
		if all[a] = claim; !is {
			delete(all, a)
		}
	}
	return all
}

// describeVerbs describes what each verb does with every store.
func describeVerbs(c func() bed) {
	It("distinguishes IPv4 and IPv6 addresses with the same first digits", func() {
		n1 := c().newCaller("families", "n1", "32.1.13.0-32.1.13.255")
		n1.succeed(datastore.Register)
		n1.succeed(datastore.Claim, requested("2001:db0::1", "2001:dff::2"))
		Expect(n1.succeed(datastore.Status).Free).To(BeEquivalentTo(256))
	})

	It("claims either all requested addresses or none, and names the owner", func() {
		n1, n2 := c().newCaller("requested", "n1"), c().newCaller("requested", "n2")
		n1.succeed(datastore.Register)
		n2.succeed(datastore.Register)
		Expect(n1.succeed(datastore.Claim, requested("10.7.0.5", "fd00::5")).Addresses).To(HaveLen(2))
		requireError(n1.clients, n2.request(datastore.Claim, requested("10.7.0.6", "10.7.0.5")), types.CodeTryAgain, datastore.ReasonTaken,
			"10.7.0.5 belongs to node n1 since 20")
		Expect(n2.succeed(datastore.Claim, requested("10.7.0.6")).Addresses).To(HaveLen(1))
		requireError(n1.clients, n1.request(datastore.Claim, requested("10.7.0.5")), types.CodeTryAgain, datastore.ReasonOwn, "register")
	})

	It("registers with new claims, with which a late release does nothing", func() {
		n1 := c().newCaller("registers", "n1", "10.7.0.1-10.7.0.100")
		n1.succeed(datastore.Register)
		before := n1.succeed(datastore.Claim, want(30))
		after := n1.succeed(datastore.Register)
		Expect(addrs(after)).To(Equal(addrs(before)))
		for a, claim := range before.Addresses {
			Expect(after.Addresses[a]).NotTo(Or(Equal(claim), BeEmpty()))
		}
		Expect(n1.succeed(datastore.Release, addresses(before.Addresses)).Addresses).To(BeEmpty())
		Expect(n1.succeed(datastore.Release, addresses(after.Addresses)).Addresses).To(HaveLen(30))
	})

	It("requires a register from a new node and after a boot", func() {
		n1 := c().newCaller("boots", "n1", "10.7.0.1-10.7.0.100")
		requireError(n1.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonUnregistered, "register")
		n1.succeed(datastore.Register)
		a := n1.succeed(datastore.Claim, want(3))
		requireError(n1.clients, n1.request(datastore.Claim, want(1), boot("boot2")), types.CodeTryAgain, datastore.ReasonBoot, "boot1", "register")
		Expect(addrs(n1.succeed(datastore.Register, boot("boot2")))).To(Equal(addrs(a)))
		requireError(n1.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonBoot, "boot2")
		n1.succeed(datastore.Claim, want(1), boot("boot2"))
		requireError(n1.clients, n1.request(datastore.Release, addresses(a.Addresses)), types.CodeTryAgain, datastore.ReasonBoot, "boot2")
		requireError(n1.clients, n1.request(datastore.Register, registered), types.CodeTryAgain, datastore.ReasonBoot, "boot2", "second machine")
		n1.succeed(datastore.Register, registered, boot("boot2"))
		n1.succeed(datastore.Freeze)
		requireError(n1.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonFrozen)
		requireError(n1.clients, n1.request(datastore.Register, registered), types.CodeTryAgain, datastore.ReasonFrozen)
	})

	It("rejects a second machine with the name of a node, and names both", func() {
		n1 := c().newCaller("clones", "n1", "10.7.0.1-10.7.0.100")
		n1.succeed(datastore.Register)
		for _, verb := range []string{datastore.Register, datastore.Resync} {
			requireError(n1.clients, n1.request(verb, machine("uuid-2")), types.CodeConfig, datastore.ReasonMachine, "machine-of-n1", "uuid-2")
		}
		requireError(n1.clients, n1.request(datastore.Claim, want(1), machine("uuid-2")), types.CodeConfig, datastore.ReasonMachine, "machine-of-n1", "uuid-2")
	})

	It("removes a node, which then owns nothing", func() {
		n1, n2 := c().newCaller("removes", "n1", "10.7.0.1-10.7.0.40"), c().newCaller("removes", "n2", "10.7.0.1-10.7.0.40")
		n1.succeed(datastore.Register)
		n2.succeed(datastore.Register)
		a := n1.succeed(datastore.Claim, want(40))
		requireError(n1.clients, n2.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonFull)
		gone := n2.succeed(datastore.RemoveNode, removed("n1"))
		Expect(addrs(gone)).To(Equal(addrs(a)))
		Expect(gone.Free).To(BeEquivalentTo(40))
		requireError(n1.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonUnregistered, "removed")
		other := n2.succeed(datastore.Claim, want(8))
		Expect(n1.succeed(datastore.Release, addresses(a.Addresses)).Addresses).To(BeEmpty())
		Expect(n1.succeed(datastore.Register).Addresses).To(BeEmpty())
		Expect(n2.succeed(datastore.List).Owners).To(HaveLen(len(other.Addresses)))
	})

	It("lists nodes and owners without claims", func() {
		n1, n2 := c().newCaller("lists", "n1"), c().newCaller("lists", "n2")
		n1.succeed(datastore.Register)
		n2.succeed(datastore.Register)
		n1.succeed(datastore.Claim, requested("10.7.0.5", "fd00::5"))
		n2.succeed(datastore.Claim, requested("10.7.0.6"))
		all := n1.succeed(datastore.List)
		Expect(all.Nodes).To(And(HaveLen(2), HaveKeyWithValue("n2", And(HaveField("Machine", "machine-of-n2"), HaveField("Boot", "boot1"), HaveField("LastCall", HavePrefix("20"))))))
		Expect(all.Owners).To(And(HaveLen(3), HaveKeyWithValue(netip.MustParseAddr("fd00::5"), And(HaveField("Node", "n1"), HaveField("Since", HavePrefix("20"))))))
		some := n1.succeed(datastore.List, target("n2"))
		Expect(some.Nodes).To(And(HaveLen(1), HaveKey("n2")))
		Expect(some.Owners).To(And(HaveLen(1), HaveKey(netip.MustParseAddr("10.7.0.6"))))
		n2.base.Segment = "other"
		Expect(n2.succeed(datastore.List)).To(And(HaveField("Nodes", BeEmpty()), HaveField("Owners", BeEmpty())))
	})

	It("rejects claims while the segment is frozen, and accepts releases", func() {
		n1 := c().newCaller("freezes", "n1", "10.7.0.1-10.7.0.40")
		n1.succeed(datastore.Register)
		a := n1.succeed(datastore.Claim, want(2))
		Expect(n1.succeed(datastore.Freeze).Frozen).To(MatchRegexp(`^20.*Z by n1$`))
		Expect(n1.succeed(datastore.Status).Frozen).NotTo(BeEmpty())
		requireError(n1.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonFrozen, "resync", "thaw")
		requireError(n1.clients, n1.request(datastore.Claim, requested("10.7.0.60")), types.CodeTryAgain, datastore.ReasonFrozen)
		requireError(n1.clients, n1.request(datastore.Register), types.CodeTryAgain, datastore.ReasonFrozen)
		Expect(n1.succeed(datastore.Release, addresses(a.Addresses)).Addresses).To(HaveLen(2))
		Expect(n1.succeed(datastore.Thaw).Frozen).To(BeEmpty())
		n1.succeed(datastore.Claim, want(1))
	})

	It("assigns an address to only one of many concurrent callers", func() {
		const nodes, pool = 12, 30
		taken := make(chan netip.Addr, nodes*pool)
		Expect(inParallel(nodes, func(i int) error {
			n := c().newCaller("parallel", string(rune('a'+i)), "10.7.0.1-10.7.0.30")
			n.succeed(datastore.Register)
			for {
				a := call(n.clients, n.request(datastore.Claim, want(3)))
				if a.Error != nil {
					Expect(a.Error.Reason).To(Equal(datastore.ReasonFull), a.Error.Msg)
					return nil
				}
				for addr := range a.Addresses {
					taken <- addr
				}
			}
		})).To(Succeed())
		close(taken)
		owners := map[netip.Addr]int{}
		for a := range taken {
			owners[a]++
		}
		Expect(owners).To(HaveLen(pool))
		Expect(owners).To(HaveEach(1))
	})
}

// While a call for a machine runs, another machine replaces the first one. The test does this in turn before each
// part that the call sends.
func describeReplacement(c func() bed) {
	DescribeTable("keeps the promises to the successor if a part is late", func(late string, change func(first map[netip.Addr]string) func(*datastore.Request)) {
		for at, reached := 1, true; reached; at++ {
			old := c().newCaller(fmt.Sprint(late, at), "n1", "10.7.0.1-10.7.0.99")
			next := old
			next.base.Machine = "successor-of-n1"
			old.succeed(datastore.Register)
			first := old.succeed(datastore.Claim, want(70)).Addresses
			told := map[netip.Addr]string{}
			var mu sync.Mutex
			over := false // the client may send a last part after the call has ended
			reached = false
			succeed := func() { // the datastore rejects the successor until its predecessor has been removed
				mu.Lock()
				defer mu.Unlock()
				if over {
					return
				}
				reached = true
				if late != datastore.RemoveNode {
					old.succeed(datastore.RemoveNode, removed("n1"))
				}
				if a := call(old.clients, next.request(datastore.Register)); a.Error == nil {
					maps.Copy(told, a.Addresses)
					maps.Copy(told, next.succeed(datastore.Claim, want(3)).Addresses)
				}
			}
			request := old.request(late, change(first))
			request.Datastore = c().configAt(at, succeed)
			call(old.clients, request)
			mu.Lock()
			over = true
			mu.Unlock()
			if reached {
				Expect(owned(c(), old.base.Segment, "n1")).To(Equal(told), "after the late part %d of %s", at, late)
			}
		}
	},
		Entry("of remove-node", datastore.RemoveNode, func(map[netip.Addr]string) func(*datastore.Request) { return removed("n1") }),
		Entry("of the last claim", datastore.Claim, func(map[netip.Addr]string) func(*datastore.Request) { return want(20) }),
		Entry("of the last register", datastore.Register, func(map[netip.Addr]string) func(*datastore.Request) { return want(0) }),
		Entry("of the last release", datastore.Release, addresses),
	)
}

var _ = Describe("cluster-local-etcd, when a machine is replaced", Ordered, ContinueOnFailure, func() {
	var c *cluster
	BeforeAll(func() { c = newCluster(1) })
	describeReplacement(func() bed { return c })
})
