package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// The routes of eth0 at the start, as testbed.routes and resultRoutes return them.
var (
	kept    = []string{"10.7.0.0/16 scope link"}
	network = []string{"10.9.0.0/16 via 10.66.0.1", "10.8.0.0/16 via 10.9.0.1 onlink mtu 1400", "fd09::/64 via fd66::1"}
	gateway = []string{"default via 10.66.0.1", "default via fd66::1"}
)

// resultRoutes returns "dst via gw" for each route of a result.
func resultRoutes(result *types.Result) (all []string) {
	for _, r := range result.Routes {
		text := r.Dst.String()
		if r.GW.IsValid() {
			text += " via " + r.GW.String()
		}
		all = append(all, text)
	}
	return all
}

var _ = Describe("ADD", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	DescribeTable("changes the container and the result, and CHECK accepts that",
		func(keys string, want, wantResult []string, gateways bool) {
			c := b.call(conf(keys))
			reply := b.OK("ADD", c)
			result := reply.Result(GinkgoTB())
			Expect(b.routes()).To(ConsistOf(want), "after ADD")
			Expect(resultRoutes(result)).To(Equal(wantResult))
			for _, ip := range result.IPs {
				Expect(ip.Gateway.IsValid()).To(Equal(gateways))
			}
			Expect(b.container.IP("-4 route show dev net1")).To(And(ContainSubstring("default via 10.77.0.1"), ContainSubstring("10.5.0.0/16 via 10.77.0.1")), "another interface")
			Expect(b.container.IP("route get 10.66.0.1")).To(ContainSubstring("dev eth0"))
			Expect(reply.Stdout).To(ContainSubstring(`"key": "kept"`))
			c.Config = nstest.WithPrevResult(confWithoutPrev("1.1.0", keys), reply.Stdout)
			b.OK("CHECK", c)
			b.OK("DEL", c)
			Expect(b.routes()).To(ConsistOf(want), "DEL restores nothing")
		},
		Entry("nothing", "", slices.Concat(kept, network, gateway),
			[]string{"0.0.0.0/0", "::/0 via fd66::1", "10.9.0.0/16", "10.8.0.0/16 via 10.9.0.1", "fd09::/64", "10.7.0.0/16 via 0.0.0.0"}, true),
		Entry("flushroutes", `"flushroutes":true`, kept, []string{"10.7.0.0/16 via 0.0.0.0"}, true),
		Entry("flushgateway, after which the other routes name their gateways", `"flushgateway":true`, slices.Concat(kept, network),
			[]string{"10.9.0.0/16 via 10.66.0.1", "10.8.0.0/16 via 10.9.0.1", "fd09::/64 via fd66::1", "10.7.0.0/16 via 0.0.0.0"}, false),
		Entry("delroutes", `"delroutes":[{"dst":"10.9.0.0/16"},{"dst":"10.7.0.0/16","gw":"0.0.0.0"},{"dst":"fd09::/64","gw":"fd66::9"},{"dst":"10.5.0.0/16"},{"dst":"::/0","gw":"fd66::1"}]`,
			[]string{network[1], network[2], gateway[0]}, []string{"0.0.0.0/0", "10.8.0.0/16 via 10.9.0.1", "fd09::/64"}, true),
		Entry("addroutes with the gateway of the result, and a route that exists", `"addroutes":[{"dst":"172.16.0.0/12","mtu":1300,"advmss":1200,"priority":7},{"dst":"fd77::/64","gw":"fd66::fe"},{"dst":"10.9.0.0/16"}]`,
			slices.Concat(kept, network, gateway, []string{"172.16.0.0/12 via 10.66.0.1 metric 7 mtu 1300 advmss 1200", "fd77::/64 via fd66::fe"}),
			[]string{"0.0.0.0/0", "::/0 via fd66::1", "10.9.0.0/16", "10.8.0.0/16 via 10.9.0.1", "fd09::/64", "10.7.0.0/16 via 0.0.0.0", "172.16.0.0/12 via 10.66.0.1", "fd77::/64 via fd66::fe"}, true),
		Entry("all of them, in their order", `"flushroutes":true,"flushgateway":true,"delroutes":[{"dst":"10.7.0.0/16"}],"addroutes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.66.0.254"}]`,
			[]string{"default via 10.66.0.1", "10.9.0.0/16 via 10.66.0.254"}, []string{"0.0.0.0/0 via 10.66.0.1", "10.9.0.0/16 via 10.66.0.254"}, false),
		Entry("keys of args.cni in place of the configuration's", `"flushroutes":true,"delroutes":[{"dst":"10.9.0.0/16"}],"args":{"cni":{"flushroutes":false,"flushgateway":true,"delroutes":[{"dst":"10.8.0.0/16"}],"addroutes":[{"dst":"fd77::/64"}]}}`,
			slices.Concat(kept, []string{network[0], network[2], "fd77::/64 via fd66::1"}),
			[]string{"10.9.0.0/16 via 10.66.0.1", "fd09::/64 via fd66::1", "10.7.0.0/16 via 0.0.0.0", "fd77::/64 via fd66::1"}, false),
		Entry("addroutes with several gateways", `"flushroutes":true,"addroutes":[{"dst":"0.0.0.0/0","gws":["10.66.0.254","10.66.0.1"]},{"dst":"::/0","gws":["fd66::fe","fd66::1"]}]`,
			slices.Concat(kept, []string{"default", "nexthop via 10.66.0.254", "nexthop via 10.66.0.1", "default", "nexthop via fd66::fe", "nexthop via fd66::1"}),
			[]string{"10.7.0.0/16 via 0.0.0.0", "0.0.0.0/0 via 10.66.0.254", "::/0 via fd66::fe"}, true),
	)

	It("changes nothing if it is called again", func() {
		c := b.call(conf(`"flushroutes":true,"addroutes":[{"dst":"0.0.0.0/0","gws":["10.66.0.254","10.66.0.1"]},{"dst":"::/0","gws":["fd66::fe","fd66::1"]}]`))
		first := b.OK("ADD", c).Stdout
		before := b.routes()
		Expect(b.OK("ADD", c).Stdout).To(Equal(first))
		Expect(b.routes()).To(Equal(before))
	})

	It("deletes and adds routes in other tables only if table names them", func() {
		b.container.Batch(GinkgoTB(), "route add default via 10.66.0.1 table 7", "route add 10.9.0.0/16 via 10.66.0.1 table 7")
		b.Add(b.call(conf(`"flushroutes":true,"flushgateway":true,"delroutes":[{"dst":"10.9.0.0/16","table":7}],"addroutes":[{"dst":"10.6.0.0/16","table":7}]`)))
		Expect(strings.Split(b.container.IP("-4 route show table 7"), "\n")).To(ConsistOf(ContainSubstring("default"), ContainSubstring("10.6.0.0/16 via 10.66.0.1")))
	})

	It("changes the routes in the table of the interface's VRF", Label(nstest.Kernel), func() {
		_, err := b.container.Exec("ip", "link", "add", "blue", "type", "vrf", "table", "1000")
		nstest.RequireFeature(GinkgoTB(), "vrf", err)
		b.container.Batch(GinkgoTB(), "link set blue up", "link set eth0 master blue", "route add default via 10.66.0.1 table 1000", "route add 10.9.0.0/16 via 10.66.0.1 table 1000")
		b.Add(b.call(conf(`"flushgateway":true,"addroutes":[{"dst":"10.6.0.0/16"}]`)))
		Expect(b.container.IP("-4 route show table 1000")).To(And(Not(ContainSubstring("default via")), ContainSubstring("10.9.0.0/16"), ContainSubstring("10.6.0.0/16 via 10.66.0.1")))
	})

	It("deletes a multipath route by its destination, but not by one of its gateways", func() {
		b.container.IP("route add 10.4.0.0/16 nexthop via 10.66.0.254 dev eth0 nexthop via 10.66.0.1 dev eth0")
		for _, gw := range []string{"10.66.0.254", "10.66.0.1"} {
			b.Add(b.call(conf(`"delroutes":[{"dst":"10.4.0.0/16","gw":"` + gw + `"}]`)))
			Expect(b.container.IP("route show 10.4.0.0/16")).To(ContainSubstring("nexthop via 10.66.0.254"))
		}
		b.Add(b.call(conf(`"delroutes":[{"dst":"10.4.0.0/16"}]`)))
		Expect(b.container.IP("route show 10.4.0.0/16")).To(BeEmpty())
	})

	It("warns that results of older versions lack gws", func() {
		keys := `"addroutes":[{"dst":"fd08::/64","gws":["fd66::fe","fd66::1"]}]`
		Expect(b.OK("ADD", b.call(confOf("1.0.0", keys))).Stderr).To(ContainSubstring("the result contains only the first gateway of route fd08::/64, because cniVersion 1.0.0 has no gws; use 1.1.0"))
		Expect(b.OK("ADD", b.call(confOf("1.1.0", keys))).Stderr).To(BeEmpty())
	})

	It("changes a result of version 0.2.0", func() {
		config := nstest.WithPrevResult(confWithoutPrev("0.2.0", `"flushgateway":true,"addroutes":[{"dst":"10.6.0.0/16"}]`),
			`{"cniVersion":"0.2.0","ip4":{"ip":"10.66.0.2/24","gateway":"10.66.0.1","routes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16"}]}}`)
		Expect(b.OK("ADD", b.call(config)).Stdout).To(MatchJSON(
			`{"cniVersion":"0.2.0","ip4":{"ip":"10.66.0.2/24","routes":[{"dst":"10.9.0.0/16","gw":"10.66.0.1"},{"dst":"10.6.0.0/16","gw":"10.66.0.1"}]}}`))
	})

	It("leaves routes of router advertisements to the kernel", func() {
		b.container.Batch(GinkgoTB(), "route del default via fd66::1", "route add default via fe80::9 dev eth0 proto ra metric 512", "route add 2001:db8:5::/64 via fe80::9 dev eth0 expires 3000")
		c := b.attach(`"flushroutes":true`)
		Expect(b.container.IP("-6 route show dev eth0")).To(And(ContainSubstring("default via fe80::9 proto ra"), ContainSubstring("2001:db8:5::/64")))
		b.OK("CHECK", c)
	})
})

// nstest.FaultSweep does not fit, because it expects that DEL restores the container.
var _ = DescribeTable("ADD fails and restores the routes if a step", func(inject func(c *nstest.Call, hook func(string) error)) {
	b := newTestbed()
	restored := b.Restored(b.container)
	keys := `"flushroutes":true,"delroutes":[{"dst":"10.7.0.0/16"}],"addroutes":[{"dst":"0.0.0.0/0","gws":["10.66.0.254","10.66.0.1"]},{"dst":"::/0","gws":["fd66::fe","fd66::1"]},{"dst":"10.9.0.0/16"}]`
	for at, reached := 1+rand.IntN(nstest.SweepStride()), true; reached; at += nstest.SweepStride() {
		c, steps := b.call(conf(keys)), 0
		reached = false
		inject(&c, func(string) error {
			if steps++; steps != at {
				return nil
			}
			reached = true
			return syscall.ENOBUFS
		})
		if reply := b.Run("ADD", c); reached {
			Expect(reply.Failure(GinkgoTB()).Msg).To(ContainSubstring(syscall.ENOBUFS.Error()), "step %d", at)
			restored()
		}
	}
},
	Entry("is refused", func(c *nstest.Call, hook func(string) error) { c.Before = hook }),
	Entry("is done, but seems to fail", func(c *nstest.Call, hook func(string) error) { c.After = hook }),
)

var _ = Describe("CHECK", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	const keys = `"flushroutes":true,"delroutes":[{"dst":"10.7.0.0/16"}],"addroutes":[{"dst":"172.16.0.0/12","mtu":1300},{"dst":"fd77::/64","gws":["fd66::fe","fd66::1"]},{"dst":"10.4.0.0/16","gws":["10.66.0.254","10.66.0.1"]}]`

	DescribeTable("names what is missing or has returned", func(change, want, fix string) {
		c := b.attach(keys)
		// A runtime with libcni drops gws from the result.
		c.Config = strings.NewReplacer(`"gws": [`, `"other": [`).Replace(c.Config)
		b.OK("CHECK", c)
		b.container.IP(change)
		b.Fails("CHECK", c, types.CodeChanged, want)
		if fix != "" {
			Expect(b.Run("CHECK", c).Stdout).To(ContainSubstring(fix + `"`))
			b.container.MustLine(GinkgoTB(), fix)
			b.OK("CHECK", c)
		}
	},
		Entry(nil, "route change 172.16.0.0/12 via 10.66.0.1 mtu 1400", "interface eth0 has no route 172.16.0.0/12 via 10.66.0.1 mtu 1300", ""),
		Entry(nil, "route del fd77::/64 via fd66::1", "interface eth0 has no route fd77::/64 via fd66::fe via fd66::1", ""),
		Entry(nil, "route change 10.4.0.0/16 via 10.66.0.254", "interface eth0 has no route 10.4.0.0/16 via 10.66.0.254 via 10.66.0.1", ""),
		Entry(nil, "route add default via 10.66.0.1", "interface eth0 has the route 0.0.0.0/0 via 10.66.0.1, which ADD deletes; set skipcheck",
			"ip route delete 0.0.0.0/0 dev eth0 table 254 via 10.66.0.1"),
		Entry(nil, "route add default via fd66::1", "has the route ::/0 via fd66::1", "ip route delete ::/0 dev eth0 table 254 via fd66::1"),
		Entry(nil, "route add 10.7.0.0/16 dev eth0", "has the route 10.7.0.0/16, which ADD deletes", "ip route delete 10.7.0.0/16 dev eth0 table 254"),
	)

	It("does nothing with skipcheck", func() {
		c := b.attach(`"flushroutes":true,"skipcheck":true`)
		b.container.IP("route add default via 10.66.0.1")
		b.OK("CHECK", c)
	})
})

// A refused call changes nothing, so that all calls can share a host.
var _ = Describe("an ADD that is refused", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newTestbed() })

	DescribeTable("changes nothing", func(config string, code int, texts ...string) { b.Refuse(b.call(config), code, texts...) },
		Entry("without prevResult", confWithoutPrev("1.1.0", ""), 7, "must be called as chained plugin"),
		Entry("with invalid routes", conf(`"delroutes":[{"dst":"10.0.0.0/8"},{"gw":"x"}],"addroutes":[{"dst":"10.0.0.0/8","gw":"fd66::1"},{"dst":"::/0","gw":"fd66::1","gws":["fd66::2"]}]`), 7,
			`delroutes[1].dst: invalid CIDR address: ""`, "addroutes[0].gw ", "addroutes[1].gw must be the first of gws, want fd66::2, got fd66::1; omit gw"),
		Entry("with invalid routes in args", conf(`"args":{"cni":{"delroutes":[{}],"addroutes":[{}]}}`), 7, "args.cni.delroutes[0].dst", "args.cni.addroutes[0].dst"),
		Entry("with an unknown key if strict", conf(`"strict":true,"addroute":[]`), 2, "addroute"),
		Entry("with requireDelRoutes and missing routes", conf(`"flushroutes":true,"requireDelRoutes":true,"delroutes":[{"dst":"10.9.0.0/16"},{"dst":"10.9.0.0/17"},{"dst":"fd09::/64","gw":"fd66::9"}]`), 7,
			"delroutes[1]: interface eth0 has no route 10.9.0.0/17; correct it, or remove requireDelRoutes", "delroutes[2]: interface eth0 has no route fd09::/64 via fd66::9"),
		Entry("with another route of the interface", conf(`"addroutes":[{"dst":"10.9.0.0/16","gw":"10.66.0.254"}]`), 7,
			"addroutes[0]: 10.9.0.0/16 via 10.66.0.254: the container has another route to this destination with the same metric", "; delete it with delroutes, or set priority"),
		Entry("with a route of another interface, after other changes", conf(`"flushroutes":true,"addroutes":[{"dst":"0.0.0.0/0"},{"dst":"10.5.0.0/16"}]`), 7, "addroutes[1]: 10.5.0.0/16 via 10.66.0.1: the container has another route"),
		Entry("with other attributes of a route", conf(`"addroutes":[{"dst":"10.9.0.0/16","mtu":1300}]`), 7, "the container has another route"),
		Entry("with a second IPv6 gateway of a route", conf(`"addroutes":[{"dst":"fd09::/64","gws":["fd66::1","fd66::fe"]}]`), 7, "the container has another route"),
		Entry("with a gateway that is not reachable", conf(`"addroutes":[{"dst":"10.6.0.0/16","gws":["10.66.0.1","192.0.2.1"]}]`), 7, "10.6.0.0/16 via 10.66.0.1 via 192.0.2.1 is not possible through eth0", "gw must be in a network of the interface"),
		Entry("with an IPv6 gateway that is not reachable", conf(`"addroutes":[{"dst":"fd06::/64","gws":["fd66::1","2001:db8::1"]}]`), 7, "fd06::/64 via fd66::1 via 2001:db8::1 is not possible through eth0"),
	)

	It("because the container has no such interface, changes nothing", func() {
		c := b.call(conf(""))
		c.IfName = "eth9"
		b.Refuse(c, 7, "the container has no interface eth9; list route-override after the plugin that creates it")
	})
})
