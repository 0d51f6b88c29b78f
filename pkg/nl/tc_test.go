package nl_test

import (
	"errors"
	"io/fs"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("traffic control", Label(nstest.Kernel), func() {
	var nodeNS *nstest.NS
	var node, pod *nl.Conn
	var near, far, ifb nl.Link
	var tracer *trace.Tracer
	var u undo.Stack

	tc := func(args ...string) string {
		GinkgoHelper()
		return nodeNS.Must(GinkgoTB(), "tc", args...)
	}

	BeforeEach(func() {
		n, p := nstest.NewNodeAndPod(GinkgoTB())
		nodeNS, tracer, u = n, &trace.Tracer{}, undo.Stack{}
		node, pod = connect(n, tracer), connect(p, tracer)
		var err error
		near, far, err = node.AddVeth(&u, nl.Veth{Name: "veth0", Peer: "eth0", PeerIn: pod})
		Expect(err).NotTo(HaveOccurred())
		ifb, err = node.AddIFB(&u, nl.IFB{Name: "ifb7", MTU: 1400, Group: 7})
		nstest.RequireFeature(GinkgoTB(), "ifb", err)
		Expect(ifb).To(And(HaveField("Kind", "ifb"), HaveField("MTU", 1400), HaveField("Group", uint32(7)), HaveField("Up", false)))
		Expect(node.SetUp(near)).To(Succeed())
		Expect(node.SetUp(ifb)).To(Succeed())
		Expect(pod.SetUp(far)).To(Succeed())
	})

	It("adds qdiscs, returns each as it was added, and undoes them", func() {
		for _, c := range []struct {
			q    nl.Qdisc
			text string
		}{
			{nl.Qdisc{Kind: "tbf", Handle: 0x10000, Parent: nl.Root, TBF: nl.TBF{Rate: 125000, Buffer: 12500000, Limit: 103125}}, "tbf 1: root refcnt 3 rate 1Mbit burst 100000b lat 25ms"},
			{nl.Qdisc{Kind: "tbf", Handle: 0x10000, Parent: nl.Root, TBF: nl.TBF{Rate: 1 << 33, Buffer: 15625, Limit: 1 << 31}}, "tbf 1: root refcnt 3 rate 68719Mbit burst 8589934b lat 249ms"},
			{nl.Qdisc{Kind: "htb", Handle: 0x10000, Parent: nl.Root, HTB: nl.HTB{Default: 0x30, Direct: 1000}}, "htb 1: root refcnt 3 r2q 10 default 0x30 direct_packets_stat "},
			{nl.Qdisc{Kind: "ingress", Handle: nl.IngressHandle, Parent: nl.Ingress}, "ingress ffff: parent ffff:fff1"},
		} {
			var added undo.Stack
			nstest.RequireFeature(GinkgoTB(), c.q.Kind, node.AddQdisc(&added, near, c.q))
			Expect(tc("qdisc", "show", "dev", "veth0")).To(ContainSubstring("qdisc " + c.text))
			Expect(node.Qdisc(near, c.q.Parent)).To(Equal(c.q))
			Expect(node.AddQdisc(&added, near, c.q)).To(MatchError(fs.ErrExist))
			Expect(added.Len()).To(Equal(1), "an existing qdisc is not undone")
			Expect(added.Rollback()).To(Succeed())
			Expect(tc("qdisc", "show", "dev", "veth0")).NotTo(ContainSubstring("qdisc " + c.q.Kind))
		}
	})

	It("returns nothing if the link has no qdiscs, classes and filters", func() {
		Expect(node.Qdisc(near, nl.Root)).To(BeZero())
		Expect(node.Qdisc(near, nl.Ingress)).To(BeZero())
		Expect(node.SetDown(ifb)).To(Succeed())
		Expect(node.Qdisc(ifb, nl.Root)).To(BeZero())
		Expect(node.Classes(near)).To(BeEmpty())
		Expect(node.Filters(near, nl.IngressHandle)).To(BeEmpty())
		Expect(u.Rollback()).To(Succeed())
		_, err := node.Qdisc(near, nl.Root)
		Expect(err).To(MatchError(fs.ErrNotExist))
		Expect(node.DeleteQdisc(near, nl.Qdisc{Kind: "tbf", Handle: 0x10000, Parent: nl.Root})).To(Succeed())
	})

	It("does not delete a qdisc of another kind or handle", func() {
		tc("qdisc", "add", "dev", "veth0", "root", "handle", "7:", "tbf", "rate", "1mbit", "burst", "10000", "limit", "10000")
		Expect(node.DeleteQdisc(near, nl.Qdisc{Kind: "tbf", Handle: 0x10000, Parent: nl.Root})).To(Succeed())
		Expect(node.DeleteQdisc(near, nl.Qdisc{Kind: "htb", Handle: 0x70000, Parent: nl.Root})).To(Succeed())
		Expect(tc("qdisc", "show", "dev", "veth0")).To(ContainSubstring("qdisc tbf 7:"))
	})

	It("undoes a qdisc if the kernel's answer was lost", func() {
		lost := errors.New("lost")
		tracer.After = func(step string) error {
			if step == "add qdisc tbf 1: to veth0 root" {
				return lost
			}
			return nil
		}
		var added undo.Stack
		q := nl.Qdisc{Kind: "tbf", Handle: 0x10000, Parent: nl.Root, TBF: nl.TBF{Rate: 125000, Buffer: 12500000, Limit: 103125}}
		Expect(node.AddQdisc(&added, near, q)).To(MatchError(lost))
		Expect(added.Rollback()).To(Succeed())
		Expect(node.Qdisc(near, nl.Root)).To(BeZero())
	})

	It("adds and lists classes, a qdisc of a class, and filters of both families", func() {
		root := nl.Qdisc{Kind: "htb", Handle: 0x10000, Parent: nl.Root, HTB: nl.HTB{Direct: 100}}
		nstest.RequireFeature(GinkgoTB(), "htb", node.AddQdisc(&u, near, root))
		class := nl.Class{ID: root.Handle.Class(0x30), Parent: root.Handle, Rate: 125000, Buffer: 12500000, Quantum: 3000}
		wide := nl.Class{ID: root.Handle.Class(0x31), Parent: root.Handle, Rate: 1 << 33, Buffer: 15625, Quantum: 3000}
		leaf := nl.Qdisc{Kind: "bfifo", Handle: 0x300000, Parent: class.ID, Limit: 5000}
		filters := []nl.Filter{
			{Parent: root.Handle, Priority: 15, Protocol: unix.ETH_P_IPV6, Class: class.ID, Keys: []nl.Key{{Value: 0xfd000000, Mask: 0xffff0000, Offset: 24}, {Value: 1, Mask: 0xff, Offset: 28}}},
			{Parent: root.Handle, Priority: 16, Protocol: unix.ETH_P_IP, Class: root.Handle, Keys: []nl.Key{{Value: 0x0a010200, Mask: 0xffffff00, Offset: 16}}},
		}
		Expect(node.AddClass(near, class)).To(Succeed())
		Expect(node.AddClass(near, wide)).To(Succeed())
		Expect(node.AddQdisc(&u, near, leaf)).To(Succeed())
		for _, f := range filters {
			Expect(node.AddFilter(near, f)).To(Succeed())
		}
		Expect(node.Qdisc(near, nl.Root)).To(Equal(root))
		Expect(node.Qdisc(near, class.ID)).To(Equal(leaf))
		Expect(node.Qdisc(near, wide.ID)).To(HaveField("Kind", Not(Equal("bfifo"))))
		classes, err := node.Classes(near)
		Expect(err).NotTo(HaveOccurred())
		for i := range classes {
			Expect(classes[i].Parent).To(Equal(nl.Root)) // what the kernel says of a class without a parent class
			classes[i].Parent = root.Handle
		}
		Expect(classes).To(ConsistOf(class, wide))
		Expect(node.Filters(near, root.Handle)).To(Equal(filters))
		Expect(filters[0].Same(filters[1])).To(BeFalse())
		Expect(tc("class", "show", "dev", "veth0")).To(ContainSubstring("class htb 1:30 root leaf 30: prio 0 rate 1Mbit ceil 1Mbit burst 100000b cburst 100000b"))
		Expect(tc("filter", "show", "dev", "veth0")).To(And(
			ContainSubstring("protocol ipv6 pref 15 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 *flowid 1:30"),
			ContainSubstring("protocol ip pref 16 u32 chain 0 fh 801::800 order 2048 key ht 801 bkt 0 *flowid 1:"),
			ContainSubstring("match 0a010200/ffffff00 at 16"),
		))
	})

	It("adds and lists a filter that redirects packets to another link", func() {
		q := nl.Qdisc{Kind: "ingress", Handle: nl.IngressHandle, Parent: nl.Ingress}
		f := nl.Filter{Parent: nl.IngressHandle, Priority: 1, Protocol: unix.ETH_P_ALL, Class: 0x10001, Redirect: ifb.Index}
		Expect(node.AddQdisc(&u, near, q)).To(Succeed())
		nstest.RequireFeature(GinkgoTB(), "u32 and mirred", node.AddFilter(near, f))
		Expect(node.Filters(near, nl.IngressHandle)).To(Equal([]nl.Filter{f}))
		Expect(tc("filter", "show", "dev", "veth0", "parent", "ffff:")).To(And(
			ContainSubstring("protocol all pref 1 u32"), ContainSubstring("match 00000000/00000000 at 0"),
			ContainSubstring("mirred (Egress Redirect to device ifb7) stolen"),
		))
		Expect(node.DeleteLink(ifb)).To(Succeed())
		Expect(node.Filters(near, nl.IngressHandle)).To(HaveExactElements(HaveField("Redirect", 0)))
	})

	It("finds the other end of a pair only in its namespace", func() {
		eth, err := pod.Link("eth0")
		Expect(err).NotTo(HaveOccurred())
		Expect(pod.VethPeer(eth, node)).To(HaveField("Name", "veth0"))
		// A pair in another namespace has the same two indexes: these do not identify a link.
		other := connect(nstest.New(GinkgoTB()), tracer)
		var second undo.Stack
		_, _, err = other.AddVeth(&second, nl.Veth{Name: "veth0", Peer: "eth1", PeerIn: pod})
		Expect(err).NotTo(HaveOccurred())
		_, err = pod.VethPeer(eth, other)
		Expect(err).To(MatchError(fs.ErrNotExist))
		_, err = pod.VethPeer(eth, pod)
		Expect(err).To(MatchError(fs.ErrNotExist))
		_, err = node.VethPeer(ifb, pod)
		Expect(err).To(MatchError(fs.ErrNotExist))
	})

	It("finds no other end in another namespace if both ends are in the same one", func() {
		lone := connect(nstest.New(GinkgoTB()), tracer)
		inner, _, err := lone.AddVeth(&u, nl.Veth{Name: "in0", Peer: "in1", PeerIn: lone})
		Expect(err).NotTo(HaveOccurred())
		Expect(lone.VethPeer(inner, lone)).To(HaveField("Name", "in1"))
		// No link connects the two namespaces, so neither has an nsid for the other.
		_, err = lone.VethPeer(inner, node)
		Expect(err).To(MatchError(fs.ErrNotExist))
		Expect(err).To(MatchError(ContainSubstring("find the other end of in0")))
	})
})
