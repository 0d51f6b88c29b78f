package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("ptp", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	Describe("ADD", func() {
		It("connects containers and the host with IPv4 and IPv6", func() {
			conf := b.conf("1.1.0", `"mtu":1400,`, v4range, v6range)
			one, two := newContainer(), newContainer()
			first := b.Call("one", one, conf)
			first.Env = []string{"CNI_LOG_LEVEL=debug"}
			reply := b.OK("ADD", first)
			host := reply.Result(GinkgoTB()).Interfaces[0].Name

			By("not waiting for duplicate address detection on either end")
			Expect(reply.Stderr).To(ContainSubstring("add link veth"))
			Expect(reply.Stderr).NotTo(ContainSubstring("await addresses"))
			Expect(one.IP("-6 addr show dev eth0 scope global tentative")).To(BeEmpty())
			Expect(b.Host.IP("-6 addr show dev " + host + " scope global tentative")).To(BeEmpty())

			for _, addr := range []string{"10.1.2.2:80", "[fd00:1::2]:80"} {
				nstest.ServeTCP(GinkgoTB(), one, addr)
			}
			b.Add(b.Call("two", two, conf))
			nstest.MustDial(GinkgoTB(), two, "[fd00:1::2]:80", "fd00:1::3")
			nstest.MustDial(GinkgoTB(), two, "10.1.2.2:80", "10.1.2.3")
			nstest.MustDial(GinkgoTB(), b.Host, "10.1.2.2:80", "10.1.2.1")
			nstest.MustDial(GinkgoTB(), b.Host, "[fd00:1::2]:80", "fd00:1::1")
		})

		It("needs no retransmission for the first packet, in both directions and families", func() {
			conf := b.conf("1.1.0", "", v4range, v6range)
			for i := range 12 {
				one, two := newContainer(), newContainer()
				var addrs []string
				for _, ip := range b.Add(b.Call(fmt.Sprint("one", i), one, conf)).IPs {
					addrs = append(addrs, netip.AddrPortFrom(ip.Address.Addr(), 80).String())
					nstest.ServeTCP(GinkgoTB(), one, addrs[len(addrs)-1])
				}
				from, to := two, addrs
				if i%2 == 1 { // connect to the newer container
					from, to = one, nil
				}
				for _, ip := range b.Add(b.Call(fmt.Sprint("two", i), two, conf)).IPs {
					if i%2 == 1 {
						to = append(to, netip.AddrPortFrom(ip.Address.Addr(), 80).String())
						nstest.ServeTCP(GinkgoTB(), two, to[len(to)-1])
					}
				}
				slices.Reverse(to) // IPv6 first, while the kernel may still be processing the changes
				for _, addr := range to {
					nstest.MustDial(GinkgoTB(), from, addr, "")
				}
				Expect(retransmissions(one)).To(Equal("0"))
				Expect(retransmissions(two)).To(Equal("0"))
			}
		})

		It("keeps a container reachable from the host without a delay after a later plugin changed its MAC", func() {
			container := newContainer()
			b.Add(b.Call("one", container, b.conf("1.1.0", "", v4range, v6range)))
			for _, addr := range []string{"10.1.2.2:80", "[fd00:1::2]:80"} {
				nstest.ServeTCP(GinkgoTB(), container, addr)
			}
			container.IP("link set eth0 address 02:00:00:00:00:99")
			for _, addr := range []string{"10.1.2.2:80", "[fd00:1::2]:80"} {
				nstest.MustDial(GinkgoTB(), b.Host, addr, "")
			}
			Expect(retransmissions(b.Host)).To(Equal("0"))
		})

		It("returns the interfaces, addresses and routes that it created", func() {
			conf := strings.TrimSuffix(b.conf("1.1.0", `"mtu":1400,`, v4range, v6range), "}") + `,"dns":{"nameservers":["10.1.2.1"],"search":["a.example"]}}`
			container := newContainer()
			result := b.Add(b.Call("one", container, conf))
			Expect(result.Interfaces).To(HaveLen(2))
			Expect(result.Interfaces[0]).To(And(HaveField("Name", MatchRegexp("^veth[0-9a-f]{8}$")), HaveField("MTU", 1400), HaveField("Sandbox", "")))
			Expect(result.Interfaces[1]).To(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", container.Path())))
			Expect(b.Host.IP("link show " + result.Interfaces[0].Name)).To(And(
				ContainSubstring("mtu 1400"), ContainSubstring("qlen 1000"), ContainSubstring("LOWER_UP"),
				ContainSubstring(result.Interfaces[0].MAC), ContainSubstring("alias plumb:net1/one/eth0")))
			Expect(container.IP("link show eth0")).To(And(
				ContainSubstring("mtu 1400"), ContainSubstring("qlen 1000"), ContainSubstring("LOWER_UP"),
				ContainSubstring(result.Interfaces[1].MAC)))
			Expect(result.IPs).To(HaveEach(HaveField("Interface", containerIndex)))
			Expect(fmt.Sprint(result.IPs[0].Address, result.IPs[0].Gateway, result.IPs[1].Address, result.IPs[1].Gateway)).
				To(Equal("10.1.2.2/24 10.1.2.1 fd00:1::2/64 fd00:1::1"))
			Expect(result.Routes).To(HaveLen(2))
			Expect(result.DNS).To(Equal(types.DNS{Nameservers: []string{"10.1.2.1"}, Search: []string{"a.example"}}))
			By("setting the sysctls of both ends, which ignore router advertisements")
			host := result.Interfaces[0].Name
			for key, want := range map[string]string{
				"net/ipv6/conf/eth0/accept_ra": "0", "net/ipv6/conf/eth0/accept_dad": "0",
				"net/ipv6/conf/eth0/keep_addr_on_down": "1", "net/ipv6/conf/eth0/disable_ipv6": "0", "net/ipv6/conf/lo/disable_ipv6": "0",
			} {
				Expect(container.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
			}
			for key, want := range map[string]string{
				"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
				"net/ipv6/conf/" + host + "/accept_ra": "0", "net/ipv6/conf/" + host + "/accept_dad": "0",
			} {
				Expect(b.Host.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
			}
			By("adding a neighbor entry for the other end to each end")
			for _, gw := range []string{"10.1.2.1", "fd00:1::1"} {
				Expect(container.IP("neigh show " + gw)).To(ContainSubstring("dev eth0 lladdr " + result.Interfaces[0].MAC))
			}
			for _, ip := range []string{"10.1.2.2", "fd00:1::2"} {
				Expect(b.Host.IP("neigh show " + ip)).To(ContainSubstring("dev " + host + " lladdr " + result.Interfaces[1].MAC))
			}
		})

		It("works if IPv6 is disabled by default on the host and in the container", func() {
			container, peer := newContainer(), newContainer()
			for _, n := range []*nstest.NS{b.Host, container} {
				n.SetSysctl(GinkgoTB(), "net/ipv6/conf/default/disable_ipv6", "1")
			}
			b.Add(b.Call("one", container, b.conf("1.1.0", "", v6range)))
			b.Add(b.Call("two", peer, b.conf("1.1.0", "", v6range)))
			nstest.ServeTCP(GinkgoTB(), container, "[fd00:1::2]:80")
			nstest.MustDial(GinkgoTB(), peer, "[fd00:1::2]:80", "fd00:1::3")
		})

		// state returns the addresses and routes of both ends, as ip prints them.
		state := func(container *nstest.NS, host string) string {
			GinkgoHelper()
			out := ""
			for _, end := range []struct {
				n    *nstest.NS
				name string
			}{{container, "eth0"}, {b.Host, host}} {
				for _, line := range []string{
					"ip -br -4 addr show dev %s", "ip -br -6 addr show dev %s scope global",
					"ip -4 route show dev %s", "ip -6 route show dev %s proto boot",
				} {
					line = fmt.Sprintf(line, end.name)
					out += "$ " + line + "\n" + end.n.MustLine(GinkgoTB(), line)
				}
			}
			// The index of the other end differs between runs, and ip pads the columns.
			var lines []string
			for line := range strings.SplitSeq(out, "\n") {
				words := strings.Fields(line)
				if len(words) > 0 && strings.Contains(words[0], "@") {
					words[0], _, _ = strings.Cut(words[0], "@")
				}
				lines = append(lines, strings.Join(words, " "))
			}
			return strings.Join(lines, "\n")
		}

		DescribeTable("adds addresses and routes to both ends", func(name string, conf func() string) {
			container := newContainer()
			c := b.Call("one", container, conf())
			reply := b.OK("ADD", c)
			nstest.Golden(GinkgoTB(), name, state(container, reply.Result(GinkgoTB()).Interfaces[0].Name))
			c.Config = nstest.WithPrevResult(c.Config, reply.Stdout)
			b.OK("CHECK", c)
		},
			Entry(nil, "v4", func() string { return b.conf("1.1.0", "", v4range) }),
			Entry(nil, "v6", func() string { return b.conf("1.1.0", "", v6range) }),
			Entry(nil, "dual", func() string { return b.conf("1.1.0", "", v4range, v6range) }),
			Entry(nil, "single", func() string { // prefixes of one address: /32 and /128
				return static(`{"address":"10.1.2.5/32","gateway":"169.254.1.1"},{"address":"fd00:1::5/128","gateway":"fe80::1"}`, defaultRoutes)
			}),
			Entry(nil, "several", func() string { // two addresses with one gateway, one with another, and one without
				return static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"},{"address":"10.1.2.3/24","gateway":"10.1.2.1"},`+
					`{"address":"10.1.3.2/24","gateway":"10.1.3.1"},{"address":"10.1.4.2/24"},`+
					`{"address":"fd00:1::2/64","gateway":"fd00:1::1"},{"address":"fd00:1::3/64","gateway":"fd00:1::4"}`, defaultRoutes)
			}),
			Entry(nil, "routes", func() string {
				return static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"}`,
					`,"routes":[{"dst":"10.50.0.0/16","mtu":1300,"advmss":1200,"priority":77},{"dst":"10.60.0.0/16","gw":"10.1.2.9"},`+
						`{"dst":"10.1.2.0/24"},{"dst":"0.0.0.0/0"},{"dst":"0.0.0.0/0"},{"dst":"10.70.0.0/16","gws":["10.1.2.1","10.1.2.9"]}]`)
			}),
		)

		It("adds routes to another routing table, and CHECK finds them", func() {
			for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
				container := newContainer()
				conf := strings.Replace(static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"}`,
					`,"routes":[{"dst":"0.0.0.0/0","table":100},{"dst":"10.60.0.0/16","table":100}]`), "1.1.0", version, 1)
				c := b.Attach(b.Call("one", container, conf))
				Expect(container.IP("-4 route show table 100")).To(And(
					ContainSubstring("default via 10.1.2.1"), ContainSubstring("10.60.0.0/16 via 10.1.2.1")))
				b.OK("CHECK", c)
				container.IP("route flush table 100")
				if version == "1.1.0" {
					Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Msg).To(ContainSubstring("no route 0.0.0.0/0 via 10.1.2.1 table 100"))
				}
				b.OK("DEL", c)
			}
		})

		It("adds a route with an unspecified gateway as a route with scope link", func() {
			container := newContainer()
			c := b.Call("one", container, static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"},{"address":"fd00:1::2/64","gateway":"fd00:1::1"}`,
				`,"routes":[{"dst":"0.0.0.0/0","gw":"0.0.0.0"},{"dst":"::/0","gw":"::"}]`))
			reply := b.OK("ADD", c)
			Expect(container.IP("-4 route show default")).To(Equal("default dev eth0 scope link"))
			Expect(container.IP("-6 route show default")).To(ContainSubstring("default dev eth0 metric 1024"))
			c.Config = nstest.WithPrevResult(c.Config, reply.Stdout)
			b.OK("CHECK", c)
		})

		It("does not use the unspecified gateway of a route as gateway of an address", func() {
			conf := static(`{"address":"10.1.2.2/24"}`, `,"routes":[{"dst":"0.0.0.0/0","gw":"0.0.0.0"}]`)
			Expect(b.Run("ADD", b.Call("one", newContainer(), conf)).Failure(GinkgoTB()).Msg).To(ContainSubstring("has no gateway"))
		})

		It("uses the gateway of a route for addresses from the runtime, which have no gateway", func() {
			container := newContainer()
			c := b.Call("one", container, withIPAM("1.1.0", `"runtimeConfig":{"ips":["10.1.2.77/24"]},`,
				`"type":"static","routes":[{"dst":"0.0.0.0/0","gw":"10.1.2.1"}]`))
			reply := b.OK("ADD", c)
			Expect(container.IP("-4 route")).To(Equal("default via 10.1.2.1 dev eth0\n" +
				"10.1.2.0/24 via 10.1.2.1 dev eth0 src 10.1.2.77\n10.1.2.1 dev eth0 scope link src 10.1.2.77"))
			c.Config = nstest.WithPrevResult(c.Config, reply.Stdout)
			b.OK("CHECK", c)
		})

		It("passes traffic to each of several addresses, including /32 and /128", func() {
			container, peer := newContainer(), newContainer()
			b.Add(b.Call("one", container, static(`{"address":"10.1.2.5/32","gateway":"169.254.1.1"},{"address":"10.1.3.5/24","gateway":"10.1.3.1"},`+
				`{"address":"fd00:1::5/128","gateway":"fe80::1"}`, defaultRoutes)))
			b.Add(b.Call("two", peer, static(`{"address":"10.1.2.6/32","gateway":"169.254.1.1"},{"address":"fd00:1::6/128","gateway":"fe80::1"}`, defaultRoutes)))
			for _, addr := range []string{"10.1.2.5:80", "10.1.3.5:80", "[fd00:1::5]:80"} {
				nstest.ServeTCP(GinkgoTB(), container, addr)
				nstest.MustDial(GinkgoTB(), peer, addr, "")
			}
		})
	})

	DescribeTable("masquerades with each backend, and DEL removes the rules if ipMasq is no longer configured", func(backend string) {
		keys := `"ipMasq":true,"ipMasqBackend":"` + backend + `",`
		b.RequireMasquerade(b.conf("1.1.0", keys, v4range, v6range), b.conf("1.1.0", "", v4range, v6range),
			[2]string{"10.1.2.2", "fd00:1::2"}, [2]string{"10.1.2.3", "fd00:1::3"})
	}, Entry(nil, "nftables"), Entry(nil, "iptables"))

	DescribeTable("does not masquerade packets to ipMasqExcept, with each backend", func(backend string) {
		b.RequireMasqueradeExcept(func(keys string) string {
			return b.conf("1.1.0", keys+`"ipMasqBackend":"`+backend+`",`, v4range, v6range)
		}, [2]string{"10.1.2.0/24", "fd00:1::/64"}, [2]string{"10.1.2.2", "fd00:1::2"})
	}, Entry(nil, "nftables"), Entry(nil, "iptables"))

	It("keeps the address of the container when ADD is repeated", func() {
		c := b.Call("one", newContainer(), b.conf("1.1.0", "", v4range))
		b.Add(c)
		b.Refuse(c, types.CodeConfig, `"eth0" already exists`)
	})

	DescribeTable("ADD names its interface in the error if the interface is removed during ADD", func(at string) {
		container := newContainer()
		b.Host.SetForwarding(GinkgoTB(), "1") // DEL does not reset it
		restored := b.Restored(b.Host, container)
		c := b.Call("one", container, b.conf("1.1.0", "", v4range, v6range))
		nstest.RequireRemovedInterfaceInError(GinkgoTB(), plugin(), c, at)
		restored()
	},
		Entry("before it is set up", "set link eth0 up"),
		Entry("before its addresses are added", "add address 10.1.2.2/24"),
		Entry("before the gateway addresses are added", "add address 10.1.2.1/32"),
		Entry("at the last step", "add neighbor"),
	)

	It("ignores CNI_ARGS, a MAC and prevResult", func() {
		conf := strings.TrimSuffix(b.conf("1.1.0", `"runtimeConfig":{"mac":"02:00:00:00:00:07"},`, v4range), "}") + `,"prevResult":5}`
		c := b.Call("one", newContainer(), conf)
		c.Args = "IgnoreUnknown=1;MAC=02:00:00:00:00:08"
		Expect(b.Add(c).Interfaces[containerIndex].MAC).NotTo(HavePrefix("02:00:00:00:00"))
	})

	Describe("DEL", func() {
		It("restores the state of the host, the container and the reservations, even if it is repeated", func() {
			conf := b.conf("1.1.0", `"ipMasq":true,`, v4range, v6range)
			b.Add(b.Call("warm", newContainer(), conf))
			b.RequireDelRestores(b.Call("one", newContainer(), conf))
		})

		DescribeTable("removes the rules that a concurrent ADD adds before the link is deleted", func(backend string) {
			conf := b.conf("1.1.0", `"ipMasq":true,"ipMasqBackend":"`+backend+`",`, v4range)
			b.Add(b.Call("warm", newContainer(), conf))
			c := b.Call("one", newContainer(), conf)
			b.RequireDelAfterLateAdd(c, func(host *ns.Handle) error {
				m := masq.Masq{HostNS: host, Owner: types.Attachment{Network: "net1", ContainerID: "one", IfName: "eth0"}, Backend: backend}
				return masq.Add(&undo.Stack{}, m, []netip.Prefix{netip.MustParsePrefix("10.1.2.3/24")})
			})
		}, Entry(nil, "nftables"), Entry(nil, "iptables"))
	})

	Describe("CHECK", func() {
		var c nstest.Call
		var host string
		BeforeEach(func() {
			conf := b.conf("1.1.0", `"ipMasq":true,`, v4range, v6range)
			c = b.Call("one", newContainer(), conf)
			reply := b.OK("ADD", c)
			host = reply.Result(GinkgoTB()).Interfaces[0].Name
			c.Config = nstest.WithPrevResult(conf, reply.Stdout)
			b.OK("CHECK", c)
		})

		It("names each difference, and REPAIR restores it, on the container's side only if it is told to", func() {
			for _, damage := range []struct {
				in         *nstest.NS
				line, want string
			}{
				{c.Container, "ip addr del 10.1.2.2/24 dev eth0", "interface eth0 has no address 10.1.2.2/24"},
				{c.Container, "ip route del default", "interface eth0 has no route 0.0.0.0/0 via 10.1.2.1"},
				{c.Container, "ip -6 route del fd00:1::1", "interface eth0 has no route fd00:1::1/128"},
				{c.Container, "ip route del 10.1.2.0/24", "interface eth0 has no route 10.1.2.0/24 via 10.1.2.1"},
				{c.Container, "ip link set eth0 down", "interface eth0 is down"},
				{b.Host, "ip link set HOST down", "interface HOST is down"},
				{b.Host, "ip addr del 10.1.2.1/32 dev HOST", "interface HOST has no address 10.1.2.1/32"},
				{b.Host, "ip -6 route del fd00:1::2 dev HOST", "interface HOST has no route fd00:1::2/128"},
				{b.Host, "sysctl -q -w net.ipv4.ip_forward=0", "sysctl net/ipv4/ip_forward is"},
				{b.Host, "sysctl -q -w net.ipv6.conf.all.forwarding=0", "sysctl net/ipv6/conf/all/forwarding is"},
				{b.Host, "sysctl -q -w net.ipv6.conf.HOST.disable_ipv6=1", "disable_ipv6 is"},
				{b.Host, "sysctl -q -w net.ipv6.conf.HOST.accept_ra=1", "accept_ra is"},
				{b.Host, "nft delete table inet plumb", "masquerade"},
				{c.Container, "ip addr del fd00:1::2/64 dev eth0", "interface eth0 has no address fd00:1::2/64"},
			} {
				By(damage.line)
				if strings.HasPrefix(damage.line, "ip addr del fd00") { // the kernel also deletes the preferred source of the routes
					b.Omit = append(b.Omit, "dst=fd00:1::")
				}
				b.RequireRepairOf(c, damage.in, strings.ReplaceAll(damage.line, "HOST", host), strings.ReplaceAll(damage.want, "HOST", host))
			}
		})

		It("works if new interfaces do not forward by default", func() {
			b.Host.SetSysctl(GinkgoTB(), "net/ipv4/conf/default/forwarding", "0")
			second := b.Attach(b.Call("two", newContainer(), b.conf("1.1.0", "", v4range)))
			b.OK("CHECK", second)
		})

		It("names what stops forwarded packets, with a command that restores them, as REPAIR does", func() {
			b.Outside.Batch(GinkgoTB(), "route add 10.1.2.0/24 via "+nstest.HostV4, "route add fd00:1::/64 via "+nstest.HostV6)
			nstest.ServeTCP(GinkgoTB(), c.Container, "10.1.2.2:80")
			nstest.ServeTCP(GinkgoTB(), c.Container, "[fd00:1::2]:80")
			for _, loss := range []nstest.Loss{
				{Addr: "[fd00:1::2]:80", Line: "ip -6 addr flush dev " + host + " scope link", Text: "interface " + host + " has no link-local IPv6 address"},
				{Addr: "10.1.2.2:80", Line: "sysctl -q -w net.ipv4.conf." + host + ".forwarding=0", Text: "sysctl net/ipv4/conf/" + host + `/forwarding is "0"`},
			} {
				By(loss.Line)
				b.RequireFix(c, loss)
				b.RequireRepairOfLoss(c, loss)
			}
		})

		It("names another program's route that refuses the packets, with the command that deletes it, and REPAIR keeps it", func() {
			b.Outside.Batch(GinkgoTB(), "route add 10.1.2.0/24 via "+nstest.HostV4, "route add fd00:1::/64 via "+nstest.HostV6)
			nstest.ServeTCP(GinkgoTB(), c.Container, "10.1.2.2:80")
			nstest.ServeTCP(GinkgoTB(), c.Container, "[fd00:1::2]:80")
			for _, loss := range []nstest.Loss{
				{Addr: "10.1.2.2:80", Line: "ip route replace blackhole 10.1.2.2", Text: "the host has the blackhole route 10.1.2.2, which refuses packets for 10.1.2.2"},
				{Addr: "10.1.2.2:80", Line: "ip route prepend unreachable 10.1.2.2", Text: "the host has the unreachable route 10.1.2.2, which"},
				{Addr: "[fd00:1::2]:80", Line: "ip route add prohibit fd00:1::2 metric 1", Text: "the host has the prohibit route fd00:1::2, which"},
			} {
				By(loss.Line)
				b.RequireFixOnly(c, loss)
			}
		})

		DescribeTable("names a difference that REPAIR does not restore", func(inContainer bool, line, want string) {
			where := map[bool]*nstest.NS{false: b.Host, true: c.Container}[inContainer]
			b.RequireNoRepair(c.OnContainerSide(), func() { where.MustLine(GinkgoTB(), strings.ReplaceAll(line, "HOST", host)) }, want)
		},
			Entry("gateway of a route", true, "ip route replace default via 10.1.2.77 dev eth0 onlink", "has no route 0.0.0.0/0 via 10.1.2.1"),
			Entry("the pair", true, "ip link del eth0", "find link eth0"),
			Entry("the pair, seen from the host", false, "ip link del HOST", "the host lacks the other end of the veth pair of eth0 (net1/one/eth0)"),
			Entry("host end with another name", false, "ip link set HOST down name veth9", "the host lacks the other end of the veth pair of eth0 (net1/one/eth0)"),
		)

		It("reports an interface of another kind", func() {
			c.Container.IP("link del eth0")
			c.Container.IP("link add eth0 up type bridge")
			Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Msg).To(ContainSubstring(`of kind "bridge", want "veth"`))
		})

		It("reports another mtu of a route", func() {
			c := b.Attach(b.Call("mtu", newContainer(), static(`{"address":"10.1.2.9/24","gateway":"10.1.2.1"}`, `,"routes":[{"dst":"0.0.0.0/0","mtu":1300}]`)))
			b.OK("CHECK", c)
			c.Container.IP("route change default via 10.1.2.1 dev eth0 mtu 1200")
			Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Msg).To(ContainSubstring("has no route 0.0.0.0/0 via 10.1.2.1 mtu 1300"))
		})

		It("fails with the result of another container", func() {
			c.Container = newContainer()
			Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Msg).To(ContainSubstring("sandbox"))
		})

		It("fails without prevResult", func() {
			c.Config = b.conf("1.1.0", "", v4range)
			b.Fails("CHECK", c, types.CodeConfig, "prevResult")
		})

		It("succeeds after a later plugin changed MAC, MTU, queue and sysctls of both ends", func() {
			c.Container.IP("link set eth0 address 02:00:00:00:00:99 mtu 1300 txqueuelen 5 promisc on")
			c.Container.MustLine(GinkgoTB(), "sysctl -q -w net.ipv4.conf.eth0.arp_notify=0 net.ipv6.conf.eth0.accept_dad=1")
			b.Host.IP("link set " + host + " address 02:00:00:00:00:98 mtu 1300")
			b.Host.MustLine(GinkgoTB(), "tc qdisc add dev "+host+" root tbf rate 1mbit burst 100kb latency 25ms")
			b.OK("CHECK", c)
		})

		It("calls the IPAM plugin, and REPAIR calls its REPAIR", func() {
			lose := func() { Expect(os.Remove(filepath.Join(b.DataDir, "net1", "10.1.2.2"))).To(Succeed()) }
			b.RequireRepair(c, lose, `IPAM plugin "host-local": address 10.1.2.2 is not reserved`)
		})

		It("REPAIR takes neither the masquerade nor the host's route from another attachment", func() {
			other := types.Attachment{Network: "net1", ContainerID: "other", IfName: "eth0"}
			b.RequireNoRepair(c, func() {
				m := masq.Masq{HostNS: b.Host.Open(GinkgoTB(), nil), Owner: other}
				Expect(masq.Add(&undo.Stack{}, m, []netip.Prefix{netip.MustParsePrefix("10.1.2.2/24")})).To(Succeed())
			}, "the masquerade of 10.1.2.2 belongs to net1/other/eth0 now")
			b.RequireNoRepair(c, func() {
				b.Host.Batch(GinkgoTB(), "link add other0 up type bridge", "route replace 10.1.2.2/32 dev other0")
			}, "has no route 10.1.2.2/32")
		})
	})

	It("GC deletes only what invalid attachments of this network left", func() {
		conf := b.conf("1.1.0", `"ipMasq":true,`, v4range)
		b.RequireGCOfNetwork(conf, strings.NewReplacer(`"net1"`, `"net2"`, "10.1.2", "10.1.9").Replace(conf))
	})

	It("STATUS fails if an ADD would fail", func() {
		b.RequireStatus(b.conf("1.1.0", `"ipMasq":true,`, v4range), "")
		b.RequireStatus(`{"cniVersion":"1.1.0","name":"net1","type":"ptp"}`, "ipam: ptp needs addresses")
		b.RequireStatus(b.conf("1.1.0", `"mtu":5,`, v4range), "mtu 5")
		b.RequireStatus(withIPAM("1.1.0", "", `"type":"dhcp"`), "not to a DHCP server")
		b.RequireStatus(withIPAM("1.1.0", "", `"type":"no-such-ipam"`), "no-such-ipam")
	})

	It("adds and deletes many containers at once, several times, without a duplicate address or leftovers", func() {
		conf := b.conf("1.1.0", `"ipMasq":true,`, v4range, v6range)
		b.Add(b.Call("warm", newContainer(), conf))
		b.RequireManyAtOnce(conf, nstest.FullOrShort(32, 8), nstest.FullOrShort(6, 2))
	})
})

var _ = DescribeTable("leaves nothing if any step of ADD or DEL fails, and a second REPAIR restores what the first one did not", func(keys string, ranges ...string) {
	b := &testbed{nstest.NewBedOn(GinkgoTB(), plugin(), nil, "host-local")}
	b.FaultSweep(nstest.Sweep{Config: b.conf("1.1.0", keys, ranges...), Damage: []string{"nft flush ruleset", "sysctl -q -w net.ipv4.ip_forward=0"}})
},
	Entry("dual stack, masquerade", `"mtu":1400,"ipMasq":true,`, v4range, v6range),
	Entry("masquerade by iptables", `"ipMasq":true,"ipMasqBackend":"iptables","ipMasqExcept":["192.0.2.0/24"],`, v4range),
	Entry("masquerade with exceptions", `"ipMasq":true,"ipMasqExcept":["192.0.2.0/24","198.51.100.0/24"],`, v4range),
)

var _ = It("with a read-only /proc/sys, ADD fails with advice unless the host already forwards, and then only warns", func() {
	b := newTestbed()
	c := b.Call("c1", newContainer(), b.conf("1.1.0", "", v4range, v6range))
	nstest.RequireRefusalOnReadOnlySysctls(GinkgoTB(), plugin(), c)
	c.Host.SetForwarding(GinkgoTB(), "1")
	nstest.RequireAddOnReadOnlySysctls(GinkgoTB(), plugin(), c, "/accept_ra=0")
})

// A refused call changes nothing, so that all calls can share a host.
var _ = Describe("an invalid configuration", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newTestbed() })

	DescribeTable("ADD with bad input returns an error that says what to do, and leaves nothing", func(change func(c *nstest.Call), code int, want ...string) {
		container := newContainer()
		c := b.Call("one", container, b.conf("1.1.0", "", v4range))
		change(&c)
		restored := b.Restored(b.Host, container)
		f := b.Run("ADD", c).Failure(GinkgoTB())
		Expect(f.Code).To(BeEquivalentTo(code))
		for _, w := range want {
			Expect(f.Msg + f.Details).To(ContainSubstring(w))
		}
		Expect(f.CNIVersion).NotTo(BeEmpty())
		restored()
	},
		Entry("no IPAM", func(c *nstest.Call) { c.Config = `{"cniVersion":"1.1.0","name":"net1","type":"ptp"}` }, types.CodeConfig, `ipam: ptp needs addresses; set "ipam"`),
		Entry("an IPAM without a type", func(c *nstest.Call) { c.Config = withIPAM("1.1.0", "", `"subnet":"10.1.2.0/24"`) }, types.CodeConfig, `ipam: ptp needs addresses; set "ipam"`),
		Entry("dhcp", func(c *nstest.Call) { c.Config = withIPAM("1.1.0", `"mtu":67,`, `"type":"dhcp"`) }, types.CodeConfig, "only to the host, and not to a DHCP server; use another IPAM plugin than dhcp", "mtu 67"),
		Entry("an MTU too small", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"mtu":67,`, v4range) }, types.CodeConfig, "mtu 67 must be between 68 and 65535"),
		Entry("a negative MTU", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"mtu":-1500,`, v4range) }, types.CodeConfig, "mtu -1500 must be between"),
		Entry("an MTU too small for IPv6", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"mtu":1279,`, v6range) }, types.CodeConfig, "mtu 1279 of eth0 is too small for address fd00:1::2/64"),
		Entry("an unknown backend", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"ipMasqBackend":"ebtables",`, v4range) }, types.CodeConfig, "ipMasqBackend", "ebtables"),
		Entry("two problems", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"mtu":1,"ipMasqBackend":"ebtables",`, v4range) }, types.CodeConfig, "mtu 1", "ebtables"),
		Entry("no gateway", func(c *nstest.Call) { c.Config = static(`{"address":"10.1.2.2/24"}`, "") }, types.CodeConfig, "address 10.1.2.2/24 has no gateway", "169.254.1.1"),
		Entry("a gateway for one family only", func(c *nstest.Call) {
			c.Config = static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"},{"address":"fd00:1::2/64"}`, "")
		}, types.CodeConfig, "address fd00:1::2/64 has no gateway"),
		Entry("a gateway that is the address", func(c *nstest.Call) { c.Config = static(`{"address":"10.1.2.2/24","gateway":"10.1.2.2"}`, "") }, types.CodeConfig, "is its own gateway"),
		Entry("a gateway of the other family", func(c *nstest.Call) {
			c.Config = withIPAM("1.1.0", "", `"type":"stub"`)
			c.Path, _ = nstest.NewScriptPlugin(GinkgoTB(), "stub", `echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.2/24","gateway":"fe80::1"}]}'`)
		}, types.CodeConfig, "address 10.1.2.2/24 has the gateway fe80::1 of the other family"),
		Entry("an unknown key with strict", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"strict":true,"ipmask":true,`, v4range) }, types.CodeUnsupported, "ipmask: unknown key", `did you mean "ipMasq"?`),
	)
})
