package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const gatewayed = `"isDefaultGateway":true,`

var _ = Describe("bridge", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	Describe("ADD", func() {
		It("connects two containers and the host with IPv4 and IPv6, and the first packet passes", func() {
			conf := b.conf("1.1.0", gatewayed+`"mtu":1400,`, v4range, v6range)
			one, two := newContainer(), newContainer()
			first := b.Call("one", one, conf)
			first.Env = []string{"CNI_LOG_LEVEL=debug"}
			reply := b.OK("ADD", first)
			result := reply.Result(GinkgoTB())
			b.Add(b.Call("two", two, conf))
			for _, addr := range []string{"10.9.0.2:80", "[fd00:9::2]:80"} {
				nstest.ServeTCP(GinkgoTB(), one, addr)
			}
			nstest.MustDial(GinkgoTB(), two, "10.9.0.2:80", "10.9.0.3")
			nstest.MustDial(GinkgoTB(), two, "[fd00:9::2]:80", "fd00:9::3")
			nstest.MustDial(GinkgoTB(), b.Host, "10.9.0.2:80", "10.9.0.1")
			nstest.MustDial(GinkgoTB(), b.Host, "[fd00:9::2]:80", "fd00:9::1")

			By("returning what it created")
			Expect(result.Interfaces).To(HaveLen(3))
			Expect(result.Interfaces[0]).To(And(HaveField("Name", "cni0"), HaveField("MTU", 1400), HaveField("MAC", Not(BeEmpty()))))
			Expect(result.Interfaces[1].Name).To(MatchRegexp("^veth[0-9a-f]{8}$"))
			Expect(result.Interfaces[2]).To(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", one.Path())))
			Expect(result.IPs).To(HaveEach(HaveField("Interface", containerIndex)))
			Expect(fmt.Sprint(result.IPs[0].Address, result.IPs[0].Gateway, result.IPs[1].Address, result.IPs[1].Gateway)).
				To(Equal("10.9.0.2/24 10.9.0.1 fd00:9::2/64 fd00:9::1"))
			Expect(one.IP("link show eth0")).To(And(ContainSubstring(result.Interfaces[2].MAC), ContainSubstring("qlen 1000")))
			Expect(b.Host.IP("link show " + result.Interfaces[1].Name)).To(And(
				ContainSubstring(result.Interfaces[1].MAC), ContainSubstring("alias plumb:net1/one/eth0")))

			By("setting the same routes, sysctls and forwarding as the reference plugin")
			Expect(one.IP("-4 route")).To(Equal("default via 10.9.0.1 dev eth0\n10.9.0.0/24 dev eth0 proto kernel scope link src 10.9.0.2"))
			Expect(one.IP("-6 route show default")).To(ContainSubstring("default via fd00:9::1 dev eth0 metric 1024"))
			for key, want := range map[string]string{
				"net/ipv4/conf/eth0/arp_notify": "1", "net/ipv6/conf/eth0/ndisc_notify": "1", "net/ipv6/conf/eth0/accept_ra": "0",
				"net/ipv6/conf/eth0/accept_dad": "0", "net/ipv6/conf/eth0/keep_addr_on_down": "1", "net/ipv6/conf/eth0/disable_ipv6": "0",
			} {
				Expect(one.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
			}
			for key, want := range map[string]string{
				"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv6/conf/cni0/accept_ra": "0",
				"net/ipv6/conf/cni0/accept_dad":                             "0",
				"net/ipv6/conf/" + result.Interfaces[1].Name + "/accept_ra": "0",
			} {
				Expect(b.Host.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
			}
			By("leaving no address tentative, in the container and on the bridge, without waiting for duplicate address detection")
			Expect(reply.Stderr).To(ContainSubstring("add link veth"))
			Expect(reply.Stderr).NotTo(ContainSubstring("await addresses"))
			Expect(one.IP("-6 addr show scope global tentative")).To(BeEmpty())
			Expect(b.Host.IP("-6 addr show dev cni0 tentative")).To(BeEmpty())
		})

		It("waits for duplicate address detection with enabledad", func() {
			c := b.Call("one", newContainer(), b.conf("1.1.0", gatewayed+`"enabledad":true,`, v6range))
			c.Env = []string{"CNI_LOG_LEVEL=debug"}
			reply := b.OK("ADD", c)
			Expect(reply.Stderr).To(ContainSubstring("await addresses of eth0"))
			Expect(c.Container.Sysctl(GinkgoTB(), "net/ipv6/conf/eth0/accept_dad")).To(Equal("1"))
			Expect(c.Container.IP("-6 addr show tentative")).To(BeEmpty())
		})

		It("fails with enabledad if another host on the bridge uses the address, which the error names", func() {
			other := newContainer()
			b.Add(b.Call("other", other, b.conf("1.1.0", "")))
			other.IP("addr add fd00:9::2/64 dev eth0 nodad")
			f := b.Run("ADD", b.Call("one", newContainer(), b.conf("1.1.0", `"enabledad":true,`, v6range))).Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(attach.CodeDuplicate))
			Expect(f.Msg).To(And(ContainSubstring("fd00:9::2/64: the address is in use"), ContainSubstring("give the other host or this container another address")))
		})

		It("adds no address without IPAM, and returns nothing from a prevResult that lists only interfaces in the container", func() {
			conf := b.conf("1.0.0", "")
			container := newContainer()
			afterLoopback := nstest.WithPrevResult(conf, `{"cniVersion":"1.0.0","interfaces":[{"name":"lo","sandbox":"/x"}],"ips":[{"interface":0,"address":"127.0.0.1/8"}]}`)
			reply := b.OK("ADD", b.Call("one", container, afterLoopback))
			result := reply.Result(GinkgoTB())
			Expect(result.Interfaces).To(HaveExactElements(HaveField("Name", "cni0"), HaveField("Name", HavePrefix("veth")), HaveField("Name", "eth0")))
			Expect(result.IPs).To(BeEmpty())
			Expect(container.IP("-4 addr show eth0")).To(BeEmpty())
			Expect(container.IP("link show eth0")).To(ContainSubstring("LOWER_UP"))
			b.OK("CHECK", b.Call("one", container, nstest.WithPrevResult(conf, reply.Stdout)))
		})

		It("leaves the container end down with disableContainerInterface", func() {
			container := newContainer()
			b.Add(b.Call("one", container, b.conf("1.1.0", `"disableContainerInterface":true,`)))
			Expect(container.IP("link show eth0")).NotTo(ContainSubstring(",UP"))
		})

		It("uses the MAC in CNI_ARGS", func() {
			container := newContainer()
			c := b.Call("one", container, b.conf("1.1.0", ""))
			c.Args = "IgnoreUnknown=1;K8S_POD_NAME=a=b;MAC=c2:b0:57:49:47:f1"
			Expect(b.Add(c).Interfaces[2].MAC).To(Equal("c2:b0:57:49:47:f1"))
			Expect(container.IP("link show eth0")).To(ContainSubstring("c2:b0:57:49:47:f1"))
		})

		It("sets hairpin mode and port isolation if they are configured", func() {
			result := b.Add(b.Call("one", newContainer(), b.conf("1.1.0", `"hairpinMode":true,"portIsolation":true,`)))
			port := b.Host.IP("-d link show " + result.Interfaces[1].Name)
			Expect(port).To(And(ContainSubstring("hairpin on"), ContainSubstring("isolated on")))
			two := b.Add(b.Call("two", newContainer(), b.conf("1.1.0", "")))
			port = b.Host.IP("-d link show " + two.Interfaces[1].Name)
			Expect(port).To(And(ContainSubstring("hairpin off"), ContainSubstring("isolated off")))
		})

		It("sets the bridge promiscuous with promiscMode", func() {
			b.Add(b.Call("one", newContainer(), b.conf("1.1.0", `"promiscMode":true,`)))
			Expect(b.Host.IP("link show cni0")).To(ContainSubstring("PROMISC"))
		})

		It("adds routes with all their attributes, and the default route once", func() {
			container := newContainer()
			routes := `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.50.0.0/16","mtu":1300,"advmss":1200,"priority":77},{"dst":"10.60.0.0/16","gw":"10.9.0.9","table":100}]}}`
			conf := strings.TrimSuffix(b.conf("1.0.0", gatewayed, v4range), "}}") + routes
			reply := b.OK("ADD", b.Call("one", container, conf))
			Expect(container.IP("-4 route")).To(And(
				ContainSubstring("10.50.0.0/16 via 10.9.0.1 dev eth0 metric 77 mtu 1300 advmss 1200"),
				ContainSubstring("default via 10.9.0.1 dev eth0")))
			Expect(strings.Count(container.IP("-4 route"), "default")).To(Equal(1))
			Expect(container.IP("-4 route show table 100")).To(ContainSubstring("10.60.0.0/16 via 10.9.0.9 dev eth0"))
			b.OK("CHECK", b.Call("one", container, nstest.WithPrevResult(conf, reply.Stdout)))
		})

		DescribeTable("keeps the MAC of a bridge that it did not create",
			func(lines ...string) {
				for _, conf := range []string{b.conf("1.1.0", ""), b.conf("1.1.0", gatewayed, v4range)} {
					b.Host.Batch(GinkgoTB(), append([]string{"link add cni0 type bridge"}, lines...)...)
					mac := func() string { return strings.Fields(b.Host.IP("-br link show cni0"))[2] }
					before := mac()
					for _, id := range []string{"one", "two"} {
						Expect(b.Add(b.Call(id, newContainer(), conf)).Interfaces[0].MAC).To(Equal(before))
						Expect(mac()).To(Equal(before))
					}
					for _, id := range []string{"one", "two"} {
						b.OK("DEL", b.Call(id, nil, conf))
						Expect(mac()).To(Equal(before))
					}
					b.Host.IP("link del cni0")
				}
			},
			Entry("down, without ports"),
			Entry("up, without ports", "link set cni0 up"),
			Entry("with the MAC of its uplink", "link set uplink0 address 02:00:00:00:00:01 master cni0", "link set cni0 up"),
			Entry("with an uplink whose MAC is higher than any other", "link set uplink0 address fe:ff:ff:ff:ff:ff master cni0", "link set cni0 up"),
			Entry("with an uplink that is down", "link set uplink0 down address fe:ff:ff:ff:ff:fe master cni0", "link set cni0 up"),
		)

		It("fixes the MAC of an existing bridge that has lost all its ports", func() {
			b.Host.Batch(GinkgoTB(), "link add cni0 type bridge", "link add port0 type veth peer name port1", "link set port0 master cni0", "link del port0")
			conf := b.conf("1.1.0", gatewayed, v4range)
			first := b.Add(b.Call("one", newContainer(), conf)).Interfaces[0].MAC
			Expect(b.Add(b.Call("two", newContainer(), conf)).Interfaces[0].MAC).To(Equal(first))
			b.OK("DEL", b.Call("one", nil, conf))
			Expect(b.Host.IP("link show cni0")).To(ContainSubstring(first))
		})

		It("sets accept_ra of an existing bridge that is not an uplink, and accept_dad of one that is down, as after a killed ADD", func() {
			sysctls := func() string {
				return b.Host.Sysctl(GinkgoTB(), "net/ipv6/conf/cni0/accept_ra") + b.Host.Sysctl(GinkgoTB(), "net/ipv6/conf/cni0/accept_dad")
			}
			b.Host.IP("link add cni0 type bridge")
			b.Add(b.Call("one", newContainer(), b.conf("1.1.0", gatewayed, v6range)))
			Expect(sysctls()).To(Equal("00"))
			b.OK("DEL", b.Call("one", nil, b.conf("1.1.0", gatewayed, v6range)))
			b.Host.IP("link del cni0")
			b.Host.IP("link add cni0 up type bridge")
			b.Add(b.Call("one", newContainer(), b.conf("1.1.0", gatewayed, v6range)))
			Expect(sysctls()).To(Equal("01"))

			By("keeping both on an uplink")
			b.OK("DEL", b.Call("one", nil, b.conf("1.1.0", gatewayed, v6range)))
			b.Host.IP("link del cni0")
			b.Host.IP("link add cni0 up type bridge")
			b.Host.IP("-6 route add default via fe80::1 dev cni0 metric 99 proto ra")
			added := b.Call("one", newContainer(), b.conf("1.1.0", gatewayed, v6range))
			added.Config = nstest.WithPrevResult(added.Config, b.OK("ADD", added).Stdout)
			Expect(sysctls()).To(Equal("21"))
			b.OK("CHECK", added)
		})

		It("adds a gateway address for each of two ranges of one family", func() {
			conf := b.conf("1.1.0", gatewayed, v4range, `[{"subnet":"10.10.0.0/24"}]`)
			b.Add(b.Call("one", newContainer(), conf))
			b.Add(b.Call("two", newContainer(), conf))
			Expect(b.Host.IP("-4 addr show cni0")).To(And(ContainSubstring("10.9.0.1/24"), ContainSubstring("10.10.0.1/24")))
		})

		It("sets accept_ra to 2 on an uplink with an advertised default route when it enables IPv6 forwarding", func() {
			b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/all/forwarding", "0")
			b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/"+nstest.Uplink+"/accept_ra", "1")
			b.Host.IP("-6 route add default via " + nstest.OutsideV6 + " dev " + nstest.Uplink + " proto ra metric 5")
			b.Add(b.Call("one", newContainer(), b.conf("1.1.0", gatewayed, v6range)))
			Expect(b.Host.Sysctl(GinkgoTB(), "net/ipv6/conf/"+nstest.Uplink+"/accept_ra")).To(Equal("2"))
		})
	})

	DescribeTable("ADD fails if the bridge has another address, and replaces the address with forceAddress", func(others bool) {
		b.Host.Batch(GinkgoTB(), "link add cni0 up type bridge", "addr add 10.77.0.1/24 dev cni0")
		if others {
			b.OK("ADD", b.Call("l2", newContainer(), b.conf("1.1.0", "")))
		}
		container := newContainer()
		b.Fails("ADD", b.Call("one", container, b.conf("1.1.0", gatewayed, v4range)), types.CodeConfig,
			`"cni0" already has an IP address different from 10.9.0.1/24`, "10.77.0.1/24", "forceAddress")
		Expect(b.Host.IP("-4 addr show cni0")).To(And(ContainSubstring("10.77.0.1/24"), Not(ContainSubstring("10.9.0.1"))))
		b.Add(b.Call("one", container, b.conf("1.1.0", gatewayed+`"forceAddress":true,`, v4range)))
		Expect(b.Host.IP("-4 addr show cni0")).To(And(ContainSubstring("10.9.0.1/24"), Not(ContainSubstring("10.77"))))
	},
		Entry("while the bridge has ports", true),
		Entry("while the bridge has no ports", false),
	)

	Describe("ADD warns of", func() {
		warnings := func(conf string) string {
			GinkgoHelper()
			return b.OK("ADD", b.Call("one", newContainer(), conf)).Stderr
		}

		It("a bridge that runs STP", func() {
			b.Host.IP("link add cni0 up type bridge stp_state 1 forward_delay 200")
			Expect(warnings(b.conf("1.1.0", gatewayed, v4range))).To(ContainSubstring("bridge cni0 runs STP"))
		})

		It("an mtu larger than the bridge's", func() {
			b.Add(b.Call("other", newContainer(), b.conf("1.1.0", "", v4range)))
			Expect(warnings(b.conf("1.1.0", `"mtu":9000,`, v4range))).To(ContainSubstring("mtu 9000 is larger than the mtu 1500 of bridge cni0"))
		})

		It("a network that is also on another interface of the host", func() {
			b.Host.IP("link add old0 up type bridge")
			b.Host.IP("addr add 10.9.0.1/24 dev old0")
			b.Host.IP("addr add fd00:9::1/64 dev old0 nodad")
			warned := warnings(b.conf("1.1.0", gatewayed, v4range, v6range))
			Expect(warned).To(ContainSubstring("10.9.0.0/24 of bridge cni0 is also on interface old0 (10.9.0.1/24)"))
			Expect(warned).To(ContainSubstring("fd00:9::/64 of bridge cni0 is also on interface old0 (fd00:9::1/64)"))
		})

		It("a gateway outside the network of its address", func() {
			ranges := `[{"subnet":"10.9.0.0/24","gateway":"10.99.0.1"}]`
			Expect(warnings(b.conf("1.1.0", `"isGateway":true,`, ranges, v6range))).To(And(
				ContainSubstring("the gateway 10.99.0.1 is outside the network of address 10.9.0.1/24"), Not(ContainSubstring("fd00:9::1"))))
			Expect(b.Host.IP("-4 addr show cni0")).To(ContainSubstring("10.99.0.1/24"))
		})

		It("nothing if the host reaches the network through its default route or not at all", func() {
			Expect(warnings(b.conf("1.1.0", gatewayed+`"mtu":1500,`, v4range, v6range))).To(BeEmpty())
			b.OK("DEL", b.Call("one", nil, b.conf("1.1.0", gatewayed, v4range, v6range)))
			b.Host.IP("link del cni0")
			b.Host.IP("route add blackhole 10.9.0.0/16")
			Expect(warnings(b.conf("1.1.0", gatewayed, v4range))).To(BeEmpty())
		})
	})

	DescribeTable("masquerades with each backend", func(backend string) {
		conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"ipMasqBackend":"`+backend+`",`, v4range, v6range)
		b.RequireMasquerade(conf, conf, [2]string{"10.9.0.2", "fd00:9::2"}, [2]string{"10.9.0.3", "fd00:9::3"})
	}, Entry(nil, "nftables"), Entry(nil, "iptables"))

	DescribeTable("does not masquerade packets to ipMasqExcept, with each backend", func(backend string) {
		b.RequireMasqueradeExcept(func(keys string) string {
			return b.conf("1.1.0", gatewayed+keys+`"ipMasqBackend":"`+backend+`",`, v4range, v6range)
		}, [2]string{"10.9.0.0/16", "fd00:9::/64"}, [2]string{"10.9.0.2", "fd00:9::2"})
	}, Entry(nil, "nftables"), Entry(nil, "iptables"))

	It("keeps the address of the container when ADD is repeated", func() {
		conf := b.conf("1.1.0", gatewayed, v4range)
		container := newContainer()
		b.Add(b.Call("one", container, conf))
		b.Refuse(b.Call("one", container, conf), types.CodeConfig, `"eth0" already exists`)
		By("including in another namespace")
		b.Refuse(b.Call("one", newContainer(), conf), types.CodeConfig, "not followed by a DEL")
		nstest.ServeTCP(GinkgoTB(), container, "10.9.0.2:80")
		nstest.MustDial(GinkgoTB(), b.Host, "10.9.0.2:80", "10.9.0.1")
	})

	DescribeTable("ADD names its interface in the error if the interface is removed during ADD", func(at string) {
		c := b.Call("one", newContainer(), b.conf("1.1.0", gatewayed, v4range, v6range))
		nstest.RequireRemovedInterfaceInError(GinkgoTB(), plugin(), c, at)
		Expect(b.Reservations()).To(BeEmpty())
	},
		Entry("before the host end becomes a port", "set link veth"),
		Entry("before it is set up", "set link eth0 up"),
		Entry("before its sysctls are written", "write sysctls "),
		Entry("before its addresses are added", "add address 10.9.0.2/24"),
		Entry("after its addresses were added", "set link cni0 address"),
		Entry("at the last step", "set link eth0 address"),
	)

	Describe("DEL", func() {
		It("restores host, container and reservations, even if it is repeated", func() {
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range, v6range)
			b.Add(b.Call("warm", newContainer(), conf))
			b.RequireDelRestores(b.Call("one", newContainer(), conf))
		})

		DescribeTable("removes the rules that a concurrent ADD adds before the link is deleted", func(backend string) {
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"ipMasqBackend":"`+backend+`",`, v4range)
			b.Add(b.Call("warm", newContainer(), conf))
			c := b.Call("one", newContainer(), conf)
			b.RequireDelAfterLateAdd(c, func(host *ns.Handle) error {
				m := masq.Masq{HostNS: host, Owner: types.Attachment{Network: "net1", ContainerID: "one", IfName: "eth0"}, Backend: backend}
				return masq.Add(&undo.Stack{}, m, []netip.Prefix{netip.MustParsePrefix("10.9.0.3/24")})
			})
		}, Entry(nil, "nftables"), Entry(nil, "iptables"))
	})

	Describe("CHECK", func() {
		var c nstest.Call
		var host string
		BeforeEach(func() {
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"macspoofchk":true,"hairpinMode":true,`, v4range, v6range)
			c = b.Call("one", newContainer(), conf)
			reply := b.OK("ADD", c)
			host = reply.Result(GinkgoTB()).Interfaces[1].Name
			c.Config = nstest.WithPrevResult(conf, reply.Stdout)
			b.OK("CHECK", c)
		})

		It("names each difference, and REPAIR restores it, on the container's side only if it is told to", func() {
			for _, damage := range []struct {
				in         *nstest.NS
				line, want string
			}{
				{c.Container, "ip addr del 10.9.0.2/24 dev eth0", "interface eth0 has no address 10.9.0.2/24"},
				{c.Container, "ip addr del fd00:9::2/64 dev eth0", "interface eth0 has no address fd00:9::2/64"},
				{c.Container, "ip route del default", "interface eth0 has no route 0.0.0.0/0 via 10.9.0.1"},
				{c.Container, "ip link set eth0 down", "interface eth0 is down"},
				{b.Host, "ip link set HOST nomaster", "interface HOST is not a port of bridge cni0"},
				{b.Host, "ip link set HOST down", "port HOST is down"},
				{b.Host, "ip link set HOST type bridge_slave hairpin off", "port HOST has hairpin false, want true"},
				{b.Host, "ip link set HOST type bridge_slave isolated on", "port HOST has isolated true, want false"},
				{b.Host, "ip addr del 10.9.0.1/24 dev cni0", "interface cni0 has no gateway address 10.9.0.1/24"},
				{b.Host, "ip route del 10.9.0.0/24 dev cni0", "interface cni0 has no route 10.9.0.0/24: packets for 10.9.0.2 leave through "},
				{b.Host, "ip route del fd00:9::/64 dev cni0", "interface cni0 has no route fd00:9::/64: packets for fd00:9::2 leave through "},
				{b.Host, "ip link set cni0 down", "bridge cni0 is down"},
				{b.Host, "ip link del cni0", "bridge cni0 does not exist"},
				{b.Host, "sysctl -q -w net.ipv4.ip_forward=0", "sysctl net/ipv4/ip_forward is"},
				{b.Host, "sysctl -q -w net.ipv6.conf.HOST.accept_ra=1", "accept_ra is"},
				{b.Host, "sysctl -q -w net.ipv6.conf.cni0.accept_ra=1", "conf/cni0/accept_ra is"},
				{b.Host, "nft delete table inet plumb", "masquerade"},
				{b.Host, "nft delete table bridge plumb", "MAC"},
			} {
				By(damage.line)
				b.RequireRepairOf(c, damage.in, strings.ReplaceAll(damage.line, "HOST", host), strings.ReplaceAll(damage.want, "HOST", host))
			}
		})

		It("names what stops forwarded packets, with a command that restores them, as REPAIR does", func() {
			b.Outside.Batch(GinkgoTB(), "route add 10.9.0.0/24 via "+nstest.HostV4, "route add fd00:9::/64 via "+nstest.HostV6)
			nstest.ServeTCP(GinkgoTB(), c.Container, "10.9.0.2:80")
			nstest.ServeTCP(GinkgoTB(), c.Container, "[fd00:9::2]:80")
			for _, loss := range []nstest.Loss{
				{Addr: "[fd00:9::2]:80", Line: "ip -6 addr flush dev cni0 scope link", Text: "interface cni0 has no link-local IPv6 address"},
				{Addr: "[fd00:9::2]:80", Line: "ip addr flush dev cni0", Text: "interface cni0 has no link-local IPv6 address"},
				{Addr: "10.9.0.2:80", Line: "sysctl -q -w net.ipv4.conf.cni0.forwarding=0", Text: `sysctl net/ipv4/conf/cni0/forwarding is "0"`},
				{Addr: "10.9.0.2:80", Line: "sysctl -q -w net.ipv4.ip_forward=0", Text: `sysctl net/ipv4/ip_forward is "0"`},
			} {
				By(loss.Line)
				b.RequireFix(c, loss)
				b.RequireRepairOfLoss(c, loss)
			}
		})

		It("accepts that the host is no router on the interface in IPv6, for which the kernel reads only conf/all/forwarding", func() {
			b.Outside.IP("route add fd00:9::/64 via " + nstest.HostV6)
			b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/cni0/forwarding", "0")
			nstest.MustDial(GinkgoTB(), b.Outside, nstest.ServeTCP(GinkgoTB(), c.Container, "[fd00:9::2]:80").String(), "")
			b.OK("CHECK", c)
		})

		It("accepts a link-local address that is missing because the kernel adds none, and reports a duplicate", func() {
			b.Host.IP("-6 addr flush dev cni0 scope link")
			b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/cni0/addr_gen_mode", "1")
			b.Fails("CHECK", c, types.CodeChanged, "interface cni0 has no link-local IPv6 address")
			b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/default/addr_gen_mode", "1")
			b.OK("CHECK", c)
			By("finding the address on another host")
			c.Container.IP("addr add fe80::9/64 dev eth0 nodad")
			b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/cni0/accept_dad", "1")
			b.Host.IP("addr add fe80::9/64 dev cni0")
			Eventually(func() string { return b.Host.IP("-6 addr show dev cni0 dadfailed") }, "10s").Should(ContainSubstring("fe80::9"))
			b.RequireNoRepair(c, func() {}, "link-local address fe80::9/64 of interface cni0: ")
			By("using another address")
			b.Host.IP("addr add fe80::8/64 dev cni0 nodad")
			b.OK("CHECK", c)
		})

		It("accepts another prefix length of the gateway address after the subnet was enlarged, and so does REPAIR", func() {
			enlarged := strings.NewReplacer("10.9.0.0/24", "10.9.0.0/23", "fd00:9::/64", "fd00:9::/63").Replace(b.conf("1.1.0", gatewayed, v4range, v6range))
			b.Fails("ADD", b.Call("two", newContainer(), enlarged), types.CodeConfig, `"cni0" already has an IP address different from 10.9.0.1/23`)
			second := newContainer()
			enlarged = strings.Replace(enlarged, `"10.9.0.0/23"`, `"10.9.0.0/23","rangeStart":"10.9.1.5"`, 1)
			b.Add(b.Call("two", second, strings.Replace(enlarged, gatewayed, gatewayed+`"forceAddress":true,`, 1)))
			Expect(b.Host.IP("addr show cni0")).To(And(ContainSubstring("10.9.0.1/23"), Not(ContainSubstring("10.9.0.1/24")), ContainSubstring("fd00:9::1/63")))
			b.OK("CHECK", c)
			nstest.ServeTCP(GinkgoTB(), second, "10.9.1.5:80")
			nstest.MustDial(GinkgoTB(), c.Container, "10.9.1.5:80", "")
			By("restoring other differences of the gateway")
			b.RequireRepair(c, func() { b.Host.MustLine(GinkgoTB(), "sysctl -q -w net.ipv4.ip_forward=0") }, "sysctl net/ipv4/ip_forward is")
			Expect(b.Host.IP("addr show cni0")).To(ContainSubstring("10.9.0.1/23"))
		})

		It("names other programs' routes, which REPAIR keeps", func() {
			c = c.OnContainerSide()
			b.RequireNoRepair(c, func() { c.Container.MustLine(GinkgoTB(), "ip route replace default via 10.9.0.77") }, "has no route 0.0.0.0/0 via 10.9.0.1")
			b.RequireNoRepair(c, func() { b.Host.MustLine(GinkgoTB(), "ip route add 10.9.0.2/32 dev "+host) }, "interface cni0 has the route 10.9.0.0/24, but packets for 10.9.0.2 leave through "+host)
		})

		It("names another program's route that refuses the packets, with the command that deletes it, and REPAIR keeps it", func() {
			b.Outside.Batch(GinkgoTB(), "route add 10.9.0.0/24 via "+nstest.HostV4, "route add fd00:9::/64 via "+nstest.HostV6)
			nstest.ServeTCP(GinkgoTB(), c.Container, "10.9.0.2:80")
			nstest.ServeTCP(GinkgoTB(), c.Container, "[fd00:9::2]:80")
			By("restoring the network's route beside a less specific one")
			b.Host.IP("route add blackhole 10.0.0.0/8")
			b.RequireRepair(c, func() { b.Host.IP("route del 10.9.0.0/24 dev cni0") }, "has no route 10.9.0.0/24: packets for 10.9.0.2 meet the blackhole route 10.0.0.0/8")
			nstest.MustDial(GinkgoTB(), b.Outside, "10.9.0.2:80", "")
			b.Host.IP("rule add pref 100 lookup 100")
			for _, loss := range []nstest.Loss{
				{Addr: "10.9.0.2:80", Line: "ip route add blackhole 10.9.0.2", Text: "the host has the blackhole route 10.9.0.2, which refuses packets for 10.9.0.2"},
				{Addr: "10.9.0.2:80", Line: "ip route add unreachable 10.9.0.0/28", Text: "the host has the unreachable route 10.9.0.0/28, which"},
				{Addr: "10.9.0.2:80", Line: "ip route add prohibit 10.8.0.0/15 table 100", Text: "the host has the prohibit route 10.8.0.0/15 of table 100, which"},
				{Addr: "10.9.0.2:80", Line: "ip route replace blackhole 10.9.0.0/24", Text: "has no route 10.9.0.0/24: packets for 10.9.0.2 meet the blackhole route 10.9.0.0/24"},
				{Addr: "[fd00:9::2]:80", Line: "ip route add blackhole fd00:9::2", Text: "the host has the blackhole route fd00:9::2, which"},
				{Addr: "[fd00:9::2]:80", Line: "ip route add unreachable fd00:9::2", Text: "the host has the unreachable route fd00:9::2, which"},
				{Addr: "[fd00:9::2]:80", Line: "ip route add prohibit fd00:9::/64 metric 1", Text: "the host has the prohibit route fd00:9::/64, which"},
			} {
				By(loss.Line)
				b.RequireFixOnly(c, loss)
			}
		})

		It("succeeds after a later plugin changed MAC, MTU and sysctls, and with a promiscuous bridge", func() {
			c.Container.IP("link set eth0 address 02:00:00:00:00:99 mtu 1300")
			c.Container.MustLine(GinkgoTB(), "sysctl -q -w net.ipv4.conf.eth0.arp_notify=0")
			b.Host.IP("link set cni0 promisc on")
			conf := c.Config
			c.Config = strings.Replace(conf, `"macspoofchk":true,`, "", 1)
			b.OK("CHECK", c)
		})

		It("does not compare mtu and advmss of routes if the reference plugin created the pair", func() {
			container := newContainer()
			conf := strings.TrimSuffix(b.conf("1.0.0", "", v4range), "}}") +
				`,"routes":[{"dst":"10.50.0.0/16","mtu":1300,"advmss":1200},{"dst":"10.60.0.0/16","gw":"0.0.0.0"}]}}`
			c := b.Call("reference", container, conf)
			reply := b.OK("ADD", c)
			c.Config = nstest.WithPrevResult(conf, reply.Stdout)
			b.OK("CHECK", c)
			// Change the pair to look like the reference plugin's, which has no alias and no attributes.
			host := reply.Result(GinkgoTB()).Interfaces[1].Name
			b.Host.IP("link set " + host + " down")
			b.Host.IP("link set " + host + " name vethreference up")
			b.Host.Must(GinkgoTB(), "ip", "link", "set", "vethreference", "alias", "")
			container.IP("route change 10.50.0.0/16 via 10.9.0.1 dev eth0 proto boot")
			c.Config = strings.ReplaceAll(c.Config, host, "vethreference")
			c.Config = strings.Replace(c.Config, `"dst": "10.50.0.0/16"`, `"dst": "10.50.0.0/16", "mtu": 1300`, 1)
			b.OK("CHECK", c)
		})

		It("REPAIR on the container's side keeps routes that sbr has moved, and another container at the path", func() {
			c = c.OnContainerSide()
			b.RequireNoRepair(c, func() {
				c.Container.Batch(GinkgoTB(), "rule add from 10.9.0.2 lookup 100", "route del default via 10.9.0.1")
			}, "has no route 0.0.0.0/0 via 10.9.0.1")
			other := b.Call("two", newContainer(), b.conf("1.1.0", gatewayed, v4range))
			b.Add(other)
			c.Config = strings.ReplaceAll(c.Config, c.Container.Path(), other.Container.Path())
			c.Container = other.Container
			b.RequireNoRepair(c, func() {}, "the namespace path now belongs to net1/two/eth0")
		})

		It("calls the IPAM plugin, and REPAIR calls its REPAIR", func() {
			lose := func() { Expect(os.Remove(filepath.Join(b.DataDir, "net1", "10.9.0.2"))).To(Succeed()) }
			b.RequireRepair(c, lose, `IPAM plugin "host-local": address 10.9.0.2 is not reserved`)
			By("keeping CHECK's error if the IPAM plugin does not know REPAIR")
			c.Path, _ = nstest.NewScriptPlugin(GinkgoTB(), "host-local",
				`[ $CNI_COMMAND = CHECK ] && echo '{"code":100,"msg":"lost"}' || echo '{"code":4,"msg":"unknown CNI_COMMAND: REPAIR"}'; exit 1`)
			Expect(b.Run("REPAIR", c).Failure(GinkgoTB())).To(And(HaveField("Code", BeEquivalentTo(types.CodeChanged)),
				HaveField("Msg", `IPAM plugin "host-local": lost`)))
			By("calling no REPAIR of a plugin that may handle it as another verb")
			dir, log := nstest.NewIPAMScript(GinkgoTB(), "other", `echo '{"code":100,"msg":"lost"}'; exit 1`)
			c.Path, c.Config = dir, strings.Replace(c.Config, `"host-local"`, `"other"`, 1)
			b.Fails("REPAIR", c, types.CodeChanged, `IPAM plugin "other": lost`)
			Expect(os.ReadFile(log)).To(And(ContainSubstring("CHECK"), Not(ContainSubstring("REPAIR"))))
		})

		It("REPAIR takes neither the masquerade nor the MAC spoof check from another attachment", func() {
			other, h := types.Attachment{Network: "net1", ContainerID: "other", IfName: "eth0"}, b.Host.Open(GinkgoTB(), nil)
			b.RequireNoRepair(c, func() {
				Expect(masq.Add(&undo.Stack{}, masq.Masq{HostNS: h, Owner: other}, []netip.Prefix{prefix("10.9.0.2/24")})).To(Succeed())
			}, "the masquerade of 10.9.0.2 belongs to net1/other/eth0 now")
			mac := types.MAC("\x02\x00\x00\x00\x00\x07")
			b.RequireNoRepair(c, func() {
				Expect(addMACSpoofCheck(&undo.Stack{}, macSpoofCheck{host: h, owner: other, port: host, mac: mac})).To(Succeed())
			}, "the MAC spoof check of "+host+" belongs to net1/other/eth0 now")
		})

		It("REPAIR does not replace the bridge's address, even with forceAddress, and does not move the port from another bridge", func() {
			c.Config = strings.Replace(c.Config, `"isDefaultGateway":true`, `"isDefaultGateway":true,"forceAddress":true`, 1)
			refuse := func(want string, damage ...string) {
				b.Host.Batch(GinkgoTB(), damage...)
				unchanged := b.Restored(b.Host, c.Container)
				b.Fails("REPAIR", c, types.CodeConfig, want)
				unchanged()
			}
			refuse(`"cni0" already has an IP address different from 10.9.0.1/24`, "addr del 10.9.0.1/24 dev cni0", "addr add 10.77.0.1/24 dev cni0")
			refuse("already a port of another interface", "link add other0 up type bridge", "link set "+host+" master other0")
		})

		It("the handler of REPAIR changes nothing if nothing is missing", func() {
			p, checks := plugin(), 0
			p.Check = func(*skel.Request) error {
				if checks++; checks == 1 {
					return types.Errorf(types.CodeChanged, "a difference that the handler does not find")
				}
				return nil
			}
			unchanged := b.Restored(b.Host, c.Container)
			nstest.Run(p, c.With("REPAIR")).OK(GinkgoTB())
			Expect(checks).To(Equal(2))
			unchanged()
		})
	})

	It("GC deletes what belongs to invalid attachments of this network, and nothing else", func() {
		conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range)
		b.RequireGCOfNetwork(conf, strings.NewReplacer(`"net1"`, `"net2"`, "10.9.0", "10.19.0", "cni0", "cni1").Replace(conf))
	})

	It("STATUS succeeds, but fails if the name belongs to another interface", func() {
		b.RequireStatus(b.conf("1.1.0", gatewayed+`"ipMasq":true,`, v4range), "")
		b.RequireStatus(strings.Replace(b.conf("1.1.0", "", v4range), `"cni0"`, `"`+nstest.Uplink+`"`, 1), "is not a bridge")
	})

	Describe("with bad input", func() {
		DescribeTable("ADD returns an error that names the problem, and leaves nothing", func(change func(c *nstest.Call), code int, want string) {
			c := b.Call("one", newContainer(), b.conf("1.1.0", gatewayed, v4range))
			change(&c)
			restored := b.Restored(b.Host)
			b.Fails("ADD", c, code, want)
			if strings.Contains(nstest.Snapshot(GinkgoTB(), b.Host), " cni0") {
				b.Host.IP("link del cni0")
			}
			restored()
		},
			Entry("a subnet without a prefix length", func(c *nstest.Call) { c.Config = strings.Replace(c.Config, "10.9.0.0/24", "10.9.0.0", 1) }, types.CodeConfig, "10.9.0.0"),
			Entry("the name of an interface that is not a bridge", func(c *nstest.Call) { c.Config = strings.Replace(c.Config, `"cni0"`, `"uplink0"`, 1) }, types.CodeConfig, "is not a bridge"),
			Entry("an MTU too small for IPv6", func(c *nstest.Call) {
				c.Config = b.conf("1.1.0", gatewayed+`"mtu":1279,`, v6range)
			}, types.CodeConfig, "mtu 1279 of eth0 is too small for address fd00:9::2/64: IPv6 needs 1280"),
			Entry("a gateway that is the container's own address", func(c *nstest.Call) {
				c.Path = nstest.Build(GinkgoTB(), "static")
				c.Config = `{"cniVersion":"1.1.0","name":"net1","type":"bridge","isGateway":true,"ipam":{"type":"static","addresses":[{"address":"10.9.0.1/24"}]}}`
			}, types.CodeConfig, "10.9.0.1 is the address of the container and of its gateway, bridge cni0"),
			Entry("a gateway of the other family", func(c *nstest.Call) {
				c.Path, _ = nstest.NewScriptPlugin(GinkgoTB(), "stub", `echo '{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.2/24","gateway":"fd00:9::1"}]}'`)
				c.Config = `{"cniVersion":"1.1.0","name":"net1","type":"bridge","isGateway":true,"ipam":{"type":"stub"}}`
			}, types.CodeConfig, "address 10.9.0.2/24 has the gateway fd00:9::1 of the other family"),
			Entry("a bridge without IPv6", func(c *nstest.Call) {
				b.Host.SetSysctl(GinkgoTB(), "net/ipv6/conf/default/disable_ipv6", "1")
				c.Config = b.conf("1.1.0", gatewayed, v6range)
			}, types.CodeConfig, "net/ipv6/conf/cni0/disable_ipv6 is 1; enable IPv6 there, or remove the IPv6 range from ipam"),
			Entry("a gateway in none of the container's networks", func(c *nstest.Call) {
				c.Config = strings.TrimSuffix(b.conf("1.1.0", "", v4range), "}}") + `,"routes":[{"dst":"0.0.0.0/0","gw":"10.99.0.1"}]}}`
			}, types.CodeConfig, "10.99.0.1, the gateway of the route to 0.0.0.0/0, is in none of the networks of eth0 [10.9.0.2/24]"),
			Entry("an IPv6 gateway in none of the container's networks", func(c *nstest.Call) {
				c.Config = strings.TrimSuffix(b.conf("1.1.0", "", v6range), "}}") + `,"routes":[{"dst":"::/0","gw":"fd99::1"}]}}`
			}, types.CodeConfig, "fd99::1, the gateway of the route to ::/0, is in none of the networks of eth0 [fd00:9::2/64]"),
		)
	})

	Describe("in a chain", func() {
		It("attaches an earlier plugin's tap device to the bridge", func() {
			nstest.RequireTaps(GinkgoTB())
			b.Host.IP("tuntap add tap0 mode tap")
			container := newContainer()
			prev := fmt.Sprintf(`,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"tap0"},{"name":"eth0","sandbox":%q}],"ips":[{"interface":1,"address":"10.9.0.5/24","gateway":"10.9.0.1"}]}}`, container.Path())
			conf := strings.TrimSuffix(b.conf("1.1.0", `"isGateway":true,"hairpinMode":true,`), "}") + prev
			up := b.Call("one", container, conf)
			done := make(chan struct{})
			go func() { // a tap device has a carrier only while a process holds it open
				defer close(done)
				defer GinkgoRecover()
				holdTap(b.Host, "tap0", func() {
					result := b.Add(up)
					Expect(result.Interfaces).To(HaveLen(3))
					Expect(result.Interfaces[2].Name).To(Equal("cni0"))
					Expect(result.IPs).To(HaveLen(1))
					Expect(b.Host.IP("-d link show tap0")).To(And(ContainSubstring("master cni0"), ContainSubstring("hairpin on")))
					Expect(b.Host.IP("-4 addr show cni0")).To(ContainSubstring("10.9.0.1/24"))
				})
			}()
			<-done
			b.OK("DEL", up)
			Expect(b.Host.IP("link show tap0")).NotTo(ContainSubstring("master"))
		})

		It("masquerades only its own interface's addresses, because DEL deletes only these", func() {
			b.Host.Batch(GinkgoTB(), "link add port0 type veth peer name port1", "link set port1 up")
			container := newContainer()
			prev := fmt.Sprintf(`,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"port0"},{"name":"eth0","sandbox":%q},{"name":"eth1","sandbox":%[1]q}],`+
				`"ips":[{"interface":1,"address":"10.9.0.5/24"},{"interface":2,"address":"10.9.0.6/24"}]}}`, container.Path())
			c := b.Call("one", container, strings.TrimSuffix(b.conf("1.1.0", `"ipMasq":true,`), "}")+prev)
			b.Add(c)
			elements := func() string { return b.Host.Must(GinkgoTB(), "nft", "list", "map", "inet", "plumb", "masq4") }
			Expect(elements()).To(And(ContainSubstring("10.9.0.5"), Not(ContainSubstring("10.9.0.6"))))
			b.OK("DEL", c)
			Expect(elements()).NotTo(ContainSubstring("10.9.0"))
		})
	})
})

var _ = DescribeTable("any step of ADD or DEL that fails leaves nothing, and a second REPAIR restores what the first one did not",
	sweep,
	Entry("layer 2", nil, `"hairpinMode":true,`),
	Entry("dual stack with gateway", nil, gatewayed, v4range, v6range),
	Entry("masquerade and spoof check", []string{"ip link del cni0", "nft flush ruleset", "sysctl -q -w net.ipv4.ip_forward=0"},
		gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range),
	Entry("uplink and forwarding", []string{
		"ip link set cni0 type bridge group_fwd_mask 0 mcast_snooping 1", "ip link set uplink1 nomaster", "ip link set uplink1 down",
		"sysctl -q -w net.ipv4.conf.cni0.proxy_arp=0",
	}, gatewayed+`"uplinkInterface":"uplink1","groupFwdMask":16384,"mcastSnooping":false,"proxyArp":true,`, v4range),
)

func sweep(damage []string, keys string, ranges ...string) {
	b := newTestbedOn(nil)
	b.FaultSweep(nstest.Sweep{Config: b.conf("1.1.0", keys, ranges...), Damage: damage, Prepare: func(host, _ *nstest.NS) {
		if strings.Contains(keys, "uplink1") {
			host.IP("link add uplink1 type veth peer name segment1")
		}
	}})
}

var _ = It("with a read-only /proc/sys, ADD fails with advice unless the host already forwards, and then only warns", func() {
	b := newTestbed()
	c := b.Call("c1", newContainer(), b.conf("1.1.0", `"isGateway": true,`, v4range, v6range))
	nstest.RequireRefusalOnReadOnlySysctls(GinkgoTB(), plugin(), c)
	c.Host.SetForwarding(GinkgoTB(), "1")
	nstest.RequireAddOnReadOnlySysctls(GinkgoTB(), plugin(), c, "/accept_ra=0")
})

var _ = Describe("with an IPAM plugin that works over the link", func() {
	var l nstest.LinkForIPAM
	BeforeEach(func() {
		host, container := nstest.NewHostAndContainer(GinkgoTB())
		l = nstest.LinkForIPAM{Plugin: plugin(), HostEnds: "ip -o link show master cni0", Want: 1, Call: nstest.Call{
			Host: host, Container: container, Config: `{"cniVersion":"1.1.0","name":"net1","type":"bridge","ipam":{"type":"dhcp"}}`,
		}}
	})
	It("calls the IPAM plugin's ADD when the port is up, and its DEL before the link is deleted", func() { l.Require(GinkgoTB(), "DEL") })
	It("calls the IPAM plugin's GC before the link is deleted", func() { l.Require(GinkgoTB(), "GC") })
})

var _ = It("an ADD during which another program deletes the bridge can be tried again", func() {
	b := newTestbed()
	b.RequireTryAgain(b.conf("1.0.0", `"isGateway":true,"hairpinMode":true,`, v4range), func() {}, func() { _, _ = b.Host.Exec("ip", "link", "del", "cni0") })
})
