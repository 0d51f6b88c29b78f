package nft_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// connect returns a connection into the namespace, which is closed at the end of the test.
func connect(n *nstest.NS, t *trace.Tracer) *nft.Conn {
	GinkgoHelper()
	c, err := nft.Open(n.Open(GinkgoTB(), t))
	Expect(err).NotTo(HaveOccurred())
	return c
}

var (
	table  = nft.Table{Family: nft.Inet, Name: "plumb"}
	subnet = netip.MustParsePrefix("10.88.0.0/16")
	addr   = netip.MustParseAddr("10.88.0.2")
	owner  = types.Attachment{Network: "net1", ContainerID: "cid1", IfName: "eth0"}
)

// element returns a masquerade element of network net1.
func element(a netip.Addr, o types.Attachment) nft.Element {
	return nft.Element{Key: nft.AddrKey(a), Jump: subnetChain(subnet).Name, Comment: nft.Owner(o)}
}

func add(c *nft.Conn, elements ...nft.Element) error {
	var tx nft.Tx
	for _, e := range elements {
		tx.AddElement(table, "masq4", e)
	}
	return c.Commit("add", &tx)
}

func del(c *nft.Conn, elements ...nft.Element) error {
	var tx nft.Tx
	for _, e := range elements {
		tx.DelElement(table, "masq4", e.Key)
	}
	return c.Commit("delete", &tx)
}

var _ = Describe("nf_tables", func() {
	var host *nstest.NS
	var c *nft.Conn
	layout := tableLayout().WithChains(subnetChain(subnet), subnetChain(netip.MustParsePrefix("fd00:9::/64")))

	BeforeEach(func() {
		host = nstest.NewHost(GinkgoTB())
		c = connect(host, nil)
	})

	ruleset := func() string {
		GinkgoHelper()
		return host.Must(GinkgoTB(), "nft", "list", "ruleset")
	}

	It("Ensure creates the whole table, changes nothing when it is repeated, and nft can load what it lists", func() {
		Expect(c.Ensure(layout)).To(Succeed())
		Expect(add(c, element(addr, owner))).To(Succeed())
		before := ruleset()
		nstest.Golden(GinkgoTB(), "plumb", before)
		Expect(c.Ensure(layout)).To(Succeed())
		Expect(ruleset()).To(Equal(before), "Ensure changed a table that was complete")

		_, err := nstest.NewHost(GinkgoTB()).ExecInput(before, "nft", "-f", "-")
		Expect(err).NotTo(HaveOccurred(), "nft cannot load a saved ruleset")
	})

	It("adds and looks up more elements than fit into one message, including elements after a missing one", func() {
		Expect(c.Ensure(layout)).To(Succeed())
		const many = 1000 // more than fit into one message
		var refs []nft.ElementRef
		var want, wantAfterwards []nft.Element
		for i := range many {
			e := element(netip.AddrFrom4([4]byte{10, 88, byte(i >> 8), byte(i)}), owner)
			refs, want = append(refs, nft.ElementRef{Set: "masq4", Key: e.Key}), append(want, e)
			if i%97 == 5 || i > 900 {
				wantAfterwards = append(wantAfterwards, nft.Element{})
				continue
			}
			wantAfterwards = append(wantAfterwards, e)
		}
		Expect(add(c, want...)).To(Succeed())
		Expect(c.Lookup(table, refs)).To(Equal(want))
		var deleted []nft.Element
		for i, e := range want {
			if wantAfterwards[i].Key == "" {
				deleted = append(deleted, e)
			}
		}
		Expect(del(c, deleted...)).To(Succeed())
		Expect(c.Lookup(table, refs)).To(Equal(wantAfterwards))
		other := slices.Clone(want)
		for i := range other {
			other[i].Jump = "postrouting" // another verdict than the elements in the table
		}
		Expect(add(c, other...)).NotTo(Succeed(), "elements with another verdict exist")
		Expect(c.Lookup(table, refs)).To(Equal(wantAfterwards))
		inAnotherSet := nft.ElementRef{Set: "masq6", Key: nft.AddrKey(netip.MustParseAddr("fd00:9::1"))}
		Expect(c.Lookup(table, []nft.ElementRef{refs[5], refs[6], inAnotherSet, {Set: "nosuch", Key: refs[0].Key}, refs[7]})).
			To(Equal([]nft.Element{{}, want[6], {}, {}, want[7]}))
		Expect(del(c, slices.DeleteFunc(wantAfterwards, func(e nft.Element) bool { return e.Key == "" })...)).To(Succeed())
		Expect(c.Elements(table, "masq4")).To(BeEmpty())
	})

	It("names the first element that the kernel refuses of thousands, and deletes thousands in one transaction afterwards", func() {
		Expect(c.Ensure(layout)).To(Succeed())
		long := owner
		long.ContainerID = strings.Repeat("0123456789abcdef", 4)
		var all []nft.Element
		for i := range 5000 { // error messages with the refused requests would not fit into the receive buffer
			all = append(all, element(netip.AddrFrom4([4]byte{10, 88, byte(i >> 8), byte(i)}), long))
		}
		Expect(add(c, all...)).To(Succeed())
		other := slices.Clone(all)
		for i := range other {
			other[i].Jump = subnetChain(netip.MustParsePrefix("fd00:9::/64")).Name
		}
		Expect(add(c, other...)).To(MatchError(ContainSubstring("add element to masq4 of table inet plumb")))
		first := []nft.ElementRef{{Set: "masq4", Key: all[0].Key}}
		Expect(c.Lookup(table, first)).To(Equal(all[:1]))
		Expect(del(c, all...)).To(Succeed())
		Expect(c.Elements(table, "masq4")).To(BeEmpty())
	})

	It("applies the changes of one set in the order in which they were added", func() {
		Expect(c.Ensure(layout)).To(Succeed())
		first, second := element(addr, owner), element(addr.Next(), owner)
		Expect(add(c, second)).To(Succeed())
		var tx nft.Tx
		tx.AddElement(table, "masq4", first)
		tx.DelElement(table, "masq4", second.Key)
		tx.AddElement(table, "masq6", element(netip.MustParseAddr("fd00:9::1"), owner))
		tx.AddElement(table, "masq4", second) // not in the same message as the first
		tx.DelElement(table, "masq4", first.Key)
		Expect(c.Commit("replace", &tx)).To(Succeed())
		Expect(c.Elements(table, "masq4")).To(Equal([]nft.Element{second}))
	})

	It("returns fs.ErrNotExist with the name of the change", func() {
		Expect(add(c, element(addr, owner))).To(And(MatchError(fs.ErrNotExist), MatchError(ContainSubstring("masq4 of table inet plumb"))))
		_, err := c.Elements(table, "masq4")
		Expect(err).To(MatchError(fs.ErrNotExist))
		Expect(c.CheckChain(table, "postrouting")).To(MatchError(fs.ErrNotExist))
		Expect(c.Rules(table, "postrouting")).To(BeEmpty())
		Expect(c.Ensure(layout)).To(Succeed())
		Expect(c.CheckChain(table, "postrouting")).To(Succeed())
		Expect(add(c, element(addr, owner))).To(Succeed())
		Expect(del(c, element(addr.Next(), owner))).To(MatchError(fs.ErrNotExist))
	})

	It("applies all changes of a transaction or none, and the connection works after a refusal", func() {
		Expect(c.Ensure(layout)).To(Succeed())
		before := ruleset()
		invalid := element(addr.Next(), owner)
		invalid.Jump = "nosuch"
		Expect(add(c, element(addr, owner), invalid)).To(MatchError(fs.ErrNotExist))
		Expect(ruleset()).To(Equal(before))
		Expect(add(c, element(addr, owner))).To(Succeed())
	})

	It("Atomically calls its function again after another commit, and gives up with CodeTryAgain", func() {
		Expect(c.Ensure(layout)).To(Succeed())
		other, tries := connect(host, nil), 0
		err := c.Atomically("test", func(tx *nft.Tx) error {
			if tries++; tries == 1 {
				Expect(add(other, element(addr.Next(), owner))).To(Succeed())
			}
			tx.AddElement(table, "masq4", element(addr, owner))
			return nil
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(tries).To(Equal(2))

		err = c.Atomically("test", func(tx *nft.Tx) error {
			Expect(del(other, element(addr, owner))).To(Succeed())
			Expect(add(other, element(addr, owner))).To(Succeed())
			tx.DelElement(table, "masq4", nft.AddrKey(addr))
			return nil
		})
		var coded *types.Error
		Expect(errors.As(err, &coded)).To(BeTrue())
		Expect(coded.Code).To(BeEquivalentTo(types.CodeTryAgain))
	})

	It("Ensure keeps a table that another process created in the meantime", func() {
		second := connect(host, &trace.Tracer{Before: func(step string) error {
			if step == "nft create table inet plumb" {
				Expect(c.Ensure(layout)).To(Succeed())
				Expect(add(c, element(addr, owner))).To(Succeed())
			}
			return nil
		}})
		Expect(second.Ensure(layout)).To(Succeed())
		Expect(c.DamagedChains(layout)).To(BeEmpty())
		Expect(c.Elements(table, "masq4")).To(HaveLen(1))
	})

	It("Ensure creates the whole table if it was deleted while one of its chains was added", func() {
		Expect(c.Ensure(layout)).To(Succeed())
		more := layout.WithChains(nft.Chain{Name: "more", Rules: []nft.Rule{{nft.Drop()}}})
		deleted := false
		second := connect(host, &trace.Tracer{Before: func(step string) error {
			if step == "nft create table inet plumb" && !deleted {
				deleted = true
				host.Must(GinkgoTB(), "nft", "delete", "table", "inet", "plumb")
			}
			return nil
		}})
		Expect(second.Ensure(more)).To(Succeed())
		Expect(deleted).To(BeTrue())
		Expect(c.DamagedChains(more)).To(BeEmpty())
	})

	DescribeTable("Ensure repairs a table and keeps its elements", func(damage ...string) {
		Expect(c.Ensure(layout)).To(Succeed())
		Expect(add(c, element(addr, owner))).To(Succeed())
		before := ruleset()
		for _, line := range damage {
			host.Must(GinkgoTB(), "nft", line)
		}
		Expect(ruleset()).NotTo(Equal(before))
		damaged, err := c.DamagedChains(layout)
		Expect(err).NotTo(HaveOccurred())
		Expect(damaged).NotTo(BeEmpty())
		Expect(c.Ensure(layout)).To(Succeed())
		Expect(sorted(ruleset())).To(Equal(sorted(before)))
	},
		Entry("a base chain without its rules", "flush chain inet plumb postrouting"),
		Entry("a missing base chain", "flush chain inet plumb postrouting", "delete chain inet plumb postrouting"),
		Entry("a network's chain without its rules", "flush chain inet plumb masq/net1/10.88.0.0/16"),
		Entry("a table without rules", "flush table inet plumb"),
	)

	It("Ensure does not change chains of a newer layout or rules of other programs", func() {
		Expect(c.Ensure(layout)).To(Succeed())
		host.Must(GinkgoTB(), "nft", "add rule inet plumb masq/net1/10.88.0.0/16 counter")
		before := ruleset()
		Expect(c.Ensure(layout)).To(Succeed())
		Expect(ruleset()).To(Equal(before))
		host.Must(GinkgoTB(), "nft", "flush chain inet plumb postrouting")
		host.Must(GinkgoTB(), "nft", `add rule inet plumb postrouting ip saddr vmap @masq4 comment "plumb layout 99"`)
		before = ruleset()
		Expect(c.Ensure(layout)).To(Succeed())
		Expect(ruleset()).To(Equal(before))
	})

	It("Ensure adds sets, chains and rules to a table of an older version, and keeps its elements", func() {
		Expect(c.Ensure(layout)).To(Succeed())
		Expect(add(c, element(addr, owner))).To(Succeed())
		next := hostports(layout)
		Expect(c.DamagedChains(next)).To(HaveLen(len(next.Chains)))
		Expect(c.Ensure(next)).To(Succeed())
		nstest.Golden(GinkgoTB(), "upgraded", ruleset())
		Expect(c.DamagedChains(next)).To(BeEmpty())
		var tx nft.Tx
		tx.AddElement(table, "hostport4", nft.Element{
			Key:     nft.Concat(nft.ProtoKey(syscall.IPPROTO_TCP), nft.PortKey(8080)),
			Data:    nft.Concat(nft.AddrKey(addr), nft.PortKey(80)),
			Comment: nft.Owner(owner),
		})
		Expect(c.Commit("add", &tx)).To(Succeed())
		nstest.Golden(GinkgoTB(), "hostport", ruleset())
	})

	It("Ensure and CheckSupport return ErrUnavailable if the kernel lacks a chain type, whether or not the table exists", func() {
		l := tableLayout().WithChains(nft.Chain{Name: "new", Hook: nft.Hook{Type: "unknown", At: nft.Prerouting}, Rules: []nft.Rule{{nft.Return()}}})
		for _, exists := range []bool{false, true} {
			if exists {
				Expect(c.Ensure(tableLayout())).To(Succeed())
			}
			before := ruleset()
			Expect(c.Ensure(l)).To(MatchError(nft.ErrUnavailable))
			Expect(c.CheckSupport(l)).To(MatchError(nft.ErrUnavailable))
			Expect(ruleset()).To(Equal(before))
		}
	})

	It("Ensure names the missing capability", func() {
		confined := connect(host, &trace.Tracer{Before: func(step string) error {
			if strings.HasPrefix(step, "nft create") {
				return syscall.EPERM
			}
			return nil
		}})
		Expect(confined.Ensure(layout)).To(MatchError(ContainSubstring("operation not permitted; grant CAP_NET_ADMIN in the host's network namespace")))
	})

	It("accepts owners of any length, and nft can load the comments that it lists", func() {
		Expect(c.Ensure(layout)).To(Succeed())
		long := types.Attachment{Network: strings.Repeat("n", 200), ContainerID: strings.Repeat("c", 200), IfName: strings.Repeat("i", 15)}
		Expect(nft.Owner(long)).To(HaveLen(128))
		Expect(add(c, element(addr, long))).To(Succeed())
		Expect(ruleset()).To(ContainSubstring(`comment "` + nft.Owner(long) + `"`))
		_, err := nstest.NewHost(GinkgoTB()).ExecInput(ruleset(), "nft", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
	})
})

// hostports returns a later version of the layout.
func hostports(l nft.Layout) nft.Layout {
	l.Version++
	l.Sets = append(l.Sets,
		nft.Set{Name: "hostport4", Key: []nft.Type{nft.InetProto, nft.InetService}, Data: []nft.Type{nft.IPv4Addr, nft.InetService}},
		nft.Set{Name: "hostport4ip", Key: []nft.Type{nft.IPv4Addr, nft.InetProto, nft.InetService}, Data: []nft.Type{nft.IPv4Addr, nft.InetService}},
		nft.Set{Name: "hostport6ip", Key: []nft.Type{nft.IPv6Addr, nft.InetProto, nft.InetService}, Data: []nft.Type{nft.IPv6Addr, nft.InetService}},
		nft.Set{Name: "hairpin4", Key: []nft.Type{nft.IPv4Addr, nft.IPv4Addr}})
	base := l.Chains[0]
	base.Rules = append([]nft.Rule{{nft.InSet("hairpin4", nft.Saddr(nft.IPv4), nft.Daddr(nft.IPv4)), nft.Masquerade()}}, base.Rules...)
	l.Chains = append([]nft.Chain{base, {
		Name: "prerouting",
		Hook: nft.Hook{Type: nft.NAT, At: nft.Prerouting, Priority: -99},
		Rules: []nft.Rule{
			{nft.ToLocal(), nft.DNATMap(nft.IPv4, "hostport4ip", nft.Daddr(nft.IPv4), nft.L4Proto(), nft.Dport())},
			{nft.ToLocal(), nft.DNATMap(nft.IPv4, "hostport4", nft.L4Proto(), nft.Dport())},
			{nft.ToLocal(), nft.DNATMap(nft.IPv6, "hostport6ip", nft.Daddr(nft.IPv6), nft.L4Proto(), nft.Dport())},
		},
	}}, l.Chains[1:]...)
	return l
}

// sorted returns the sorted blocks of a ruleset.
func sorted(ruleset string) []string {
	blocks := strings.Split(strings.TrimSuffix(ruleset, "}\n"), "\n\n")
	for i := range blocks {
		blocks[i] = strings.TrimSpace(blocks[i])
	}
	slices.Sort(blocks)
	return blocks
}
