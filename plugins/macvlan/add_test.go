package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("ADD", func() {
	var b *nstest.Bed
	BeforeEach(func() { b = newBed() })

	It("adds static addresses of both families, which are usable on the segment", func() {
		container := nstest.New(GinkgoTB())
		result := b.Add(b.Call("one", container, conf("1.1.0", onUplink+`,"mtu":1400,"bcqueuelen":2000`, nstest.StaticDual)))

		By("exchanging packets with the host outside")
		Expect(container.IP("-6 address show dev eth0 tentative")).To(BeEmpty())
		nstest.RequireTraffic(GinkgoTB(), container, b.Outside, nstest.ContainerV4, nstest.OutsideV4)
		nstest.RequireTraffic(GinkgoTB(), container, b.Outside, nstest.ContainerV6, nstest.OutsideV6)

		By("returning what it created")
		Expect(result.Interfaces).To(HaveLen(1))
		Expect(result.Interfaces[0]).To(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", container.Path())))
		Expect(result.IPs).To(HaveEach(HaveField("Interface", 0)))
		Expect(container.IP("-d link show eth0")).To(And(
			ContainSubstring("macvlan mode bridge bcqueuelen 2000"), ContainSubstring("mtu 1400"),
			ContainSubstring("alias plumb:net1/one/eth0"), ContainSubstring(result.Interfaces[0].MAC)))

		By("setting the same routes and sysctls as the reference plugin")
		Expect(container.IP("-4 route")).To(Equal("default via 198.18.0.2 dev eth0\n198.18.0.0/24 dev eth0 proto kernel scope link src 198.18.0.50"))
		Expect(container.IP("-6 route show default")).To(ContainSubstring("default via 2001:db8:18::2 dev eth0 metric 1024"))
		for key, want := range map[string]string{
			"net/ipv4/conf/eth0/arp_notify": "1", "net/ipv6/conf/eth0/ndisc_notify": "1", "net/ipv6/conf/eth0/accept_ra": "1",
			"net/ipv6/conf/eth0/accept_dad": "1", "net/ipv6/conf/eth0/router_solicitation_delay": "0", "net/ipv6/conf/eth0/keep_addr_on_down": "1", "net/ipv6/conf/eth0/disable_ipv6": "0",
		} {
			Expect(container.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
		}
	})

	It("lets the interface configure itself from router advertisements", func() {
		b.RequireAutoconfiguration(conf("1.1.0", onUplink, nstest.StaticV4), nstest.Uplink)
	})

	It("sets the numbers of queues", func() {
		container := nstest.New(GinkgoTB())
		b.Add(b.Call("one", container, conf("1.1.0", onUplink+`,"numTxQueues":4,"numRxQueues":2`, nstest.StaticDual)))
		Expect(container.IP("-d link show eth0")).To(ContainSubstring("numtxqueues 4 numrxqueues 2"))
		b.Refuse(b.NewCall(conf("1.1.0", onUplink+`,"numTxQueues":4097,"numRxQueues":-1`, nstest.StaticV4)), types.CodeConfig,
			"numTxQueues 4097 must be between 0 and 4096", "numRxQueues -1")
	})

	It("uses the only interface of prevResult in the container as the master, with its addresses", func() {
		container := nstest.New(GinkgoTB())
		nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "net0"}, nstest.End{In: b.Outside, Name: "peer0", Addrs: []string{"203.0.113.2/24"}})
		nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "net1"}, nstest.End{In: b.Outside, Name: "peer1"})
		container.IP("route add default dev net1")
		config := conf("1.0.0", `"linkInContainer":true`, noIPAM)
		prev := `{"cniVersion":"1.0.0","interfaces":[{"name":"net0","sandbox":"/x"}],"ips":[{"address":"203.0.113.50/24"}]}`
		c := b.Call("one", container, nstest.WithPrevResult(config, prev))
		reply := b.OK("ADD", c)
		Expect(container.IP("link show eth0")).To(ContainSubstring("eth0@net0"))
		nstest.ServeTCP(GinkgoTB(), b.Outside, "203.0.113.2:80")
		nstest.MustDial(GinkgoTB(), container, "203.0.113.2:80", "203.0.113.50")
		c.Config = nstest.WithPrevResult(config, reply.Stdout)
		b.OK("CHECK", c)
		b.OK("DEL", c)

		By("ignoring lo, and several interfaces")
		for _, other := range []string{`{"name":"lo"}`, `{"name":"net0"},{"name":"net1"}`} {
			b.OK("ADD", b.Call("one", container, nstest.WithPrevResult(config, `{"cniVersion":"1.0.0","interfaces":[`+other+`]}`)))
			Expect(container.IP("link show eth0")).To(ContainSubstring("eth0@net1"))
			b.OK("DEL", c)
		}
	})

	It("returns the result in the form of each version", func() {
		b.RequireResults(func(version string) string {
			return conf(version, onUplink+`,"mac":"02:00:00:00:00:01"`, nstest.StaticDual)
		})
	})

	It("succeeds with a warning if /proc/sys is read-only, and CHECK and DEL succeed", func() {
		nstest.RequireAddOnReadOnlySysctls(GinkgoTB(), plugin(), b.NewCall(conf("1.1.0", onUplink, nstest.StaticDual)))
	})

	It("announces an address that has moved to the segment", func() {
		one, two := b.NewContainer(), b.NewContainer()
		config := conf("1.0.0", onUplink, nstest.StaticDual)
		first := b.Add(b.Call("one", one, config)).Interfaces[0].MAC
		for _, addr := range []string{nstest.ContainerV4 + ":80", "[" + nstest.ContainerV6 + "]:80"} {
			nstest.ServeTCP(GinkgoTB(), one, addr)
			nstest.MustDial(GinkgoTB(), b.Outside, addr, "")
		}
		Expect(b.Outside.IP("neigh show")).To(ContainSubstring(first))
		b.OK("DEL", b.Call("one", one, config))
		second := b.Add(b.Call("two", two, config)).Interfaces[0].MAC
		for _, addr := range []string{nstest.ContainerV4, nstest.ContainerV6} {
			Eventually(func() string { return b.Outside.IP("neigh show " + addr) }).Should(ContainSubstring(second), addr)
		}
	})

	DescribeTable("creates a link of each mode",
		func(mode, want string) {
			container := b.NewContainer()
			b.Add(b.Call("one", container, conf("1.0.0", onUplink+`,"mode":"`+mode+`"`, nstest.StaticV4)))
			Expect(container.IP("-d link show eth0")).To(ContainSubstring("macvlan mode " + want))
		},
		EntryDescription("%q"),
		Entry(nil, "", "bridge"), Entry(nil, "bridge", "bridge"), Entry(nil, "private", "private"),
		Entry(nil, "vepa", "vepa"), Entry(nil, "passthru", "passthru"),
	)

	It("creates one link per passthru master, with the configured MAC", func() {
		was := macOf(b.Host, "uplink0")
		one, two := b.NewContainer(), b.NewContainer()
		config := conf("1.1.0", onUplink+`,"mode":"passthru","mac":"02:00:00:00:00:77"`, nstest.StaticV4)
		Expect(b.Add(b.Call("one", one, config)).Interfaces[0].MAC).To(Equal("02:00:00:00:00:77"))
		Expect(one.IP("link show eth0")).To(ContainSubstring("02:00:00:00:00:77"))
		nstest.ServeTCP(GinkgoTB(), one, nstest.ContainerV4+":80")
		nstest.MustDial(GinkgoTB(), b.Outside, nstest.ContainerV4+":80", "")
		b.Refuse(b.Call("two", two, config), types.CodeConfig, "mode passthru needs master uplink0 for itself, but it has another macvlan")
		b.Refuse(b.Call("two", two, conf("1.1.0", onUplink, nstest.StaticV4)), types.CodeConfig,
			"perhaps because a macvlan of mode passthru uses it alone")
		b.OK("DEL", b.Call("one", one, config))
		Expect(macOf(b.Host, "uplink0")).To(Equal(was))
		b.Add(b.Call("two", two, config))
	})

	Describe("the master", func() {
		expectOn := func(container *nstest.NS, master string) {
			GinkgoHelper()
			index, _, _ := strings.Cut(b.Host.IP("-o link show "+master), ":")
			Expect(container.IP("link show eth0")).To(ContainSubstring("eth0@if" + index))
		}
		It("is the interface of the default route if none is configured", func() {
			container := b.NewContainer()
			b.Add(b.Call("one", container, conf("1.0.0", "", nstest.StaticV4)))
			expectOn(container, "uplink0")
		})
		It("is the interface of the IPv6 default route if there is no IPv4 default route", func() {
			b.Host.IP("-4 route del default")
			container := b.NewContainer()
			b.Add(b.Call("one", container, conf("1.0.0", `"master":""`, nstest.StaticV4)))
			expectOn(container, "uplink0")
		})
		It("may be a macvlan itself", func() {
			b.Host.Batch(GinkgoTB(), "link add mv0 link uplink0 type macvlan mode bridge", "link set mv0 up")
			container := b.NewContainer()
			c := b.Call("one", container, conf("1.0.0", `"master":"mv0"`, nstest.StaticV4))
			reply := b.OK("ADD", c)
			expectOn(container, "uplink0")
			c.Config = nstest.WithPrevResult(c.Config, reply.Stdout)
			b.OK("CHECK", c)
		})
		It("may be in the container", func() {
			container := b.NewContainer()
			nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "net0"}, nstest.End{In: b.Outside, Name: "peer0", Addrs: []string{"203.0.113.2/24", "2001:db8:113::2/64"}})
			c := b.Call("one", container, conf("1.0.0", `"master":"net0","linkInContainer":true`,
				nstest.Static("203.0.113.50/24", "2001:db8:113::50/64")))
			reply := b.OK("ADD", c)
			for _, addr := range []string{"203.0.113.50:80", "[2001:db8:113::50]:80"} {
				nstest.ServeTCP(GinkgoTB(), container, addr)
				nstest.MustDial(GinkgoTB(), b.Outside, addr, "")
			}
			c.Config = nstest.WithPrevResult(c.Config, reply.Stdout)
			b.OK("CHECK", c)
			b.OK("DEL", c)
			Expect(container.IP("-br link")).To(And(ContainSubstring("net0"), Not(ContainSubstring("eth0"))))
		})
		It("may be in the container and found by its default route", func() {
			container := b.NewContainer()
			nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "net0", Addrs: []string{"203.0.113.1/24"}}, nstest.End{In: b.Outside, Name: "peer0", Addrs: []string{"203.0.113.2/24"}})
			c := b.Call("one", container, conf("1.0.0", `"linkInContainer":true`, noIPAM))
			Expect(b.Run("ADD", c).Failure(GinkgoTB()).Msg).To(ContainSubstring("no default route interface found in the container"))
			container.IP("route add default via 203.0.113.2")
			b.Add(c)
			Expect(container.IP("link show eth0")).To(ContainSubstring("eth0@net0"))
		})
		It("is named in the error if it does not exist", func() {
			container := b.NewContainer()
			b.Refuse(b.Call("one", container, conf("1.0.0", `"master":"nope0"`, nstest.StaticV4)), types.CodeConfig, "master: find link nope0")
			b.Host.IP("-4 route del default")
			b.Host.IP("-6 route del default")
			b.Refuse(b.Call("one", container, conf("1.0.0", "", nstest.StaticV4)), types.CodeConfig, "no default route interface found on the host", `by the key "master"`)
		})
		It("must not be a port of a bridge", func() {
			b.Host.Batch(GinkgoTB(), "link add br0 type bridge", "link set uplink0 master br0")
			b.Refuse(b.NewCall(conf("1.0.0", onUplink, nstest.StaticV4)), types.CodeConfig, "master uplink0 is already a port, for example of a bridge or a bond, or has ipvlans")
		})
		It("limits the configured MTU", func() {
			b.Refuse(b.NewCall(conf("1.0.0", onUplink+`,"mtu":1501`, nstest.StaticV4)), types.CodeConfig, "invalid MTU 1501, must be [0, master MTU(1500)]")
			container := b.NewContainer()
			b.Add(b.Call("one", container, conf("1.0.0", onUplink+`,"mtu":1500`, nstest.StaticV4)))
			Expect(container.IP("link show eth0")).To(ContainSubstring("mtu 1500"))
		})
		It("may be down, which ADD warns about without waiting, and the container is connected when it comes up", func() {
			b.Host.IP("link set uplink0 down")
			container := nstest.New(GinkgoTB())
			reply := b.OK("ADD", b.Call("one", container, conf("1.0.0", onUplink, nstest.StaticDual)))
			Expect(reply.Stderr).To(ContainSubstring("master uplink0 is down or has no carrier"))
			Expect(container.IP("-6 address show dev eth0 tentative")).To(ContainSubstring(nstest.ContainerV6))
			b.Host.IP("link set uplink0 up")
			b.Host.Batch(GinkgoTB(), "address replace "+nstest.HostV6+"/64 dev uplink0 nodad")
			nstest.ServeTCP(GinkgoTB(), container, nstest.ContainerV4+":80")
			Eventually(func() error { _, err := nstest.Dial(b.Outside, nstest.ContainerV4+":80"); return err }).Should(Succeed())
			Eventually(func() string { return container.IP("-6 address show dev eth0 tentative") }).Should(BeEmpty())
		})
	})

	DescribeTable("uses the MAC of the highest precedence",
		func(keys, args, want string) {
			container := b.NewContainer()
			c := b.Call("one", container, conf("1.0.0", onUplink+keys, nstest.StaticV4))
			c.Args = args
			Expect(b.Add(c).Interfaces[0].MAC).To(Equal(want))
			Expect(container.IP("link show eth0")).To(ContainSubstring(want))
		},
		Entry("the configuration", `,"mac":"02:00:00:00:00:01"`, "", "02:00:00:00:00:01"),
		Entry("CNI_ARGS", `,"mac":"02:00:00:00:00:01"`, "MAC=02:00:00:00:00:02", "02:00:00:00:00:02"),
		Entry("args", `,"mac":"02:00:00:00:00:01","args":{"cni":{"mac":"02:00:00:00:00:03"}}`, "MAC=02:00:00:00:00:02", "02:00:00:00:00:03"),
		Entry("runtimeConfig", `,"mac":"02:00:00:00:00:01","args":{"cni":{"mac":"02:00:00:00:00:03"}},"runtimeConfig":{"Mac":"02-00-00-00-00-04"}`,
			"MAC=02:00:00:00:00:02", "02:00:00:00:00:04"),
	)

	It("fails if another link of the master has the MAC, and names the MAC", func() {
		keys := onUplink + `,"mac":"02:00:00:00:00:01"`
		b.Add(b.NewCall(conf("1.0.0", keys, nstest.StaticV4)))
		for _, ipam := range []string{nstest.Static(nstest.ContainerV6 + "/64"), noIPAM} {
			b.Refuse(b.Call("two", b.NewContainer(), conf("1.0.0", keys, ipam)), types.CodeConfig, "master uplink0, or another macvlan on it, already uses the MAC address 02:00:00:00:00:01")
		}
		b.Refuse(b.Call("two", b.NewContainer(), conf("1.0.0", onUplink+`,"mac":"`+macOf(b.Host, "uplink0")+`"`, noIPAM)), types.CodeConfig, "master uplink0, or another macvlan on it, already uses the MAC address")
	})

	Describe("duplicate address detection", func() {
		taken := `{"type":"static","addresses":[{"address":"198.18.0.50/24"},{"address":"` + nstest.OutsideV6 + `/64"}]}`
		It("fails if another host on the segment has the address, and leaves nothing", func() {
			b.Refuse(b.Call("one", nstest.New(GinkgoTB()), conf("1.0.0", onUplink, taken)), attach.CodeDuplicate, nstest.OutsideV6+"/64: the address is in use on the segment")
		})
		It("fails if another container of the host has the address", func() {
			config := conf("1.0.0", onUplink, nstest.Static(nstest.ContainerV6+"/64"))
			b.Add(b.NewCall(config))
			b.Refuse(b.Call("two", nstest.New(GinkgoTB()), config), attach.CodeDuplicate, nstest.ContainerV6)
		})
		It("releases the lease of a duplicate", func() {
			b.Outside.Batch(GinkgoTB(), "address add 2001:db8:18::100/64 dev uplink0 nodad")
			c := b.Call("one", nstest.New(GinkgoTB()), conf("1.0.0", onUplink, b.HostLocal()))
			b.Refuse(c, attach.CodeDuplicate, "2001:db8:18::100/64")
			Expect(b.Reservations()).To(BeEmpty())
			Expect(b.Add(c).IPs[1].Address.String()).To(Equal("2001:db8:18::101/64")) // the next ADD gets the next address
		})
		It("does not wait with optimisticDAD, and the address is usable at once", func() {
			container := nstest.New(GinkgoTB())
			b.Add(b.Call("one", container, conf("1.0.0", onUplink+`,"optimisticDAD":true`, nstest.StaticDual)))
			Expect(container.IP("-6 address show dev eth0 tentative")).To(ContainSubstring("optimistic"))
			nstest.ServeTCP(GinkgoTB(), container, "["+nstest.ContainerV6+"]:80")
			nstest.MustDial(GinkgoTB(), b.Outside, "["+nstest.ContainerV6+"]:80", "")
		})
		It("does not wait for IPv4 addresses", func() {
			container := nstest.New(GinkgoTB())
			b.Add(b.Call("one", container, conf("1.0.0", onUplink, nstest.StaticV4)))
			Expect(container.IP("-6 address show dev eth0 tentative")).To(ContainSubstring("fe80"))
		})
	})

	It("creates a layer 2 link without IPAM, and leaves the kernel's autoconfiguration enabled", func() {
		container := b.NewContainer()
		result := b.Add(b.Call("one", container, conf("0.3.1", onUplink+`,"dns":{"nameservers":["192.0.2.1"]}`, noIPAM)))
		Expect(result.IPs).To(BeEmpty())
		Expect(result.DNS.Nameservers).To(Equal([]string{"192.0.2.1"}))
		Expect(container.IP("link show eth0")).To(ContainSubstring("UP,LOWER_UP"))
		Expect(container.Sysctl(GinkgoTB(), "net/ipv6/conf/eth0/accept_ra")).To(Equal("1"))
	})

	It("returns the DNS of IPAM unless the configuration has its own", func() {
		Expect(b.Add(b.NewCall(conf("1.0.0", onUplink, nstest.StaticDual))).DNS.Nameservers).To(Equal([]string{"198.18.0.53"}))
		Expect(b.Add(b.Call("two", b.NewContainer(), conf("1.0.0", onUplink+`,"dns":{"nameservers":["192.0.2.1"]}`, nstest.StaticDual))).DNS.Nameservers).
			To(Equal([]string{"192.0.2.1"}))
	})

	Describe("another IPAM plugin", func() {
		It("calls the ADD of an IPAM plugin that uses the link after it is up, and its DEL before the link is deleted", func() {
			c := b.NewCall(conf("1.1.0", onUplink, `{"type":"dhcp"}`))
			nstest.LinkForIPAM{Plugin: plugin(), Call: c}.Require(GinkgoTB(), "DEL")
		})
		It("may use the link, as dhcp does", func() {
			dir, log := nstest.NewIPAMScript(GinkgoTB(), "dhcp", `
				[ $CNI_COMMAND = ADD ] || exit 0
				nsenter --net=$CNI_NETNS cat /proc/sys/net/ipv6/conf/$CNI_IFNAME/ndisc_notify >>$LOG
				nsenter --net=$CNI_NETNS ip link set $CNI_IFNAME up || exit 1
				echo '{"cniVersion":"1.0.0","ips":[{"address":"198.18.0.60/24","gateway":"198.18.0.2"}],"routes":[{"dst":"0.0.0.0/0"}]}'`)
			container := b.NewContainer()
			c := b.Call("one", container, conf("1.0.0", onUplink, `{"type":"dhcp"}`))
			c.Path = dir
			b.Outside.Batch(GinkgoTB(), "neigh add 198.18.0.60 lladdr 02:00:00:00:00:ee dev uplink0 nud reachable")
			mac := b.Add(c).Interfaces[0].MAC
			By("announcing the address, although the link was up before it had the address")
			Eventually(func() string { return b.Outside.IP("neigh show 198.18.0.60") }).Should(ContainSubstring(mac))
			nstest.ServeTCP(GinkgoTB(), container, "198.18.0.60:80")
			nstest.MustDial(GinkgoTB(), b.Outside, "198.18.0.60:80", "")
			By("calling its DEL before the link is deleted")
			b.OK("DEL", c)
			Expect(nstest.ReadFile(GinkgoTB(), log)).To(And(HavePrefix("ADD: link\n1\n"), HaveSuffix("DEL: link\n")))
			Expect(container.IP("-br link")).NotTo(ContainSubstring("eth0"))
		})
		It("leaves nothing in the container when it fails", func() {
			dir, log := nstest.NewIPAMScript(GinkgoTB(), "broken", `[ $CNI_COMMAND = ADD ] || exit 0
				echo '{"cniVersion":"1.0.0","code":11,"msg":"no address today"}'; exit 1`)
			c := b.NewCall(conf("1.0.0", onUplink, `{"type":"broken"}`))
			c.Path = dir
			b.Refuse(c, types.CodeTryAgain, `IPAM plugin "broken": no address today`)
			b.Refuse(c, types.CodeTryAgain, "no address today") // and not "file exists"
			Expect(nstest.ReadFile(GinkgoTB(), log)).To(MatchRegexp(`^(ADD: (no )?link\n){2}$`))
		})
		It("leaves nothing when it fails and the master is in the container", func() {
			container := b.NewContainer()
			nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "net0"}, nstest.End{In: b.Outside, Name: "peer0"})
			Eventually(func() string { return container.IP("link show net0") }).Should(ContainSubstring("state UP"))
			b.Refuse(b.Call("one", container, conf("1.0.0", `"master":"net0","linkInContainer":true`, `{"type":"nope"}`)), types.CodeConfig, `"nope"`)
		})
		It("releases the addresses after the link is deleted if ADD fails later", func() {
			dir, log := nstest.NewIPAMScript(GinkgoTB(), "odd", `[ $CNI_COMMAND = ADD ] || exit 0
				echo '{"cniVersion":"1.0.0","ips":[{"address":"198.18.0.60/24"}],"routes":[{"dst":"0.0.0.0/0","gw":"192.0.2.1"}]}'`)
			c := b.NewCall(conf("1.0.0", onUplink, `{"type":"odd"}`))
			c.Path = dir
			b.Refuse(c, types.CodeConfig, "add route 0.0.0.0/0 via 192.0.2.1 to eth0")
			Expect(nstest.ReadFile(GinkgoTB(), log)).To(MatchRegexp(`^ADD: (no )?link\nDEL: no link\n$`))
		})
		It("is named in the error if it does not exist", func() {
			b.Refuse(b.NewCall(conf("1.0.0", onUplink, `{"type":"nope"}`)), types.CodeConfig, `failed to find plugin "nope"`)
		})
		It("must return an address", func() {
			b.Refuse(b.NewCall(conf("1.0.0", onUplink, `{"type":"static"}`)), types.CodeConfig, "returned missing IP config")
		})
	})

	It("rejects an interface name that exists in the container, and keeps the existing attachment", func() {
		c := b.NewCall(conf("1.0.0", onUplink, b.HostLocal()))
		b.Add(c)
		b.Refuse(c, types.CodeConfig, `interface "eth0" already exists`)
	})

	DescribeTable("names its interface in the error if the interface is removed during ADD", func(at string) {
		c := b.NewCall(conf("1.1.0", onUplink, b.HostLocal()))
		nstest.RequireRemovedInterfaceInError(GinkgoTB(), plugin(), c, at)
		Expect(b.Reservations()).To(BeEmpty())
	},
		Entry("before its alias is set", "set link eth0 alias"),
		Entry("before it is set up", "set link eth0 up"),
		Entry("before its addresses are added", "add address 198.18.0.100/24"),
		Entry("at the last step", "set link eth0 address"),
	)

})

// Refuse compares the state before and after each call, so that all calls can share a bed.
var _ = Describe("the configuration", Ordered, ContinueOnFailure, func() {
	var b *nstest.Bed
	BeforeAll(func() { b = newBed() })

	DescribeTable("is rejected by ADD if it is invalid",
		func(config, args string, code int, texts ...string) {
			c := b.NewCall(config)
			c.Args = args
			b.Refuse(c, code, texts...)
		},
		Entry("an unknown mode", conf("1.0.0", `"mode":"trunk"`, nstest.StaticV4), "", types.CodeConfig, `unknown macvlan mode: "trunk"`, "want bridge, private, vepa or passthru"),
		Entry("an MTU below zero", conf("1.0.0", `"mtu":-1`, nstest.StaticV4), "", types.CodeConfig, "mtu -1 must be between 68 and 65535"),
		Entry("an MTU too small", conf("1.0.0", `"mtu":67`, nstest.StaticV4), "", types.CodeConfig, "mtu 67 must be between 68 and 65535"),
		Entry("a MAC of five bytes", conf("1.0.0", `"mac":"02:00:00:00:00"`, nstest.StaticV4), "", types.CodeConfig, `invalid MAC address "02:00:00:00:00"`),
		Entry("a multicast MAC", conf("1.0.0", "", nstest.StaticV4), "MAC=01:00:00:00:00:01", types.CodeConfig, "unicast"),
		Entry("a negative queue length", conf("1.0.0", `"bcqueuelen":-1`, nstest.StaticV4), "", types.CodeConfig, "bcqueuelen -1"),
		Entry("a queue length that is too large", conf("1.0.0", `"bcqueuelen":4294967296`, nstest.StaticV4), "", types.CodeConfig, "bcqueuelen 4294967296"),
		Entry("the loopback interface as master", conf("1.0.0", `"master":"lo"`, nstest.StaticV4), "", types.CodeConfig, "master lo is the loopback"),
		Entry("a master whose name is too long", conf("1.0.0", `"master":"a-very-long-master"`, nstest.StaticV4), "", types.CodeConfig, "is not an interface name"),
		Entry("several problems, all of which the error names", conf("1.0.0", `"mode":"x","mtu":-1,"mac":"y","bcqueuelen":-1`, nstest.StaticV4), "", types.CodeConfig, `"x"`, "mtu -1", `"y"`, "bcqueuelen -1"),
		Entry("layer 2 before 0.3.0", conf("0.2.0", onUplink, noIPAM), "", types.CodeConfig, "cannot convert: no valid IP addresses"),
		Entry("an address that is its own gateway", conf("1.0.0", onUplink, `{"type":"static","addresses":[{"address":"10.68.0.5/24","gateway":"10.68.0.5"}]}`), "",
			types.CodeConfig, "address 10.68.0.5/24 is its own gateway"),
		Entry("unknown CNI_ARGS", conf("1.0.0", onUplink, nstest.StaticV4), "X=1", types.CodeEnvironment, "unknown args"),
		Entry("an unknown key with strict", conf("1.0.0", onUplink+`,"strict":true,"mod":"vepa"`, nstest.StaticV4), "", types.CodeUnsupported, "mod: unknown key"),
		Entry("an invalid configuration of the IPAM plugin", conf("1.0.0", onUplink, nstest.Static("x")), "", types.CodeConfig,
			`IPAM plugin "static": ipam.addresses[0].address: the 'address' field is expected to be in CIDR notation, got: 'x'`),
	)

	DescribeTable("STATUS reports whether an ADD would succeed:",
		func(keys, ipam, text string) { b.RequireStatus(conf("1.1.0", keys, ipam), text) },
		Entry("success", onUplink, nstest.StaticV4, ""),
		Entry("success with the interface of the default route, layer 2", "", noIPAM, ""),
		Entry("success with a master in the container, which STATUS does not check", `"master":"net0","linkInContainer":true`, noIPAM, ""),
		Entry("the MTU is larger than the master's", onUplink+`,"mtu":9000`, nstest.StaticV4, "invalid MTU 9000"),
	)
})

var _ = It("an ADD during which another program deletes the master can be tried again", func() {
	b := newBed()
	b.RequireTryAgain(conf("1.0.0", `"master":"gone0"`, nstest.StaticV4), func() {
		_, _ = b.Host.Exec("ip", "link", "del", "gone0") // if the last ADD had fewer steps
		b.Host.Batch(GinkgoTB(), "link add gone0 type veth peer name gone1", "link set gone0 up")
	}, func() { _, _ = b.Host.Exec("ip", "link", "del", "gone0") })
})
