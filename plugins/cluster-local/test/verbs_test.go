package datastore

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// dump returns all keys of a segment with their values.
func (c *cluster) dump(segment string) map[string]string {
	GinkgoHelper()
	client := c.connect("root", c.members...)
	defer func() { _ = client.Close() }()
	return dumpFrom(client, segment)
}

// dumpFrom is dump with a client.
func dumpFrom(client *clientv3.Client, segment string) map[string]string {
	GinkgoHelper()
	all := map[string]string{}
	Expect(do(func(ctx context.Context) error {
		prefix := "/plumb/v1/" + segment + "/"
		resp, err := client.Get(ctx, prefix, clientv3.WithPrefix())
		if err == nil {
			for _, kv := range resp.Kvs {
				all[string(kv.Key[len(prefix):])] = string(kv.Value)
			}
		}
		return err
	})).To(Succeed())
	return all
}

// own assigns n IPv4 addresses, beginning with first, to a node.
func (c *cluster) own(segment, node string, first netip.Addr, n int) {
	GinkgoHelper()
	client := c.connect("root", c.members...)
	defer func() { _ = client.Close() }()
	var ops []clientv3.Op
	for a := first; n > 0; a, n = a.Next(), n-1 {
		ops = append(ops, clientv3.OpPut(fmt.Sprintf("/plumb/v1/%s/a/4/%x", segment, a.AsSlice()), node+" claim"))
		if len(ops) < 100 && n > 1 {
			continue
		}
		Expect(do(func(ctx context.Context) error {
			_, err := client.Txn(ctx).Then(ops...).Commit()
			return err
		})).To(Succeed())
		ops = nil
	}
}

// addrs returns the sorted addresses of an answer.
func addrs(answer datastore.Answer) []netip.Addr {
	return slices.SortedFunc(maps.Keys(answer.Addresses), netip.Addr.Compare)
}

var _ = Describe("cluster-local-etcd", Ordered, func() {
	var c *cluster
	BeforeAll(func() { c = newCluster(3) })
	describeVerbs(func() bed { return c })

	It("claims, counts and releases addresses", func() {
		n1 := c.newCaller("claims", "n1", "10.7.0.1-10.7.0.10", "fd00::1-fd00::2")
		n1.base.Exclude = []netip.Prefix{netip.MustParsePrefix("10.7.0.8/30")} // .8, .9, .10
		Expect(n1.succeed(datastore.Register).Addresses).To(BeEmpty())
		a := n1.succeed(datastore.Claim, want(4))
		Expect(a.Addresses).To(HaveLen(4))
		Expect(a.Free).To(BeEquivalentTo(7 + 2 - 4))
		rest := n1.succeed(datastore.Claim, want(256))
		Expect(rest.Addresses).To(HaveLen(5))
		Expect(rest.Free).To(BeZero())
		Expect(rest.Revision).To(BeNumerically(">", a.Revision))
		all := slices.SortedFunc(slices.Values(append(addrs(a), addrs(rest)...)), netip.Addr.Compare)
		Expect(all[0]).To(Equal(netip.MustParseAddr("10.7.0.1")))
		Expect(all[6]).To(Equal(netip.MustParseAddr("10.7.0.7")))
		Expect(all[8]).To(Equal(netip.MustParseAddr("fd00::2")))
		requireError(c.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonFull, "n1", "claims")

		wrong := map[netip.Addr]string{all[0]: "another-claim"}
		Expect(n1.succeed(datastore.Release, addresses(wrong)).Addresses).To(BeEmpty())
		freed := n1.succeed(datastore.Release, addresses(a.Addresses))
		Expect(freed.Addresses).To(Equal(a.Addresses))
		Expect(freed.Free).To(BeEquivalentTo(4))
		n1.succeed(datastore.Release, addresses(rest.Addresses))
		Expect(n1.succeed(datastore.Status).Free).To(BeEquivalentTo(9))
		Expect(c.dump("claims")).To(And(HaveLen(3), HaveKey("node/n1"), HaveKey("last/n1"), HaveKey("store")))
	})

	It("claims the addresses of all windows before it returns that the pool is full", func() {
		n1 := c.newCaller("windows", "n1", "10.7.0.200-10.7.4.20")
		n1.succeed(datastore.Register)
		size := 1024 + 20 - 200 + 1
		all := map[netip.Addr]string{}
		for len(all) < size {
			a := n1.succeed(datastore.Claim, want(250))
			for addr := range a.Addresses {
				Expect(all).NotTo(HaveKey(addr))
			}
			maps.Copy(all, a.Addresses)
			Expect(a.Free).To(BeEquivalentTo(size - len(all)))
		}
		requireError(c.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonFull)
		Expect(n1.succeed(datastore.Release, addresses(all)).Addresses).To(HaveLen(size))
	})

	It("estimates the number of free addresses in a large pool, and finds the last one", func() {
		n1 := c.newCaller("large", "n1", "10.8.0.0-10.8.255.255")
		n1.succeed(datastore.Register)
		c.own("large", "n2", netip.MustParseAddr("10.8.0.0"), 52428)
		Expect(n1.succeed(datastore.Status).Free).To(BeNumerically("~", 65536-52428, 65536/16))
		c.own("large", "n2", netip.MustParseAddr("10.8.204.204"), 65536-52428-1)
		a := n1.succeed(datastore.Claim, want(8))
		Expect(addrs(a)).To(HaveExactElements(netip.MustParseAddr("10.8.255.255")))
		Expect(a.Free).To(BeZero())
		requireError(c.clients, n1.request(datastore.Claim, want(1)), types.CodeTryAgain, datastore.ReasonFull)
		Expect(n1.succeed(datastore.Release, addresses(a.Addresses)).Free).To(BeEquivalentTo(1))
		Expect(n1.succeed(datastore.Status).Free).To(BeElementOf(uint64(1), uint64(8)), "want 8 if the sample, an eighth of the pool, contains the address")
	})

	It("claims from a /64", func() {
		n1 := c.newCaller("wide", "n1", "fd00::-fd00::ffff:ffff:ffff:ffff")
		n1.succeed(datastore.Register)
		a := n1.succeed(datastore.Claim, want(8))
		Expect(a.Addresses).To(HaveLen(8))
		Expect(a.Free).To(BeEquivalentTo(1<<53 - 8))
	})

	It("ignores a claim that arrives after the next register", func() {
		n1 := c.newCaller("late", "n1", "10.7.0.1-10.7.0.8")
		n1.succeed(datastore.Register)
		for _, lost := range []bool{false, true} {
			config := c.interruptedConfig(interruption{"/last/", func() bool {
				n1.succeed(datastore.Register)
				return lost
			}})
			late := n1.request(datastore.Claim, want(8))
			late.Datastore = config
			reason := map[bool]string{false: datastore.ReasonUnreachable, true: datastore.ReasonUnknown}[lost]
			requireError(c.clients, late, types.CodeTryAgain, reason)
			Expect(n1.succeed(datastore.List).Owners).To(BeEmpty())
		}
		Expect(n1.succeed(datastore.Claim, want(8)).Addresses).To(HaveLen(8))
	})

	It("registers even what a claim of the last boot gets during the register", func() {
		n1 := c.newCaller("meanwhile", "n1", "10.7.0.1-10.7.0.8")
		n1.succeed(datastore.Register)
		n1.succeed(datastore.Claim, want(2))
		register := n1.request(datastore.Register, boot("boot2"))
		register.Datastore = c.interruptedConfig(interruption{"/last/", func() bool { n1.succeed(datastore.Claim, want(3)); return false }})
		Expect(succeed(c.clients, register).Addresses).To(And(HaveLen(5), Equal(owned(c, "meanwhile", "n1"))))
	})

	It("ignores a freeze or thaw that arrives after a later one", func() {
		n1, fence := c.newCaller("fence", "late"), c.newCaller("fence", "n2")
		id := fence.succeed(datastore.Register).Store
		freeze := n1.request(datastore.Freeze)
		freeze.Datastore = c.interruptedConfig(interruption{"Z late", func() bool { fence.succeed(datastore.Thaw); return true }})
		requireError(c.clients, freeze, types.CodeTryAgain, datastore.ReasonUnknown)
		Expect(fence.succeed(datastore.Status).Frozen).To(BeEmpty())

		first := fence.succeed(datastore.Freeze).Frozen
		thaw := n1.request(datastore.Thaw)
		thaw.Datastore = c.interruptedConfig(interruption{id, func() bool { fence.succeed(datastore.Freeze); return true }})
		requireError(c.clients, thaw, types.CodeTryAgain, datastore.ReasonUnknown)
		Expect(fence.succeed(datastore.Status).Frozen).To(Equal(first))
		Expect(fence.succeed(datastore.Thaw).Store).To(Equal(id))
	})

	It("recognizes another store by its ID, at any revision", func() {
		n1 := c.newCaller("others", "n1", "10.7.0.1-10.7.0.8")
		first := n1.succeed(datastore.Register)
		known := []func(*datastore.Request){store(first.Store), seen(first.Revision)}
		a := n1.succeed(datastore.Claim, append(known, want(1))...)
		Expect(a.Store).To(Equal(first.Store))
		Expect(do(func(ctx context.Context) error {
			_, err := c.connect("root", c.members...).Delete(ctx, "/plumb/v1/others/", clientv3.WithPrefix())
			return err
		})).To(Succeed())
		for verb, change := range map[string]func(*datastore.Request){
			datastore.Claim: want(1), datastore.Register: want(0), datastore.Release: addresses(a.Addresses), datastore.Status: want(0), datastore.List: want(0),
		} {
			requireError(c.clients, n1.request(verb, append(known, change)...), types.CodeTryAgain, datastore.ReasonBehind, first.Store, "another etcd")
		}
		next := n1.succeed(datastore.Resync, append(known, addresses(a.Addresses))...)
		Expect(next.Frozen).To(HaveSuffix(" by n1"))
		Expect(next.Store).NotTo(Or(BeEmpty(), Equal(first.Store)))
	})

	It("removes only the machine and boot that the caller names, and keeps a successor's addresses", func() {
		n1, n2 := c.newCaller("replaced", "n1", "10.7.0.1-10.7.0.40"), c.newCaller("replaced", "n2")
		for _, text := range []string{"/a/4", "/last/"} { // before the addresses are taken, and before the registration is removed
			n1.succeed(datastore.Register)
			n1.succeed(datastore.Claim, want(3))
			before := n1.succeed(datastore.List).Owners
			n2.base.Datastore = c.interruptedConfig(interruption{text, func() bool {
				if text == "/last/" {
					n1.succeed(datastore.RemoveNode, removed("n1"))
				}
				n1.succeed(datastore.Register, machine("successor"))
				return false
			}})
			answer := call(c.clients, n2.request(datastore.RemoveNode, removed("n1")))
			Expect(answer.Addresses).To(BeEmpty())
			if text == "/a/4" {
				Expect(answer.Nodes).To(Equal(map[string]datastore.Node{"n1": {Machine: "successor", Boot: "boot1"}}))
				Expect(n1.succeed(datastore.List).Owners).To(Equal(before))
			}
			Expect(n1.succeed(datastore.List).Nodes["n1"].Machine).To(Equal("successor"))
			n2.base.Datastore = n1.base.Datastore
			requireError(c.clients, n2.request(datastore.RemoveNode, removed("n1")), types.CodeConfig, datastore.ReasonMachine, "machine-of-n1 boot1", "successor boot1", "list")
			n2.succeed(datastore.RemoveNode, removed("n1"), machine("successor"))
		}
		requireError(c.clients, n2.request(datastore.RemoveNode, target("n1"), machine("")), types.CodeConfig, datastore.ReasonRequest, "machine is missing", "list")
	})

})
