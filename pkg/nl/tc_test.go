package nl_test

import (
	"io/fs"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("traffic control", Label(nstest.Kernel), func() {
	var n, p *nstest.NS
	var host, container *nl.Conn
	var near, far, ifb nl.Link
	var tracer *trace.Tracer
	var u undo.Stack

	BeforeEach(func() {
		n, p = nstest.NewHostAndContainer(GinkgoTB())
		tracer, u = &trace.Tracer{}, undo.Stack{}
		host, container = connect(n, tracer), connect(p, tracer)
		var err error
		near, far, err = host.AddVeth(&u, nl.Veth{Name: "veth0", Peer: "eth0", PeerIn: container})
		Expect(err).NotTo(HaveOccurred())
		ifb, err = host.AddIFB(&u, nl.NewLink{Name: "ifb7", MTU: 1400, Group: 7})
		nstest.RequireFeature(GinkgoTB(), "ifb", err)
		Expect(ifb).To(And(HaveField("Kind", "ifb"), HaveField("MTU", 1400), HaveField("Group", uint32(7)), HaveField("Up", false)))
		Expect(host.SetUp(near)).To(Succeed())
		Expect(host.SetUp(ifb)).To(Succeed())
		Expect(container.SetUp(far)).To(Succeed())
	})

	It("returns nothing for a link without qdiscs, classes and filters", func() {
		Expect(host.Qdisc(near, nl.Root)).To(BeZero())
		Expect(host.Qdisc(near, nl.Ingress)).To(BeZero())
		Expect(host.SetDown(ifb)).To(Succeed())
		Expect(host.Qdisc(ifb, nl.Root)).To(BeZero())
		Expect(host.Classes(near)).To(BeEmpty())
		Expect(host.Filters(near, nl.IngressHandle)).To(BeEmpty())
		Expect(u.Rollback()).To(Succeed())
		_, err := host.Qdisc(near, nl.Root)
		Expect(err).To(MatchError(fs.ErrNotExist))
		Expect(host.DeleteQdisc(near, nl.Qdisc{Kind: "tbf", Handle: 0x10000, Parent: nl.Root})).To(Succeed())
	})

	It("finds the other end of a pair only in its namespace", func() {
		eth, err := container.Link("eth0")
		Expect(err).NotTo(HaveOccurred())
		Expect(container.VethPeer(eth, host)).To(HaveField("Name", "veth0"))
		// A pair in another namespace has the same two indexes, which therefore do not identify a
		// link.
		other := connect(nstest.New(GinkgoTB()), tracer)
		var second undo.Stack
		_, _, err = other.AddVeth(&second, nl.Veth{Name: "veth0", Peer: "eth1", PeerIn: container})
		Expect(err).NotTo(HaveOccurred())
		_, err = container.VethPeer(eth, other)
		Expect(err).To(MatchError(fs.ErrNotExist))
		_, err = container.VethPeer(eth, container)
		Expect(err).To(MatchError(fs.ErrNotExist))
		_, err = host.VethPeer(ifb, container)
		Expect(err).To(MatchError(fs.ErrNotExist))
	})

	It("finds the parent of an interface only in its namespace", func() {
		p.IP("link add link eth0 name mv0 type macvlan")
		mv, err := container.Link("mv0")
		Expect(err).NotTo(HaveOccurred())
		Expect(container.Parent(mv, container)).To(HaveField("Name", "eth0"))
		_, err = container.Parent(mv, host)
		Expect(err).To(MatchError(fs.ErrNotExist))
		n.Must(GinkgoTB(), "ip", "link", "add", "link", "veth0", "name", "mv1", "type", "macvlan")
		n.Must(GinkgoTB(), "ip", "link", "set", "mv1", "netns", p.Path())
		moved, err := container.Link("mv1")
		Expect(err).NotTo(HaveOccurred())
		Expect(container.Parent(moved, host)).To(HaveField("Name", "veth0"))
		_, err = container.Parent(moved, container)
		Expect(err).To(MatchError(fs.ErrNotExist))
		eth, err := container.Link("eth0")
		Expect(err).NotTo(HaveOccurred())
		_, err = container.Parent(eth, host)
		Expect(err).To(MatchError(ContainSubstring("find the parent of eth0")))
	})

	It("finds no other end in another namespace if both ends are in the same one", func() {
		lone := connect(nstest.New(GinkgoTB()), tracer)
		inner, _, err := lone.AddVeth(&u, nl.Veth{Name: "in0", Peer: "in1", PeerIn: lone})
		Expect(err).NotTo(HaveOccurred())
		Expect(lone.VethPeer(inner, lone)).To(HaveField("Name", "in1"))
		// No link connects the two namespaces. Therefore neither has an nsid for the other.
		_, err = lone.VethPeer(inner, host)
		Expect(err).To(MatchError(fs.ErrNotExist))
		Expect(err).To(MatchError(ContainSubstring("find the other end of in0")))
	})
})
