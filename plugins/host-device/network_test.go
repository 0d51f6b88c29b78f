package main

import (
	"errors"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const (
	useNetwork = byDevice + `,"useInterfaceNetwork":true`
	emptyIPAM  = `{"type":"empty"}`
)

var _ = Describe("useInterfaceNetwork", Label(nstest.Kernel), func() {
	var b *testbed
	var c nstest.Call
	BeforeEach(func() {
		b = newTestbed()
		c = b.NewCall(conf("1.1.0", useNetwork, noIPAM))
	})
	// setUp configures the device as a cloud does.
	setUp := func() {
		nstest.RequireRoot(GinkgoTB(), "for a rule with users of the host")
		GinkgoHelper()
		b.Host.Batch(GinkgoTB(),
			"addr add 198.18.0.50/24 brd + dev hd0 label hd0:cloud metric 77",
			"addr add 198.18.0.51/24 dev hd0 noprefixroute",
			"addr add 198.18.3.1 peer 198.18.3.2/32 dev hd0",
			"addr add 2001:db8:18::50/64 dev hd0 nodad",
			"addr add 2001:db8:18::51/64 dev hd0 nodad preferred_lft 0",
			"route add default via 198.18.0.2 metric 50 proto static src 198.18.0.51 mtu 1300 advmss 1200",
			"route add 198.51.100.7 dev hd0 scope host table 100",
			"route add 203.0.113.0/24 dev hd0 table 100 tos 0x10",
			"route add 198.18.0.0/24 dev hd0 table 100",
			"route add default via 192.0.2.9 dev hd0 onlink table 100",
			"route add 192.0.2.0/24 via inet6 fe80::1 dev hd0 table 300",
			"route add 2001:db8:aaaa::/64 dev hd0",
			"route add 2001:db8:1::/64 via 2001:db8:aaaa::1 dev hd0", // listed before the route to its gateway
			"route add ::/0 via fe80::1 dev hd0 proto static metric 30 src 2001:db8:18::50",
			"rule add from 198.18.0.50 lookup 100 pref 1000",
			"rule add from 198.18.0.0/24 to 192.0.2.0/24 iif hd0 fwmark 0x5/0xff lookup 100 pref 1001",
			"rule add not from 198.18.0.0/16 sport 80 dport 1000-2000 ipproto tcp uidrange 5-6 tos 0x10 lookup 300 suppress_prefixlength 0 pref 1002 protocol 77")
		b.Host.IP("-6 rule add from 2001:db8:18::50 lookup main pref 1003")
	}

	It("gives the device's addresses, routes and rules to the container, and DEL gives them back", func() {
		setUp()
		before := b.Host.IP("addr show hd0")
		restored := b.Restored(b.Host, c.Container)
		added := b.OK("ADD", c)
		Expect(added.Stderr).To(ContainSubstring("until DEL, the host loses its connection and the configuration of the interface (address 198.18.0.50/24, "))
		eth := c.Container

		By("keeping all attributes")
		addresses := eth.IP("addr show eth0")
		Expect(configured(before)).To(HaveLen(5))
		for _, line := range configured(before) {
			Expect(addresses).To(ContainSubstring(strings.ReplaceAll(line, "hd0", "eth0")))
		}
		Expect(eth.IP("route")).To(ContainSubstring("default via 198.18.0.2 dev eth0 proto static src 198.18.0.51 metric 50 mtu 1300 advmss 1200"))
		Expect(eth.IP("route show table 100")).To(And(ContainSubstring("198.51.100.7 dev eth0 scope host"), ContainSubstring("203.0.113.0/24 tos 0x10 dev eth0 scope link"), ContainSubstring("default via 192.0.2.9 dev eth0 onlink")))
		Expect(eth.IP("route show table 300")).To(ContainSubstring("192.0.2.0/24 via inet6 fe80::1 dev eth0"))
		Expect(eth.IP("-6 route")).To(And(ContainSubstring("2001:db8:1::/64 via 2001:db8:aaaa::1 dev eth0 metric 1024"), ContainSubstring("default via fe80::1 dev eth0 proto static src 2001:db8:18::50 metric 30")))
		Expect(eth.IP("rule")).To(And(
			ContainSubstring("1000:\tfrom 198.18.0.50 lookup 100"),
			ContainSubstring("1001:\tfrom 198.18.0.0/24 to 192.0.2.0/24 fwmark 0x5/0xff iif eth0 lookup 100"),
			ContainSubstring("1002:\tnot from 198.18.0.0/16"), ContainSubstring("lookup 300 suppress_prefixlength 0 proto 77")))
		Expect(eth.IP("-6 rule")).To(ContainSubstring("1003:\tfrom 2001:db8:18::50 lookup main"))
		nstest.RequireTraffic(GinkgoTB(), eth, b.Outside, "198.18.0.50", nstest.OutsideV4)
		nstest.RequireTraffic(GinkgoTB(), eth, b.Outside, "2001:db8:18::50", nstest.OutsideV6)

		By("returning them in the result")
		result := added.Result(GinkgoTB())
		var ips []string
		for _, ip := range result.IPs {
			Expect(ip.Interface).To(BeZero())
			Expect(ip.Gateway.IsValid()).To(BeFalse())
			ips = append(ips, ip.Address.String())
		}
		Expect(ips).To(Equal([]string{"198.18.0.50/24", "198.18.3.1/32", "198.18.0.51/24", "2001:db8:18::50/64", "2001:db8:18::51/64"}))
		Expect(added.Stdout).To(And(MatchRegexp(`"dst": "0.0.0.0/0",\s+"gw": "198.18.0.2",\s+"priority": 50,\s+"table": 254\s`), MatchRegexp(`"dst": "198.51.100.7/32",\s+"table": 100,\s+"scope": 254\s`)))

		By("accepting the result in CHECK, and restoring in REPAIR")
		c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
		b.OK("CHECK", c)
		b.RequireContainerRepair(c, func() { eth.IP("rule del pref 1002") }, "the container has no rule 1002 from 198.18.0.0/16 lookup 300")
		b.RequireContainerRepair(c, func() {
			eth.Batch(GinkgoTB(), "addr del 198.18.0.51/24 dev eth0", "rule del pref 1001", "link set eth0 down", "link set eth0 up", "addr del 2001:db8:18::50/64 dev eth0")
		}, "the container has no rule 1001 from 198.18.0.0/24 lookup 100")
		b.Sorted = false
		b.OK("DEL", c)
		restored()
		for _, line := range configured(before) {
			Expect(b.Host.IP("addr show hd0")).To(ContainSubstring(line))
		}
		b.OK("DEL", c)
		restored()
	})

	DescribeTable("does not take what does not belong to the device's configuration",
		func(setUp ...string) {
			b.Host.Batch(GinkgoTB(), append([]string{"addr add 198.18.0.50/24 dev hd0", "route add 203.0.113.0/24 dev hd0 table 100"}, setUp...)...)
			rules := func() string { return c.Container.IP("rule") + c.Container.IP("-6 rule") }
			before := rules()
			result := b.Add(c)
			Expect(result.IPs).To(HaveLen(1))
			Expect(result.Routes).To(HaveLen(1))
			Expect(c.Container.IP("neigh show nud permanent")).To(BeEmpty())
			Expect(rules()).To(Equal(before))
		},
		Entry("an address of another scope", "addr add 169.254.7.1/24 dev hd0 scope link"),
		Entry("an IPv6 address with a lifetime", "addr add 2001:db8:18::99/64 dev hd0 nodad valid_lft 1000 preferred_lft 1000"),
		Entry("a route of a router advertisement", "route add ::/0 via fe80::1 dev hd0 proto ra"),
		Entry("a route of the kernel", "route add 203.0.114.0/24 dev hd0 proto kernel table 100"),
		Entry("a route to link-local addresses", "route add fe80:7::/64 dev hd0 table 100"),
		Entry("a multipath route", "route add 203.0.114.0/24 table 100 nexthop dev hd0 nexthop via 198.18.0.2"),
		Entry("an IPv6 multipath route", "route add 2001:db8:7::/64 nexthop via fe80::1 dev hd0 nexthop via fe80::2 dev hd0"),
		Entry("a blackhole route", "route add blackhole 203.0.114.0/24 table 100"),
		Entry("a neighbor", "neigh add 198.18.0.77 lladdr 02:00:00:00:00:77 dev hd0"),
		Entry("a rule to the address", "rule add to 198.18.0.50 lookup 100"),
		Entry("a rule for an interface", "rule add iif hd0 lookup 100"),
		Entry("a rule from another address", "rule add from 198.18.0.49 lookup 100"),
		Entry("a rule that rejects", "rule add from 198.18.0.50 prohibit", "rule add from 198.18.0.50 lookup 100 blackhole"),
		Entry("a rule that jumps", "rule add from 198.18.0.50 pref 5 goto 32766"),
		Entry("a rule for another table", "rule add from 198.18.0.50 lookup 200"),
		Entry("a rule for the main table, without a route of it", "rule add from 198.18.0.50 lookup main"),
	)

	It("adds an IPv4 address with a lifetime permanently to the container, and gives the lifetime back to the host", func() {
		b.Host.IP("addr add 198.18.0.50/24 dev hd0 valid_lft 3600 preferred_lft 1800")
		Expect(b.OK("ADD", c).Stderr).To(ContainSubstring("address 198.18.0.50/24 of interface hd0 has a limited lifetime"))
		Expect(c.Container.IP("addr show eth0")).To(MatchRegexp(`198\.18\.0\.50/24.*\s+valid_lft forever preferred_lft forever`))
		b.OK("DEL", c)
		Expect(b.Host.IP("addr show hd0")).To(MatchRegexp(`valid_lft 3[56]\d\dsec preferred_lft 1[78]\d\dsec`))
	})

	It("adds a route whose source is an IPv6 address when the address is not tentative any more", func() {
		b.Host.IP("addr add 2001:db8:18::50/64 dev hd0")
		Eventually(func() string { return b.Host.IP("-6 addr show dev hd0 tentative") }).Should(BeEmpty())
		b.Host.IP("route add 2001:db8:7::/64 dev hd0 src 2001:db8:18::50")
		restored := b.Restored(b.Host)
		b.Add(c)
		Expect(c.Container.IP("-6 route")).To(ContainSubstring("2001:db8:7::/64 dev eth0 src 2001:db8:18::50"))
		b.OK("DEL", c)
		restored()
	})

	It("accepts a device without addresses, and a device that is down", func() {
		Expect(b.Add(c).IPs).To(BeEmpty())
		b.OK("DEL", c)
		b.Host.Batch(GinkgoTB(), "link set hd0 down", "addr add 198.18.0.50/24 dev hd0")
		b.Omit = append(b.Omit, "qdisc=") // the kernel sets it when the link is up
		restored := b.Restored(b.Host)
		Expect(b.Add(c).IPs).To(HaveLen(1))
		Expect(c.Container.IP("link show eth0")).To(ContainSubstring(",UP"))
		b.OK("DEL", c)
		restored()
	})

	It("adds the lease of the IPAM plugin after the device's configuration, and returns it first", func() {
		b.Host.Batch(GinkgoTB(), "addr add 198.18.0.50/24 dev hd0", "route add 198.18.9.0/24 dev hd0", "route add 203.0.113.0/24 dev hd0 table 100", "route add 2001:db8:7::/64 dev hd0")
		for _, version := range []string{"1.1.0", "1.0.0"} {
			c.Config = conf(version, useNetwork, `{"type":"static","addresses":[{"address":"198.18.0.50/24"},{"address":"198.18.0.70/24","gateway":"198.18.0.2"}],"routes":[{"dst":"0.0.0.0/0"}]}`)
			restored := b.Restored(b.Host, c.Container)
			added := b.OK("ADD", c)
			Expect(added.Stdout).To(MatchRegexp(`(?s)198\.18\.0\.50/24.*198\.18\.0\.70/24.*"0\.0\.0\.0/0".*"198\.18\.9\.0/24"`))
			Expect(strings.Count(added.Stdout, "198.18.0.50/24")).To(Equal(1))
			kept := added.Stdout
			if version == "1.0.0" { // runtimes drop the keys that are new in 1.1.0
				kept = regexp.MustCompile(`,\s+"(table|scope|priority)": \d+`).ReplaceAllString(kept, "")
			}
			c.Config = nstest.WithPrevResult(c.Config, kept)
			b.OK("CHECK", c)
			b.RequireContainerRepair(c, func() {
				c.Container.Batch(GinkgoTB(), "addr del 198.18.0.70/24 dev eth0", "route del default", "route del 198.18.9.0/24", "route del 203.0.113.0/24 table 100", "route del 2001:db8:7::/64")
			}, "interface eth0 has no address 198.18.0.70/24")
			b.Sorted = false
			b.OK("DEL", c)
			restored()
		}
	})

	It("accepts a lease without addresses", func() {
		dir, _ := nstest.NewScriptPlugin(GinkgoTB(), "empty", `[ $CNI_COMMAND = ADD ] || exit 0
			echo '{"cniVersion":"1.1.0","dns":{"nameservers":["198.18.0.53"]}}'`)
		b.Host.IP("addr add 198.18.0.50/24 dev hd0")
		c.Config, c.Path = conf("1.1.0", useNetwork, emptyIPAM), dir
		result := b.Add(c)
		Expect(result.IPs).To(HaveLen(1))
		Expect(result.DNS.Nameservers).To(HaveLen(1))
	})

	It("gives everything back if ADD fails, or if it is killed", func() {
		setUp()
		restored := b.Restored(b.Host, c.Container)
		for _, isKilled := range []bool{false, true} {
			failing, fails := c, false
			failing.Before = func(step string) error {
				isLast := strings.HasPrefix(step, "add rule 1003") && !fails
				fails = fails || isLast
				if isLast || fails && isKilled { // a killed ADD does nothing after the step
					return errors.New("not now")
				}
				return nil
			}
			b.Fails("ADD", failing, types.CodeInternal, "not now")
			if isKilled {
				Expect(c.Container.IP("rule")).To(ContainSubstring("lookup 100"))
				b.OK("DEL", c)
			}
			restored()
		}
	})

	It("is given back by GC, and by a DEL that finds the device on the host", func() {
		setUp()
		restored := b.Restored(b.Host)
		b.Add(c)
		b.OK("GC", b.Call("", nil, conf("1.1.0", useNetwork+`,"cni.dev/valid-attachments":[]`, noIPAM)))
		restored()
		b.Add(c)
		c.Container.Batch(GinkgoTB(), "link set eth0 down", "link set eth0 netns "+b.Host.Path())
		c.Container = nil
		b.OK("DEL", c)
		restored()
	})

	It("is given back after a reboot, when the device is new", func() {
		b.Host.IP("addr add 198.18.0.50/24 dev hd0")
		b.Add(c)
		c.Container.IP("link del eth0")
		b.addDevice("hd0", deviceMAC)
		c.Container = nil
		b.OK("DEL", c)
		Expect(b.Host.IP("addr show hd0")).To(ContainSubstring("198.18.0.50/24"))
		Expect(b.stateFiles()).To(BeEmpty())
	})

	It("warns if a route cannot be given back", func() {
		b.Host.Batch(GinkgoTB(), "addr add 198.18.0.50/24 dev hd0", "addr add 198.18.5.1/24 dev lo", "route add 203.0.113.0/24 dev hd0 src 198.18.5.1")
		b.Refuse(c, types.CodeConfig, "copy the configuration of interface hd0 of the host: add route 203.0.113.0/24 to eth0", "; delete there what the container cannot use")
		c.Container.IP("addr add 198.18.5.1/24 dev lo")
		b.Add(c)
		b.Host.IP("addr del 198.18.5.1/24 dev lo")
		Expect(b.OK("DEL", c).Stderr).To(ContainSubstring("restore interface hd0: add route 203.0.113.0/24"))
		Expect(b.Host.IP("addr show hd0")).To(ContainSubstring("198.18.0.50/24"))
		Expect(b.stateFiles()).To(BeEmpty())
	})

	It("needs an address before version 0.3.0", func() {
		c.Config = conf("0.2.0", useNetwork, noIPAM)
		b.Refuse(c, types.CodeConfig, "interface hd0 has no addresses", "needs cniVersion 0.3.0 or later")
		b.Host.IP("addr add 198.18.0.50/24 dev hd0")
		b.Add(c)
	})

	It("is not refused by STATUS for the device of the default route", func() {
		b.Host.Batch(GinkgoTB(), "addr add 198.18.0.50/24 dev hd0", "route add default via 198.18.0.2")
		b.RequireStatus(conf("1.1.0", useNetwork, noIPAM), "")
	})
})

// configured returns the lines of ip addr with addresses that the kernel has not added.
func configured(lines string) (out []string) {
	for line := range strings.SplitSeq(lines, "\n") {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "inet") && !strings.Contains(line, "fe80:") {
			out = append(out, line)
		}
	}
	return out
}
