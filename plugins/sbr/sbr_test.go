package main

import (
	"strings"
	"sync"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("ADD", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("gives each IP a rule and a table with the routes of its family, and DEL restores the main table", func() {
		restored := b.Restored(b.container)
		c := b.call(conf("", net1Prev))
		Expect(b.Add(c).IPs).To(HaveLen(2))

		Expect(b.rules("-4")).To(Equal([]string{"32765:\tfrom 10.66.0.2 lookup 100 proto 113"}))
		Expect(b.rules("-6")).To(Equal([]string{"32765:\tfrom fd66::2 lookup 101 proto 113"}))
		Expect(b.container.IP("-4 route show table 100")).To(Equal("default via 10.66.0.1 dev net1 metric 100\n" +
			"10.66.0.0/24 dev net1 proto kernel scope link src 10.66.0.2\n10.66.0.2 dev net1 proto 113 scope link\n172.31.0.0/16 via 10.66.0.9 dev net1"))
		Expect(b.container.IP("-6 route show table 101")).To(Equal("fd66::2 dev net1 proto 113 metric 1024 pref medium\nfd66::/64 dev net1 proto kernel metric 256 pref medium\ndefault via fd66::1 dev net1 metric 1024 pref medium"))
		Expect(b.container.IP("-4 route show table all")).NotTo(ContainSubstring("table 101"))
		Expect(b.container.IP("-6 route show table all")).NotTo(ContainSubstring("table 100"))
		By("not changing other interfaces and link-local routes")
		Expect(b.container.IP("-4 route")).To(Equal("default via 10.77.0.1 dev eth0\n10.77.0.0/24 dev eth0 proto kernel scope link src 10.77.0.2"))
		Expect(b.container.IP("-6 route show dev net1")).To(Equal("fe80::/64 proto kernel metric 256 pref medium"))

		b.OK("CHECK", c)
		b.OK("DEL", c)
		restored()
		b.OK("DEL", c)
		restored()
	})

	It("sends packets from an IP through its interface, and other packets by the main table", func() {
		b.container.Batch(GinkgoTB(), "route del default via 10.66.0.1")
		b.second.Batch(GinkgoTB(), "addr add 203.0.113.5/32 dev lo", "route replace 10.66.0.0/24 dev r1 src 203.0.113.5")
		b.first.Batch(GinkgoTB(), "addr add 203.0.113.9/32 dev lo")
		nstest.ServeTCP(GinkgoTB(), b.container, "10.66.0.2:80")
		nstest.ServeTCP(GinkgoTB(), b.first, "203.0.113.9:80")
		_, err := nstest.Dial(b.second, "10.66.0.2:80")
		Expect(err).To(HaveOccurred(), "without sbr the answer leaves through eth0")
		b.Add(b.call(conf("", net1Prev)))
		nstest.MustDial(GinkgoTB(), b.second, "10.66.0.2:80", "203.0.113.5")
		nstest.MustDial(GinkgoTB(), b.container, "203.0.113.9:80", "10.77.0.2")
		By("and through an IPv6 gateway with a link-local address")
		b.second.Batch(GinkgoTB(), "addr add fe80::1/64 dev r1 nodad", "addr add 2001:db8::5/128 dev r1 nodad")
		b.second.Must(GinkgoTB(), "ip", "-6", "route", "add", "fd66::2", "dev", "r1", "src", "2001:db8::5")
		b.OK("DEL", b.call(conf("", net1Prev)))
		b.container.Batch(GinkgoTB(), "route del default via fd66::1")
		b.Add(b.call(conf(`"gateways":["fe80::1"]`, net1Prev)))
		nstest.ServeTCP(GinkgoTB(), b.container, "[fd66::2]:80")
		nstest.MustDial(GinkgoTB(), b.second, "[fd66::2]:80", "2001:db8::5")
	})

	DescribeTable("prefers gateways to the default routes of the main table, which DEL restores", func(lines ...string) {
		b.container.Batch(GinkgoTB(), lines...)
		b.Lifecycle(b.call(conf(`"gateways":["10.66.0.254","fd66::254"]`, net1Prev)), func() {
			Expect(b.container.IP("route get 198.51.100.1 from 10.66.0.2")).To(ContainSubstring("via 10.66.0.254 "))
			Expect(b.container.IP("route get 2001:db8:99::1 from fd66::2")).To(ContainSubstring("via fd66::254 "))
		})
	},
		Entry("of a higher metric"),
		Entry("of the same metric", "route del default via 10.77.0.1", "route replace default via 10.66.0.1 metric 0"),
	)

	DescribeTable("finds the gateway if the main table has no default route",
		func(prev string, routes string, want string) {
			b.container.Batch(GinkgoTB(), "route del default via 10.66.0.1", "route del default via fd66::1")
			b.Add(b.call(strings.Replace(conf("", prev), `"ips":`, `"routes":[`+routes+`],"ips":`, 1)))
			Expect(b.container.IP("-4 route show table 100 default")).To(Equal(want))
		},
		Entry("in the IP", `{"address":"10.66.0.2/24","gateway":"10.66.0.1"}`, ``, "default via 10.66.0.1 dev net1 proto 112"),
		Entry("in a default route of prevResult", `{"address":"10.66.0.2/24"}`, `{"dst":"0.0.0.0/0","gw":"10.66.0.254"}`, "default via 10.66.0.254 dev net1 proto 112"),
		Entry("nowhere", `{"address":"10.66.0.2/24"}`, ``, ""),
	)

	It("gives each of several IPs a table with the routes of its subnet", func() {
		b.container.Batch(GinkgoTB(), "addr add 10.67.0.2/24 dev net1", "route add 192.0.2.0/24 via 10.67.0.1", "route add 198.51.100.7 dev net1")
		b.Lifecycle(b.call(conf("", `{"address":"10.66.0.2/24"},{"address":"10.67.0.2/24","gateway":"10.67.0.1"}`)), func() {
			Expect(b.table("-4", 100)).To(Equal("default via 10.66.0.1 dev net1 metric 100\n" +
				"10.66.0.0/24 dev net1 proto kernel scope link src 10.66.0.2\n172.31.0.0/16 via 10.66.0.9 dev net1\n198.51.100.7 dev net1 scope link"))
			Expect(b.table("-4", 101)).To(Equal("default via 10.67.0.1 dev net1 proto 112\n" +
				"10.67.0.0/24 dev net1 proto kernel scope link src 10.67.0.2\n192.0.2.0/24 via 10.67.0.1 dev net1\n198.51.100.7 dev net1 scope link"))
		})
	})

	It("supports addresses without a route to their subnet, as ptp adds them", func() {
		b.container.Batch(GinkgoTB(), "addr flush dev net1", "addr add 10.66.0.2/24 dev net1 noprefixroute", "route add 10.66.0.1 dev net1", "route add 10.66.0.0/24 via 10.66.0.1")
		b.Lifecycle(b.call(conf("", `{"address":"10.66.0.2/24","gateway":"10.66.0.1"}`)), func() {
			Expect(b.table("-4", 100)).To(Equal("default via 10.66.0.1 dev net1 proto 112\n10.66.0.0/24 via 10.66.0.1 dev net1\n10.66.0.1 dev net1 scope link"))
		})
	})

	It("restores all attributes of the routes", func() {
		b.container.Batch(GinkgoTB(), "route add 192.0.2.0/24 via 10.66.0.3 mtu lock 1300 advmss 1200 proto static metric 7 initcwnd 20",
			"route add 198.51.100.0/24 nexthop via 10.66.0.4 weight 3 nexthop via 10.66.0.5", "route add 203.0.113.0/24 via 192.0.2.77 dev net1 onlink",
			"route add 2001:db8:1::/48 via fd66::3 mtu 1300 proto static", "route append 2001:db8:1::/48 via fd66::4 mtu 1300 proto static")
		restored := b.Restored(b.container)
		c := b.call(conf("", net1Prev))
		b.Add(c)
		Expect(b.container.IP("-4 route show dev net1")).To(BeEmpty())
		Expect(b.table("-6", 101)).To(ContainSubstring("via fd66::4"))
		b.OK("DEL", c)
		restored()
	})

	DescribeTable("keeps routes in the main table", func(keys, want4, want6 string) {
		restored := b.Restored(b.container)
		c := b.call(conf(keys, net1Prev))
		b.Add(c)
		Expect(b.container.IP("-4 route show dev net1")).To(Equal(want4))
		Expect(b.container.IP("-6 route show dev net1")).To(Equal(want6))
		Expect(b.table("-4", 100)).To(ContainSubstring("172.31.0.0/16 via 10.66.0.9"))
		again := b.Restored(b.container)
		b.Add(c)
		again() // a second ADD changes nothing
		b.OK("CHECK", c)
		b.OK("DEL", c)
		restored()
	},
		Entry("with gateways", `"gateways":["10.66.0.254","fd66::254"]`, "", "fe80::/64 proto kernel metric 256 pref medium"),
		Entry("none", `"keepMain":"none"`, "", "fe80::/64 proto kernel metric 256 pref medium"),
		Entry("the routes to the subnets", `"keepMain":"subnet"`, "10.66.0.0/24 proto 112 scope link src 10.66.0.2",
			"fd66::/64 proto 112 src fd66::2 metric 1024 pref medium\nfe80::/64 proto kernel metric 256 pref medium"),
		Entry("the routes to the subnets, with the reference plugin's key", `"addSourceHints":true`, "10.66.0.0/24 proto 112 scope link src 10.66.0.2",
			"fd66::/64 proto 112 src fd66::2 metric 1024 pref medium\nfe80::/64 proto kernel metric 256 pref medium"),
		Entry("all", `"keepMain":"all"`, "default via 10.66.0.1 metric 100\n10.66.0.0/24 proto kernel scope link src 10.66.0.2\n172.31.0.0/16 via 10.66.0.9",
			"fd66::/64 proto kernel metric 256 pref medium\nfe80::/64 proto kernel metric 256 pref medium\ndefault via fd66::1 metric 1024 pref medium"),
	)

	It("adds only rules if table is configured", func() {
		b.container.Batch(GinkgoTB(), "route add default via 10.66.0.254 table 5000")
		restored := b.Restored(b.container)
		c := b.call(conf(`"table":5000`, net1Prev))
		b.Add(c)
		Expect(b.rules("-4")).To(Equal([]string{"32765:\tfrom 10.66.0.2 lookup 5000 proto 112"}))
		Expect(b.rules("-6")).To(Equal([]string{"32765:\tfrom fd66::2 lookup 5000 proto 112"}))
		Expect(b.container.IP("route get 198.51.100.1 from 10.66.0.2")).To(ContainSubstring("via 10.66.0.254 "))
		b.Add(c)
		b.OK("CHECK", c)
		other := c
		other.Config = conf(`"table":5001`, net1Prev)
		Expect(b.Run("CHECK", other).Failure(GinkgoTB()).Msg).To(ContainSubstring("the rule from 10.66.0.2 looks up table 5000, want 5001"))
		By("which DEL deletes without the key")
		c.Config = conf("", net1Prev)
		b.OK("DEL", c)
		restored()
	})

	It("does not choose a table that is in use", func() {
		b.container.Batch(GinkgoTB(), "rule add from 192.0.2.9 lookup 100", "route add 192.0.2.0/24 via 10.77.0.9 table 101")
		b.Add(b.call(conf("", net1Prev)))
		Expect(b.rules("-4")).To(ContainElement(ContainSubstring("from 10.66.0.2 lookup 102")))
		b.Add(b.callFor("eth0", confOf("1.1.0", "eth0", "", eth0Prev)))
		Expect(b.rules("-4")).To(ContainElement(ContainSubstring("from 10.77.0.2 lookup 104")))
	})

	It("supports interfaces with overlapping subnets, and DELs in any order restore the main table", func() {
		for _, second := range []string{"eth0", "net1"} {
			b := newTestbed()
			b.Sorted = true // because the DELs add the routes in their order
			b.container.Batch(GinkgoTB(), "addr add 10.66.0.3/24 dev eth0")
			restored := b.Restored(b.container)
			calls := map[string]nstest.Call{"net1": b.call(conf("", net1Prev)), "eth0": b.callFor("eth0", confOf("1.1.0", "eth0", "", eth0Prev+`,{"address":"10.66.0.3/24"}`))}
			for _, c := range calls {
				b.Add(c)
			}
			Expect(b.container.IP("route get 10.66.0.9 from 10.66.0.2")).To(ContainSubstring("dev net1"))
			Expect(b.container.IP("route get 10.66.0.9 from 10.66.0.3")).To(ContainSubstring("dev eth0"))
			for name, c := range calls {
				if name != second {
					b.OK("DEL", c)
					b.OK("CHECK", calls[second])
				}
			}
			b.OK("DEL", calls[second])
			restored()
		}
	})

	It("chooses different tables for interfaces that are attached at the same time", func() {
		b.container.Batch(GinkgoTB(), "addr add 10.78.0.2/24 dev eth0")
		calls := []nstest.Call{b.call(conf("", net1Prev)), b.callFor("eth0", confOf("1.1.0", "eth0", "", eth0Prev+`,{"address":"10.78.0.2/24"}`))}
		By("starting the second ADD after the first one has chosen its tables")
		waits, done := make(chan struct{}), make(chan nstest.Reply, 1)
		calls[1].Before = func(step string) error {
			if strings.HasPrefix(step, "wait for another call for the container") {
				close(waits)
			}
			return nil
		}
		var once sync.Once
		calls[0].Before = func(step string) error {
			if strings.HasPrefix(step, "add rule") {
				once.Do(func() {
					go func() { done <- b.Run("ADD", calls[1]) }()
					select {
					case <-waits:
					case reply := <-done:
						done <- reply
					}
				})
			}
			return nil
		}
		b.OK("ADD", calls[0])
		reply := <-done
		reply.OK(GinkgoTB())
		tables := map[string]bool{}
		for _, rule := range append(b.rules("-4"), b.rules("-6")...) {
			tables[strings.Fields(rule)[4]] = true
		}
		Expect(tables).To(HaveLen(4))
	})

	It("fails if the container has no such interface", func() {
		b.Refuse(b.callFor("net2", confOf("1.1.0", "net2", "", net1Prev)), 7, "the container has no interface net2")
	})

	It("warns about keys that have no effect with table", func() {
		Expect(b.OK("ADD", b.call(conf(`"table":9,"keepMain":"all"`, net1Prev))).Stderr).To(ContainSubstring("keepMain have no effect"))
	})

	It("adds no route to an IP without a subnet, and keeps none in the main table", func() {
		b.container.Batch(GinkgoTB(), "addr add 10.66.0.7/32 dev net1")
		c := b.call(conf(`"keepMain":"subnet"`, `{"address":"10.66.0.7/32"}`))
		b.Add(c)
		Expect(b.container.IP("-4 route show 10.66.0.7")).To(BeEmpty())
		Expect(b.table("-4", 100)).NotTo(ContainSubstring("10.66.0.7"))
		b.OK("CHECK", c)
	})

	It("adds a missing route to a subnet", func() {
		b.container.Batch(GinkgoTB(), "route del 10.66.0.0/24 dev net1")
		c := b.call(conf("", `{"address":"10.66.0.2/24"}`))
		b.Add(c)
		Expect(b.table("-4", 100)).To(ContainSubstring("10.66.0.0/24 dev net1 proto 112 scope link"))
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(b.table("-4", 100)).To(BeEmpty())
	})

	It("warns about a gateway of a family without an IP", func() {
		reply := b.OK("ADD", b.call(conf(`"gateways":["10.66.0.254","fd66::254"]`, `{"address":"10.66.0.2/24"}`)))
		Expect(reply.Stderr).To(ContainSubstring("gateways: fd66::254 has no effect, because the interface has no IPv6 address"))
		Expect(reply.Stderr).NotTo(ContainSubstring("10.66.0.254"))
	})

	It("accepts the kernel's tables, as the reference plugin does, and DEL does not change their routes", func() {
		restored := b.Restored(b.container)
		for _, table := range []string{"253", "254", "255"} {
			c := b.call(conf(`"table":`+table, net1Prev))
			b.Add(c)
			b.OK("CHECK", c)
			b.OK("DEL", c)
			restored()
		}
	})

	It("leaves routes of router advertisements to the kernel, and uses their gateway", func() {
		b.container.Batch(GinkgoTB(), "route del default via fd66::1", "route add default via fe80::9 dev net1 proto ra metric 1024", "route add 2001:db8:5::/64 dev net1 expires 3000")
		restored := b.Restored(b.container)
		c := b.call(conf("", `{"address":"fd66::2/64"}`))
		b.Add(c)
		Expect(b.table("-6", 100)).To(Equal("fd66::/64 dev net1 proto kernel metric 256 pref medium\ndefault via fe80::9 dev net1 proto 112 metric 1024 pref medium"))
		Expect(b.container.IP("-6 route show dev net1")).To(And(ContainSubstring("default via fe80::9 proto ra"), ContainSubstring("2001:db8:5::/64")))
		b.OK("DEL", c)
		restored()
	})
})

var _ = Describe("DEL", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	DescribeTable("restores the main table", func(change func(*nstest.Call)) {
		restored := b.Restored(b.container)
		c := b.call(conf("", net1Prev))
		b.Add(c)
		change(&c)
		b.OK("DEL", c)
		restored()
	},
		Entry("without prevResult", func(c *nstest.Call) { c.Config = `{"cniVersion":"1.1.0","name":"net1","type":"sbr"}` }),
		Entry("with a configuration that ADD rejects", func(c *nstest.Call) {
			c.Config = `{"cniVersion":"9","name":"net1","type":"sbr","table":"x","gateways":7,"keepMain":[],"prevResult":3}`
		}),
		Entry("with a table that was configured after ADD", func(c *nstest.Call) { c.Config = conf(`"table":77`, net1Prev) }),
		Entry("after the rule of IPv4 was deleted", func(*nstest.Call) { b.container.IP("rule del from 10.66.0.2") }),
		Entry("after the rules of both families were deleted", func(*nstest.Call) {
			b.container.IP("rule del from 10.66.0.2")
			b.container.IP("-6 rule del from fd66::2")
		}),
	)

	It("succeeds without the container, and creates no file at the path", func() {
		path := GinkgoT().TempDir() + "/netns"
		for _, netns := range []string{"", path} {
			b.OK("DEL", nstest.Call{Host: b.Host, NetNS: netns, IfName: "net1", Config: conf("", net1Prev)})
		}
		Expect(path).NotTo(BeAnExistingFile())
	})

	DescribeTable("deletes everything and warns about rejected routes if an address was deleted", func(address, warning string) {
		b.container.Batch(GinkgoTB(), "addr add 10.67.0.2/24 dev net1") // with the last IPv4 address, the kernel deletes all IPv4 routes
		c := b.call(conf("", net1Prev))
		b.Add(c)
		b.container.Batch(GinkgoTB(), "addr del "+address+" dev net1")
		reply := b.OK("DEL", c)
		Expect(append(b.rules("-4"), b.rules("-6")...)).To(BeEmpty())
		Expect(b.table("-4", 100) + b.table("-6", 101)).To(BeEmpty())
		Expect(reply.Stderr).To(ContainSubstring(warning))
		b.OK("DEL", c)
	},
		Entry("of IPv4", "10.66.0.2/24", "the main table does not get route 172.31.0.0/16 via 10.66.0.9 back"),
		Entry("of IPv6", "fd66::2/64", "the main table does not get route ::/0 via fd66::1"),
	)

	DescribeTable("restores the main table after an ADD that was killed at any step", func(prepare ...string) {
		restored := b.Restored(b.container)
		c := b.call(conf(`"keepMain":"subnet"`, net1Prev))
		for steps, ended := 0, false; !ended; steps++ {
			if len(prepare) > 0 {
				b.Add(c)
				for _, change := range prepare {
					b.container.IP(change)
				}
			}
			killed, count := c, 0
			killed.Before = func(string) error { // the undo fails as well
				if count++; count > steps {
					return syscall.EPERM
				}
				return nil
			}
			b.Run("ADD", killed)
			ended = count <= steps
			b.OK("DEL", c)
			restored()
		}
	},
		Entry("in a new container"),
		Entry("in a container whose rules were deleted after an earlier ADD", "rule del from 10.66.0.2", "-6 rule del from fd66::2"),
	)

	It("deletes the rules if the interface is gone", func() {
		c := b.call(conf("", net1Prev))
		b.Add(c)
		b.container.Batch(GinkgoTB(), "link del net1")
		b.OK("DEL", c)
		Expect(append(b.rules("-4"), b.rules("-6")...)).To(BeEmpty())
	})

	It("does not change the rules of other interfaces and other programs", func() {
		other := b.callFor("eth0", confOf("1.1.0", "eth0", "", eth0Prev))
		b.Add(other)
		b.container.Batch(GinkgoTB(), "rule add from 10.66.0.2 lookup 33", "rule add from 10.66.0.2 to 192.0.2.0/24 lookup 33")
		restored := b.Restored(b.container)
		c := b.call(conf("", net1Prev))
		b.Add(c)
		b.OK("DEL", c)
		restored()
		b.OK("CHECK", other)
	})

	It("does not change an interface that may belong to another attachment, and warns", func() {
		b.Add(b.call(conf(`"keepMain":"subnet"`, net1Prev)))
		restored := b.Restored(b.container)
		reply := b.OK("DEL", b.call(conf("", `{"address":"10.66.0.9/24"}`)))
		Expect(reply.Stderr).To(ContainSubstring("net1 keeps its rules and routes, because it belongs to another attachment"))
		restored()
	})

	DescribeTable("deletes all rules and routes of the interface, whatever prevResult contains", func(ips string, mark func(alias string)) {
		restored := b.Restored(b.container)
		b.Add(b.call(conf(`"keepMain":"subnet"`, net1Prev)))
		c := b.call(conf("", ips))
		c.ContainerID = "one"
		mark("plumb:net1/one/net1")
		b.OK("DEL", c)
		mark("")
		restored()
	},
		Entry("if it lacks an IP", `{"address":"10.66.0.2/24"}`, func(string) {}),
		Entry("if the alias of the interface names the attachment", `{"address":"10.66.0.9/24"}`, func(alias string) { b.container.Must(GinkgoTB(), "ip", "link", "set", "net1", "alias", alias) }),
	)

	It("deletes all rules and routes of a veth whose host end names the attachment, whatever prevResult contains", func() {
		nstest.Join(GinkgoTB(), nstest.End{In: b.container, Name: "net2", Addrs: []string{"10.55.0.2/24"}}, nstest.End{In: b.Host, Name: "veth2", Addrs: []string{"10.55.0.1/24"}})
		b.Host.IP("link set veth2 alias plumb:net1/one/net2")
		restored := b.Restored(b.container)
		c := b.callFor("net2", confOf("1.1.0", "net2", "", `{"address":"10.55.0.2/24"}`))
		c.ContainerID = "one"
		b.Add(c)
		c.Config = confOf("1.1.0", "net2", "", `{"address":"10.66.0.2/24"}`)
		b.OK("DEL", c)
		restored()
	})

	It("does not change an interface of another attachment at the same path", func() {
		b.Add(b.call(conf("", net1Prev)))
		b.container.Batch(GinkgoTB(), "link set net1 alias plumb:net1/other/net1")
		restored := b.Restored(b.container)
		b.OK("DEL", b.call(conf("", net1Prev)))
		restored()
	})
})

var _ = DescribeTable("leaves nothing behind if a step fails", func(keys string) {
	config := strings.ReplaceAll(confOf("1.1.0", "eth0", keys, net1Prev), `"sandbox":"/any"`, `"sandbox":"/any","mac":""`)
	nstest.FaultSweep(GinkgoTB(), nstest.Sweep{Plugin: plugin(), Config: config, PrepareContainer: func(container *nstest.NS) {
		container.Batch(GinkgoTB(), "link add eth0 up type veth peer name peer0", "link set peer0 up", "addr add 10.66.0.2/24 dev eth0", "addr add fd66::2/64 dev eth0 nodad",
			"route add default via 10.66.0.1", "route add default via fd66::1", "route add 172.31.0.0/16 via 10.66.0.9")
	}})
},
	Entry("by default", ""),
	Entry("with gateways and the route to the subnet", `"gateways":["10.66.0.254"],"keepMain":"subnet"`),
	Entry("with table", `"table":5000`),
)

// A refused call changes nothing, so that all calls can share a host.
var _ = Describe("an invalid configuration", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newTestbed() })

	DescribeTable("fails and changes nothing",
		func(config string, code int, texts ...string) { b.Refuse(b.call(config), code, texts...) },
		Entry("without prevResult", `{"cniVersion":"1.1.0","name":"net1","type":"sbr"}`, 7, "must be called as chained plugin"),
		Entry("without IPs", conf("", ""), 7, "no IP addresses supplied on interface: net1"),
		Entry("with IPs of another interface only", confOf("1.1.0", "eth0", "", eth0Prev), 7, "no IP addresses supplied on interface: net1"),
		Entry("with an IP that the interface does not have", conf("", net1Prev+`,{"address":"10.99.99.3/24"}`), 7,
			"10.99.99.3/24", "10.99.99.3/24 from prevResult is not an address of net1", "list sbr after the plugin that assigns addresses"),
		Entry("with a gateway that is in no subnet", conf(`"gateways":["192.0.2.1"]`, `{"address":"10.66.0.2/24"}`), 7, "192.0.2.1, the gateway for 10.66.0.2/24, is not reachable"),
		Entry("with the IPv6 address of the interface as the gateway", conf(`"gateways":["fd66::2"]`, net1Prev), 7, "gateways: fd66::2 is an address of the interface itself"),
		Entry("with the IPv4 address of the interface as the gateway", conf(`"gateways":["10.66.0.2"]`, net1Prev), 7, "gateways: 10.66.0.2 is an address of the interface itself"),
		Entry("with the address of the subnet as the gateway", conf(`"gateways":["10.66.0.0"]`, net1Prev), 7, "gateways: 10.66.0.0 is the network address of 10.66.0.0/24"),
		Entry("with the broadcast address of the subnet as the gateway", conf(`"gateways":["10.66.0.255"]`, net1Prev), 7, "gateways: 10.66.0.255 is the broadcast address of 10.66.0.0/24"),
		Entry("with an IPv6 gateway in no subnet", conf(`"gateways":["2001:db8::1"]`, net1Prev), 7, "2001:db8::1, the gateway for fd66::2/64, is not reachable"),
		Entry("with a loopback address as the gateway", conf(`"gateways":["127.0.0.1"]`, net1Prev), 7, "127.0.0.1, the gateway for 10.66.0.2/24, is not reachable"),
		Entry("with the broadcast address", conf(`"gateways":["255.255.255.255"]`, net1Prev), 7, "255.255.255.255, the gateway for 10.66.0.2/24, is not reachable"),
		Entry("with unspecified and multicast gateways", conf(`"gateways":["0.0.0.0","ff02::1"]`, net1Prev), 7, `"0.0.0.0" cannot be the address of a gateway`, `"ff02::1" cannot`),
		Entry("with several problems", conf(`"table":0,"keepMain":"some","gateways":["x","10.0.0.1","10.0.0.2"]`, net1Prev), 7,
			"table 0 must be between", `omit "table"`, `keepMain "some" must be none`, `"x" cannot be the address of a gateway`,
			"gateways list cannot contain more than 2 entries", "gateways list contains multiple IPv4 addresses: 10.0.0.1 and 10.0.0.2"),
		Entry("with addSourceHints and another keepMain", conf(`"addSourceHints":true,"keepMain":"all"`, net1Prev), 7, "cannot be combined"),
		Entry("with an unknown key if strict", conf(`"gatways":[],"strict":true`, net1Prev), 2, "gatways"),
	)
})
