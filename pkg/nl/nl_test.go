package nl_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// connect opens a connection to a namespace of the test. The tracer can let steps fail.
func connect(n *nstest.NS, t *trace.Tracer) *nl.Conn {
	GinkgoHelper()
	c, err := nl.Open(n.Open(GinkgoTB(), t))
	Expect(err).NotTo(HaveOccurred())
	return c
}

func prefixes(addrs []nl.Addr) []string {
	var out []string
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			out = append(out, a.Prefix.String())
		}
	}
	return out
}

var _ = Describe("rtnetlink", func() {
	var hostNS, containerNS *nstest.NS
	var host, container *nl.Conn
	var tracer *trace.Tracer
	var u undo.Stack

	BeforeEach(func() {
		hostNS, containerNS = nstest.NewHostAndContainer(GinkgoTB())
		tracer = &trace.Tracer{}
		host, container = connect(hostNS, tracer), connect(containerNS, tracer)
		u = undo.Stack{}
	})

	pair := func() (near, far nl.Link) {
		GinkgoHelper()
		near, far, err := host.AddVeth(&u, nl.Veth{Name: "veth0", Peer: "eth0", PeerIn: container, MTU: 1400})
		Expect(err).NotTo(HaveOccurred())
		return near, far
	}

	It("creates a veth pair with one queue in each direction", func() {
		pair()
		for ns, name := range map[*nstest.NS]string{hostNS: "veth0", containerNS: "eth0"} {
			Expect(ns.Must(GinkgoTB(), "ip", "-d", "link", "show", name)).To(ContainSubstring("numtxqueues 1 numrxqueues 1 "))
		}
	})

	It("returns from DeleteLinkAsync when the link is gone, and from wait when the kernel has cleaned up", func() {
		near, _ := pair()
		wait, err := host.DeleteLinkAsync(near)
		Expect(err).NotTo(HaveOccurred())
		Expect(hostNS.Must(GinkgoTB(), "ip", "-br", "link")).NotTo(ContainSubstring("veth0"))
		Expect(containerNS.Must(GinkgoTB(), "ip", "-br", "link")).NotTo(ContainSubstring("eth0"))
		Expect(wait()).To(Succeed())
		_, err = host.Link("veth0")
		Expect(err).To(MatchError(fs.ErrNotExist))
		By("returning the error of a link that cannot be deleted")
		tracer.Before = func(step string) error {
			if step == "delete link veth0" {
				return unix.EBUSY
			}
			return nil
		}
		near, _ = pair()
		wait, err = host.DeleteLinkAsync(near)
		Expect(err).To(MatchError(unix.EBUSY))
		Expect(wait()).To(Succeed())
		tracer.Before = nil
	})

	It("returns fs.ErrExist for an existing name, and does not delete the link with that name", func() {
		pair()
		var second undo.Stack
		_, _, err := host.AddVeth(&second, nl.Veth{Name: "veth1", Peer: "eth0", PeerIn: container})
		Expect(err).To(MatchError(fs.ErrExist))
		_, _, err = host.AddVeth(&second, nl.Veth{Name: "veth0", Peer: "eth1", PeerIn: container})
		Expect(err).To(MatchError(fs.ErrExist))
		Expect(second.Len()).To(BeZero())
		_, err = container.Link("eth0")
		Expect(err).NotTo(HaveOccurred())
	})

	It("adds addresses and routes to an interface", func() {
		near, far := pair()
		Expect(host.SetUp(near)).To(Succeed())
		Expect(container.AddAddr(far, nl.Addr{Prefix: netip.MustParsePrefix("10.1.2.3/24"), NoPrefixRoute: true})).To(Succeed())
		Expect(container.AddAddr(far, nl.Addr{Prefix: netip.MustParsePrefix("fd00::3/64"), NoDAD: true})).To(Succeed())
		Expect(container.SetUp(far)).To(Succeed())
		for _, r := range []nl.Route{
			{Dst: netip.MustParsePrefix("10.1.2.1/32"), Scope: nl.ScopeLink, Src: netip.MustParseAddr("10.1.2.3")},
			{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.1.2.1"), MTU: 1300, AdvMSS: 1200, Priority: 7},
			{Dst: netip.MustParsePrefix("2001:db8::/32"), GW: netip.MustParseAddr("fd00::1"), Table: 100},
		} {
			Expect(container.AddRoute(far, r)).To(Succeed())
			Expect(container.AddRoute(far, r)).To(MatchError(fs.ErrExist))
		}
		addrs, err := container.Addrs(far)
		Expect(err).NotTo(HaveOccurred())
		Expect(prefixes(addrs)).To(Equal([]string{"10.1.2.3/24", "fd00::3/64"}))
		Expect([]netip.Addr{addrs[0].Broadcast, addrs[1].Broadcast}).To(Equal([]netip.Addr{netip.MustParseAddr("10.1.2.255"), {}}))
		Expect(containerNS.Must(GinkgoTB(), "ip", "-4", "addr", "show", "eth0")).To(ContainSubstring("brd 10.1.2.255"))
		text := containerNS.Must(GinkgoTB(), "ip", "route")
		Expect(text).To(ContainSubstring("default via 10.1.2.1 dev eth0 metric 7 mtu 1300 advmss 1200"))
		Expect(text).To(ContainSubstring("10.1.2.1 dev eth0 scope link src 10.1.2.3"))
		Expect(text).NotTo(ContainSubstring("10.1.2.0/24"))
		routes, err := container.Routes(far)
		Expect(err).NotTo(HaveOccurred())
		Expect(routes).To(ContainElements(
			nl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.1.2.1"), MTU: 1300, AdvMSS: 1200, Priority: 7, Table: 254},
			HaveField("Table", 100),
		))
		index, err := container.DefaultDevice()
		Expect(err).NotTo(HaveOccurred())
		Expect(index).To(Equal(far.Index))
	})

	It("adds the broadcast address that Addrs returned, or none", func() {
		_, far := pair()
		for _, args := range []string{"10.1.2.3/24", "10.1.2.3/24 brd 10.1.2.0", "10.1.2.3/24 brd +", "10.1.2.3/32"} {
			containerNS.Batch(GinkgoTB(), "addr add "+args+" dev eth0")
			before := containerNS.Must(GinkgoTB(), "ip", "-4", "addr", "show", "eth0")
			addrs, err := container.Addrs(far)
			Expect(err).NotTo(HaveOccurred())
			Expect(container.DeleteAddr(far, addrs[0].Prefix)).To(Succeed())
			Expect(container.AddAddr(far, addrs[0])).To(Succeed())
			Expect(containerNS.Must(GinkgoTB(), "ip", "-4", "addr", "show", "eth0")).To(Equal(before), args)
			Expect(container.DeleteAddr(far, addrs[0].Prefix)).To(Succeed())
		}
	})

	Describe("the link of the default route", func() {
		var steps []string
		var near nl.Link

		BeforeEach(func() {
			var far nl.Link
			near, far = pair()
			Expect(container.SetUp(far)).To(Succeed())
			hostNS.Batch(GinkgoTB(), "link set veth0 up", "addr add 10.1.2.1/24 dev veth0", "addr add fd00::1/64 dev veth0 nodad",
				"link add other type veth peer name rehto", "link set other up", "link set rehto up", "addr add 10.3.0.1/24 dev other")
			steps = nil
			tracer.Before = func(step string) error { steps = append(steps, step); return nil }
		})

		DescribeTable("is found",
			func(listed bool, setup ...string) {
				for _, args := range setup {
					hostNS.Must(GinkgoTB(), "ip", strings.Fields(args)...)
				}
				Expect(host.DefaultDevice()).To(Equal(near.Index))
				Expect(slices.Contains(steps, "list default routes")).To(Equal(listed), "%q", steps)
			},
			Entry("by one request", false, "route add default via 10.1.2.2"),
			Entry("by one request, IPv4 first", false, "-6 route add default dev other metric 1", "route add default via 10.1.2.2"),
			Entry("that has the lowest metric", false, "route add default dev other metric 200", "route add default via 10.1.2.2 metric 100"),
			Entry("of several next hops", false, "route add default nexthop via 10.1.2.2 nexthop via 10.3.0.2"),
			Entry("of IPv6, if there is none of IPv4", true, "-6 route add default via fd00::2"),
			Entry("if a policy rule selects another table", true, "route add default via 10.1.2.2", "route add default dev other table 100", "rule add to 240.0.0.0/4 table 100"),
			Entry("if a route with a longer prefix exists", true, "route add default via 10.1.2.2", "route add 240.0.0.0/4 dev other"),
			Entry("if a rule prohibits the address", true, "route add default via 10.1.2.2", "rule add prohibit to 240.0.0.0/4"),
		)

		It("does not exist without a default route in the main table", func() {
			hostNS.Must(GinkgoTB(), "ip", "route", "add", "default", "dev", "other", "table", "100")
			hostNS.Must(GinkgoTB(), "ip", "rule", "add", "table", "100")
			hostNS.Must(GinkgoTB(), "ip", "route", "add", "unreachable", "default", "metric", "9999")
			Expect(host.DefaultDevice()).To(BeZero())
		})

		DescribeTable("is an uplink, with the links below it",
			func(want []string, setup ...string) {
				hostNS.Batch(GinkgoTB(), setup...)
				uplinks, err := host.Uplinks()
				Expect(err).NotTo(HaveOccurred())
				var names []string
				for _, l := range uplinks {
					names = append(names, l.Name)
				}
				Expect(names).To(ConsistOf(want))
			},
			Entry("of the first route of the main table", []string{"veth0"}, "route add default via 10.1.2.2", "route add default dev other metric 200"),
			Entry("of each family", []string{"veth0", "other"}, "route add default via 10.1.2.2", "route add ::/0 dev other"),
			Entry("of each next hop", []string{"veth0", "other"}, "route add default nexthop via 10.1.2.2 nexthop via 10.3.0.2"),
			Entry("of another table, which a policy rule selects", []string{"veth0"}, "route add default via 10.1.2.2 table 100", "rule add table 100"),
			Entry("of the main table and of another table", []string{"veth0", "other"}, "route add default via 10.1.2.2", "route add default dev other table 100", "rule add not fwmark 5 table 100"),
			Entry("but not of a table for only one source address", []string{"veth0"}, "route add default via 10.1.2.2", "route add default dev other table 100", "rule add from 10.3.0.1 table 100"),
			Entry("of two routes that replace the default route", []string{"veth0", "other"}, "route add default via 10.1.2.2", "route add 0.0.0.0/1 dev other", "route add 128.0.0.0/1 dev other"),
			Entry("but not of a longer prefix", []string{"veth0"}, "route add default via 10.1.2.2", "route add 240.0.0.0/4 dev other"),
			Entry("that is a macvlan", []string{"mv0", "veth0"}, "link add mv0 link veth0 type macvlan", "link set mv0 up", "route add default dev mv0"),
			Entry("that is a bridge", []string{"br0", "other"}, "link add br0 type bridge", "link set other master br0", "link set br0 up", "route add default dev br0"),
			Entry("that is a bridge with a macvlan as its port", []string{"br0", "mv0", "veth0"},
				"link add br0 type bridge", "link add mv0 link veth0 type macvlan", "link set mv0 master br0", "link set br0 up", "route add default dev br0"),
			Entry("none", nil, "route add 192.0.2.0/24 via 10.1.2.2"),
		)

		It("is an advertised uplink if the route came from a router advertisement", func() {
			hostNS.Must(GinkgoTB(), "ip", "-6", "route", "add", "default", "dev", "other", "metric", "1")
			hostNS.Must(GinkgoTB(), "ip", "-6", "route", "add", "2001:db8::/64", "dev", "other", "proto", "ra")
			hostNS.Must(GinkgoTB(), "ip", "-6", "route", "add", "default", "via", "fd00::2", "proto", "ra", "metric", "5")
			Expect(host.AdvertisedUplinks()).To(ConsistOf(HaveField("Name", "veth0")))
		})
	})

	It("lists many addresses", func() {
		_, far := pair()
		for i := range 1000 {
			prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 32)
			Expect(container.AddAddr(far, nl.Addr{Prefix: prefix})).To(Succeed())
		}
		addrs, err := container.Addrs(far)
		Expect(err).NotTo(HaveOccurred())
		Expect(len(prefixes(addrs))).To(Equal(1000))
	})

	It("waits for duplicate address detection of permanent addresses, but not of an address from a router advertisement", func() {
		near, far := pair()
		Expect(host.SetUp(near)).To(Succeed())
		probes := "net/ipv6/conf/" + far.Name + "/dad_transmits"
		containerNS.SetSysctl(GinkgoTB(), probes, "0")
		Expect(container.SetUp(far)).To(Succeed())
		Expect(container.AwaitUsable(far, time.Minute)).To(Succeed())
		containerNS.SetSysctl(GinkgoTB(), probes, "100")
		containerNS.Must(GinkgoTB(), "ip", "address", "add", "fd00::7/64", "dev", far.Name, "valid_lft", "900", "preferred_lft", "900")
		Expect(container.AwaitUsable(far, time.Nanosecond)).To(Succeed())
		containerNS.Must(GinkgoTB(), "ip", "address", "add", "fd00::8/64", "dev", far.Name)
		Expect(container.AwaitUsable(far, time.Nanosecond)).To(MatchError(os.ErrDeadlineExceeded))
	})

	It("lists the gateways of the routes that share the load of a destination", func() {
		near, far := pair()
		Expect(host.SetUp(near)).To(Succeed())
		dst := netip.MustParsePrefix("2001:db8::/32")
		first, second := nl.Route{Dst: dst, GW: netip.MustParseAddr("fd00::1")}, nl.Route{Dst: dst, GW: netip.MustParseAddr("fd00::2")}
		Expect(container.AddAddr(far, nl.Addr{Prefix: netip.MustParsePrefix("fd00::3/64"), NoDAD: true})).To(Succeed())
		Expect(container.SetUp(far)).To(Succeed())
		Expect(container.AddRoute(far, first)).To(Succeed())
		Expect(container.AddRoute(far, second)).To(Succeed())
		Expect(containerNS.Must(GinkgoTB(), "ip", "-6", "route", "show", dst.String())).To(ContainSubstring("nexthop via fd00::2"))
		routes, err := container.Routes(far)
		Expect(err).NotTo(HaveOccurred())
		multipath := nl.Route{Dst: dst, GW: first.GW, GWs: []netip.Addr{first.GW, second.GW}}
		Expect(routes).To(ContainElement(And(Satisfy(multipath.Same), Satisfy(first.Matches), Satisfy(second.Matches), Satisfy(multipath.Matches))))
		containerNS.Must(GinkgoTB(), "ip", "-6", "route", "del", dst.String(), "via", "fd00::1")
		routes, err = container.Routes(far)
		Expect(err).NotTo(HaveOccurred())
		Expect(routes).NotTo(ContainElement(Satisfy(first.Matches)))
		Expect(routes).To(ContainElement(And(Satisfy(second.Matches), Not(Satisfy(multipath.Matches)))))
	})

	DescribeTable("adds and lists a route with several gateways, and refuses to add it twice", func(address, dst string, gws ...string) {
		near, far := pair()
		Expect(host.SetUp(near)).To(Succeed())
		Expect(container.AddAddr(far, nl.Addr{Prefix: netip.MustParsePrefix(address), NoDAD: true})).To(Succeed())
		Expect(container.SetUp(far)).To(Succeed())
		route := nl.Route{Dst: netip.MustParsePrefix(dst), Priority: 7, MTU: 1400}
		for _, gw := range gws {
			route.GWs = append(route.GWs, netip.MustParseAddr(gw))
		}
		route.GW = route.GWs[0]
		Expect(container.AddRoute(far, route)).To(Succeed())
		Expect(container.AddRoute(far, route)).To(MatchError(fs.ErrExist))
		routes, err := container.Routes(far)
		Expect(err).NotTo(HaveOccurred())
		Expect(routes).To(ContainElement(And(Satisfy(route.Same), Satisfy(route.Matches))))
		var u undo.Stack
		route.Priority++
		Expect(container.AddNewRoute(&u, far, route)).To(Succeed())
		Expect(container.AddNewRoute(&u, far, route)).To(MatchError(fs.ErrExist))
		Expect(u.Rollback()).To(Succeed())
		Expect(container.Routes(far)).To(Equal(routes))
		route.GWs = []netip.Addr{route.GW, route.GW.Next().Next()}
		Expect(routes).NotTo(ContainElement(Satisfy(route.Matches)))
	},
		Entry("of IPv4", "10.1.2.3/24", "10.9.0.0/16", "10.1.2.7", "10.1.2.8"),
		Entry("of IPv6", "fd00::3/64", "2001:db8::/32", "fd00::8", "fd00::7"),
	)

	It("returns an error with the kernel's message", func() {
		_, far := pair()
		Expect(container.SetUp(far)).To(Succeed())
		err := container.AddRoute(far, nl.Route{Dst: netip.MustParsePrefix("10.9.0.0/16"), GW: netip.MustParseAddr("10.1.2.1")})
		Expect(err).To(MatchError(ContainSubstring("add route 10.9.0.0/16 via 10.1.2.1 to eth0: network is unreachable (Nexthop has invalid gateway)")))
		Expect(errors.Is(err, unix.ENETUNREACH)).To(BeTrue())
	})

	It("returns from AwaitRunning when the other end is up, or an error with the state", func() {
		near, far := pair()
		Expect(host.SetUp(near)).To(Succeed())
		err := host.AwaitRunning(near, 50*time.Millisecond)
		Expect(err).To(MatchError(os.ErrDeadlineExceeded))
		Expect(err).To(MatchError(ContainSubstring("its state is ")))
		Expect(container.SetUp(far)).To(Succeed())
		Expect(host.AwaitRunning(near, 5*time.Second)).To(Succeed())
	})

	It("lists links of a kind by the kernel's name of the kind", func() {
		nstest.RequireTaps(GinkgoTB())
		near, _ := pair()
		hostNS.Must(GinkgoTB(), "ip", "tuntap", "add", "tap0", "mode", "tap")
		hostNS.Must(GinkgoTB(), "ip", "link", "property", "add", "dev", "tap0", "altname", "other0")
		tap := And(HaveField("Name", "tap0"), HaveField("Kind", "tun"))
		Expect(host.LinksOfKind("tun")).To(ConsistOf(tap))
		Expect(host.LinksOfKind("veth")).To(ConsistOf(HaveField("Index", near.Index)))
		Expect(host.LinksOfKind("none")).To(BeEmpty())
		By("and finds a link by its alternative name")
		Expect(host.LinkByAnyName("other0")).To(tap)
	})
})
