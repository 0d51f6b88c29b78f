package nl_test

import (
	"net/netip"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("rules and tables", func() {
	var container *nstest.NS
	var c *nl.Conn
	var l nl.Link
	var u undo.Stack

	BeforeEach(func() {
		var host *nstest.NS
		host, container = nstest.NewHostAndContainer(GinkgoTB())
		nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "eth0", Addrs: []string{"10.1.0.2/24", "fd01::2/64"}}, nstest.End{In: host, Name: "veth0"})
		nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "eth1", Addrs: []string{"10.2.0.2/24", "fd02::2/64"}}, nstest.End{In: host, Name: "veth1"})
		c = connect(container, &trace.Tracer{})
		var err error
		l, err = c.Link("eth0")
		Expect(err).NotTo(HaveOccurred())
		u = undo.Stack{}
	})

	It("adds, lists, deletes and undoes rules of both families", func() {
		before := nstest.Snapshot(GinkgoTB(), container)
		rules := []nl.Rule{
			{Source: netip.MustParseAddr("10.1.0.2"), Table: 100, Priority: 32765, Protocol: 112},
			{Source: netip.MustParseAddr("fd01::2"), Table: 5000, Priority: 7, Protocol: 113},
		}
		for _, r := range rules {
			Expect(c.EnsureRule(&u, r)).To(Succeed())
			Expect(c.EnsureRule(&u, r)).To(Succeed())
		}
		Expect(u.Len()).To(Equal(len(rules)))
		container.Batch(GinkgoTB(), "rule add from 10.9.0.9 to 10.8.0.0/16 lookup 9", "rule add from 10.9.0.9 iif lo lookup 9", "rule add from 10.9.0.9 fwmark 3 lookup 9",
			"rule add from 10.9.0.0/16 lookup 9", "rule add from 10.9.0.9 goto 40000", "rule add not from 10.9.0.9 lookup 9", "rule add from 10.9.0.9 ipproto tcp dport 80 lookup 9")
		Expect(c.SourceRules()).To(Equal(rules))
		container.Must(GinkgoTB(), "ip", "-4", "rule", "flush")
		container.Batch(GinkgoTB(), "rule add lookup main priority 32766", "rule add lookup default priority 32767")
		Expect(c.DeleteRule(rules[0])).To(Succeed(), "the rule does not exist")
		Expect(u.Rollback()).To(Succeed())
		Expect(c.SourceRules()).To(BeEmpty())
		Expect(nstest.Snapshot(GinkgoTB(), container)).To(HaveLen(len(before)))
	})

	It("adds, lists, deletes and undoes rules for packets from an interface", func() {
		before := nstest.Snapshot(GinkgoTB(), container)
		rules := []nl.InputRule{
			{Interface: "eth0", Table: 6, Priority: 300},
			{Interface: "lo", Source: netip.MustParseAddr("10.1.0.2"), Table: 5000, Priority: 301},
			{Interface: "gone0", IPv6: true, Table: 6, Priority: 300},
			{Interface: "lo", IPv6: true, Table: 7, Priority: 301},
		}
		for _, r := range rules {
			Expect(c.EnsureInputRule(&u, r)).To(Succeed())
			Expect(c.EnsureInputRule(&u, r)).To(Succeed())
		}
		Expect(u.Len()).To(Equal(len(rules)))
		Expect(container.IP("-4 rule")).To(ContainSubstring("from all iif eth0 lookup 6"))
		Expect(c.InputRules()).To(Equal(rules))
		Expect(c.DeleteInputRule(rules[0])).To(Succeed())
		Expect(c.DeleteInputRule(rules[0])).To(Succeed(), "the rule does not exist")
		Expect(u.Rollback()).To(Succeed())
		Expect(nstest.Snapshot(GinkgoTB(), container)).To(Equal(before))
	})

	It("finds the tables that no rule and no route of any family uses", func() {
		container.Batch(GinkgoTB(), "rule add from 10.9.0.0/16 lookup 250", "route add 10.8.0.0/16 dev eth1 table 251", "route add fd08::/64 dev eth1 table 256")
		Expect(c.FreeTables(3, 249)).To(Equal([]int{249, 252, 257}))
	})

	It("moves routes to another table and back without change", func() {
		container.Batch(GinkgoTB(), "route add 192.0.2.0/24 via 10.1.0.3 mtu lock 1300 proto static metric 7 initcwnd 20", "route add 198.51.100.0/24 nexthop via 10.1.0.4 weight 3 nexthop via 10.1.0.5",
			"route add 203.0.113.0/24 via 192.0.2.77 dev eth0 onlink", "route add default via 10.1.0.1 table 400",
			"route add 198.51.100.0/25 nexthop via 10.1.0.4 nexthop via 10.2.0.4") // also through another link, so that it stays
		for _, via := range []string{"fd01::3", "fd01::4", "fd02::3"} {
			container.Must(GinkgoTB(), "ip", "-6", "route", "append", "default", "via", via)
		}
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), container) })
		routes, err := c.FullRoutes(l)
		Expect(err).NotTo(HaveOccurred())
		routes = slices.DeleteFunc(routes, func(r nl.FullRoute) bool { return r.Dst.Addr().IsLinkLocalUnicast() })
		for _, r := range routes {
			Expect(c.EnsureFullRoute(&u, r.WithTable(r.Table+1000))).To(Succeed())
			Expect(c.EnsureFullRoute(&u, r.WithTable(r.Table+1000))).To(Succeed())
		}
		Expect(u.Len()).To(Equal(len(routes)))
		for _, r := range routes {
			Expect(c.DeleteFullRoute(r)).To(Succeed())
			Expect(c.DeleteFullRoute(r)).To(Succeed())
		}
		Expect(container.Must(GinkgoTB(), "ip", "-4", "route", "show", "dev", "eth0")).To(BeEmpty())
		Expect(container.Must(GinkgoTB(), "ip", "-6", "route", "show", "default")).To(ContainSubstring("fd02::3 dev eth1"))
		for _, r := range routes {
			Expect(c.EnsureFullRoute(&undo.Stack{}, r)).To(Succeed())
		}
		Expect(u.Rollback()).To(Succeed())
		Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), container) })).To(BeEmpty())
	})
})
