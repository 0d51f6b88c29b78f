package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

const gatewayed = `"isDefaultGateway":true,`

var _ = Describe("bridge", func() {
	var b *bed
	BeforeEach(func() {
		b = newBed()
		nstest.LeakCheck(GinkgoTB())
	})

	// in runs a program in a namespace and gives what it printed.
	in := func(n *nstest.NS, line string) string {
		GinkgoHelper()
		words := strings.Fields(line)
		return n.Must(GinkgoTB(), words[0], words[1:]...)
	}

	Describe("ADD", func() {
		It("connects two pods and the node, dual stack, usable at once", func() {
			conf := b.conf("1.1.0", gatewayed+`"mtu":1400,`, v4range, v6range)
			one, two := newPod(), newPod()
			result := add1(b.call("one", one, conf))
			add1(b.call("two", two, conf))
			for _, addr := range []string{"10.9.0.2:80", "[fd00:9::2]:80"} {
				nstest.ServeTCP(GinkgoTB(), one, addr)
			}
			nstest.MustDial(GinkgoTB(), two, "10.9.0.2:80", "10.9.0.3")
			nstest.MustDial(GinkgoTB(), two, "[fd00:9::2]:80", "fd00:9::3")
			nstest.MustDial(GinkgoTB(), b.node, "10.9.0.2:80", "10.9.0.1")
			nstest.MustDial(GinkgoTB(), b.node, "[fd00:9::2]:80", "fd00:9::1")

			By("describing what it made")
			Expect(result.Interfaces).To(HaveLen(3))
			Expect(result.Interfaces[0]).To(And(HaveField("Name", "cni0"), HaveField("MTU", 1400), HaveField("MAC", Not(BeEmpty()))))
			Expect(result.Interfaces[1].Name).To(MatchRegexp("^veth[0-9a-f]{8}$"))
			Expect(result.Interfaces[2]).To(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", one.Path())))
			Expect(result.IPs).To(HaveEach(HaveField("Interface", podIndex)))
			Expect(fmt.Sprint(result.IPs[0].Address, result.IPs[0].Gateway, result.IPs[1].Address, result.IPs[1].Gateway)).
				To(Equal("10.9.0.2/24 10.9.0.1 fd00:9::2/64 fd00:9::1"))
			mac := strings.TrimSpace(one.Must(GinkgoTB(), "cat", "/proc/self/net/dev_mcast"))
			Expect(mac).NotTo(BeEmpty())
			Expect(in(one, "ip link show eth0")).To(And(ContainSubstring(result.Interfaces[2].MAC.String()), ContainSubstring("qlen 1000")))
			Expect(in(b.node, "ip link show "+result.Interfaces[1].Name)).To(And(
				ContainSubstring(result.Interfaces[1].MAC.String()), ContainSubstring("alias plumb:net1/one/eth0")))

			By("programming routes, sysctls and forwarding as the reference does")
			Expect(in(one, "ip -4 route")).To(Equal("default via 10.9.0.1 dev eth0 \n10.9.0.0/24 dev eth0 proto kernel scope link src 10.9.0.2 \n"))
			Expect(in(one, "ip -6 route show default")).To(ContainSubstring("default via fd00:9::1 dev eth0 metric 1024"))
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
				Expect(b.node.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
			}
			By("leaving no address tentative, the gateway's neither (H3.9)")
			Expect(in(one, "ip -6 addr show scope global tentative")).To(BeEmpty())
			Expect(in(b.node, "ip -6 addr show dev cni0 tentative")).To(BeEmpty())
		})

		DescribeTable("answers in the form of every version", func(version string) {
			reply := run(b.call("one", newPod(), b.conf(version, gatewayed, v4range, v6range)), "ADD").OK(GinkgoTB())
			Expect(reply.Stdout).To(ContainSubstring(fmt.Sprintf(`"cniVersion": %q`, version)))
			result, err := types.ParseResult(types.Newest, []byte(reply.Stdout))
			Expect(err).NotTo(HaveOccurred())
			Expect(result.IPs).To(HaveLen(2))
			if version < "1.1.0" {
				Expect(reply.Stdout).NotTo(ContainSubstring("mtu"))
			}
			if version < "0.3.0" {
				Expect(result.Interfaces).To(BeEmpty())
			}
		},
			Entry(nil, "0.1.0"), Entry(nil, "0.2.0"), Entry(nil, "0.3.0"), Entry(nil, "0.3.1"),
			Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"))

		It("needs no wait for duplicates and no sleep: the steps say so (H1.2)", func() {
			c := b.call("one", newPod(), b.conf("1.1.0", gatewayed, v4range, v6range))
			c.Env = []string{"CNI_LOG_LEVEL=debug"}
			reply := run(c, "ADD").OK(GinkgoTB())
			Expect(reply.Stderr).To(ContainSubstring("add link veth"))
			Expect(reply.Stderr).NotTo(ContainSubstring("await addresses"))
		})

		It("looks for duplicates with enabledad, by event", func() {
			c := b.call("one", newPod(), b.conf("1.1.0", gatewayed+`"enabledad":true,`, v6range))
			c.Env = []string{"CNI_LOG_LEVEL=debug"}
			reply := run(c, "ADD").OK(GinkgoTB())
			Expect(reply.Stderr).To(ContainSubstring("await addresses of eth0"))
			Expect(c.Pod.Sysctl(GinkgoTB(), "net/ipv6/conf/eth0/accept_dad")).To(Equal("1"))
			Expect(in(c.Pod, "ip -6 addr show tentative")).To(BeEmpty())
		})

		It("is plain layer 2 without IPAM, with its CHECK (H5.11)", func() {
			conf := b.conf("1.0.0", "")
			pod := newPod()
			reply := run(b.call("one", pod, conf), "ADD").OK(GinkgoTB())
			Expect(in(pod, "ip -4 addr show eth0")).To(BeEmpty())
			Expect(in(pod, "ip link show eth0")).To(ContainSubstring("LOWER_UP"))
			run(b.call("one", pod, withPrev(conf, reply)), "CHECK").OK(GinkgoTB())
		})

		It("leaves the container's end down with disableContainerInterface", func() {
			pod := newPod()
			add1(b.call("one", pod, b.conf("1.1.0", `"disableContainerInterface":true,`)))
			Expect(in(pod, "ip link show eth0")).NotTo(ContainSubstring(",UP"))
		})

		It("takes the MAC that is asked for, CNI_ARGS among the ways", func() {
			pod := newPod()
			c := b.call("one", pod, b.conf("1.1.0", ""))
			c.Args = "IgnoreUnknown=1;K8S_POD_NAME=a=b;MAC=c2:b0:57:49:47:f1"
			Expect(add1(c).Interfaces[2].MAC.String()).To(Equal("c2:b0:57:49:47:f1"))
			Expect(in(pod, "ip link show eth0")).To(ContainSubstring("c2:b0:57:49:47:f1"))
		})

		It("programs hairpin and isolation", func() {
			result := add1(b.call("one", newPod(), b.conf("1.1.0", `"hairpinMode":true,"portIsolation":true,`)))
			port := in(b.node, "ip -d link show "+result.Interfaces[1].Name)
			Expect(port).To(And(ContainSubstring("hairpin on"), ContainSubstring("isolated on")))
			two := add1(b.call("two", newPod(), b.conf("1.1.0", "")))
			port = in(b.node, "ip -d link show "+two.Interfaces[1].Name)
			Expect(port).To(And(ContainSubstring("hairpin off"), ContainSubstring("isolated off")))
		})

		It("sets the bridge promiscuous with promiscMode", func() {
			add1(b.call("one", newPod(), b.conf("1.1.0", `"promiscMode":true,`)))
			Expect(in(b.node, "ip link show cni0")).To(ContainSubstring("PROMISC"))
		})

		It("programs routes with all they carry, and a default route once (H7.2)", func() {
			pod := newPod()
			routes := `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.50.0.0/16","mtu":1300,"advmss":1200,"priority":77},{"dst":"10.60.0.0/16","gw":"10.9.0.9","table":100}]}}`
			conf := strings.TrimSuffix(b.conf("1.0.0", gatewayed, v4range), "}}") + routes
			reply := run(b.call("one", pod, conf), "ADD").OK(GinkgoTB())
			Expect(in(pod, "ip -4 route")).To(And(
				ContainSubstring("10.50.0.0/16 via 10.9.0.1 dev eth0 metric 77 mtu 1300 advmss 1200"),
				ContainSubstring("default via 10.9.0.1 dev eth0")))
			Expect(strings.Count(in(pod, "ip -4 route"), "default")).To(Equal(1))
			Expect(in(pod, "ip -4 route show table 100")).To(ContainSubstring("10.60.0.0/16 via 10.9.0.9 dev eth0"))
			run(b.call("one", pod, withPrev(conf, reply)), "CHECK").OK(GinkgoTB())
		})

		It("keeps the bridge's MAC whatever ports come and go (H3.2)", func() {
			conf := b.conf("1.1.0", gatewayed, v4range)
			first := add1(b.call("one", newPod(), conf)).Interfaces[0].MAC
			for i := range 5 {
				id := fmt.Sprint("more", i)
				Expect(add1(b.call(id, newPod(), conf)).Interfaces[0].MAC).To(Equal(first))
				run(b.call(id, nil, conf), "DEL").OK(GinkgoTB())
			}
			run(b.call("one", nil, conf), "DEL").OK(GinkgoTB())
			Expect(in(b.node, "ip link show cni0")).To(ContainSubstring(first.String()))
		})

		It("pins the MAC of a bridge that somebody else made and that has lost its ports (H3.2)", func() {
			in(b.node, "ip link add cni0 type bridge")
			run(b.call("l2", newPod(), b.conf("1.1.0", "")), "ADD").OK(GinkgoTB())
			run(b.call("l2", nil, b.conf("1.1.0", "")), "DEL").OK(GinkgoTB())
			conf := b.conf("1.1.0", gatewayed, v4range)
			first := add1(b.call("one", newPod(), conf)).Interfaces[0].MAC
			Expect(add1(b.call("two", newPod(), conf)).Interfaces[0].MAC).To(Equal(first))
			run(b.call("one", nil, conf), "DEL").OK(GinkgoTB())
			Expect(in(b.node, "ip link show cni0")).To(ContainSubstring(first.String()))
		})

		It("finishes a bridge whose maker was killed, and leaves that of another making alone", func() {
			acceptDAD := func() string { return b.node.Sysctl(GinkgoTB(), "net/ipv6/conf/cni0/accept_dad") }
			in(b.node, "ip link add cni0 type bridge")
			add1(b.call("one", newPod(), b.conf("1.1.0", gatewayed, v6range)))
			Expect(acceptDAD()).To(Equal("0"))
			run(b.call("one", nil, b.conf("1.1.0", gatewayed, v6range)), "DEL").OK(GinkgoTB())
			in(b.node, "ip link del cni0")
			in(b.node, "ip link add cni0 up type bridge")
			add1(b.call("one", newPod(), b.conf("1.1.0", gatewayed, v6range)))
			Expect(acceptDAD()).To(Equal("1"))
		})

		It("has a gateway in each of two ranges of one family (H7.3)", func() {
			conf := b.conf("1.1.0", gatewayed, v4range, `[{"subnet":"10.10.0.0/24"}]`)
			add1(b.call("one", newPod(), conf))
			add1(b.call("two", newPod(), conf))
			Expect(in(b.node, "ip -4 addr show cni0")).To(And(ContainSubstring("10.9.0.1/24"), ContainSubstring("10.10.0.1/24")))
		})

		It("keeps the node's advertised default route when it turns IPv6 forwarding on (H5.16)", func() {
			b.node.SetSysctl(GinkgoTB(), "net/ipv6/conf/all/forwarding", "0")
			b.node.SetSysctl(GinkgoTB(), "net/ipv6/conf/"+nstest.Uplink+"/accept_ra", "1")
			in(b.node, "ip -6 route add default via "+nstest.OutsideV6+" dev "+nstest.Uplink+" proto ra metric 5")
			add1(b.call("one", newPod(), b.conf("1.1.0", gatewayed, v6range)))
			Expect(b.node.Sysctl(GinkgoTB(), "net/ipv6/conf/"+nstest.Uplink+"/accept_ra")).To(Equal("2"))
		})
	})

	Describe("a bridge that has another address", func() {
		BeforeEach(func() {
			in(b.node, "ip link add cni0 up type bridge")
			in(b.node, "ip addr add 10.77.0.1/24 dev cni0")
		})

		It("is brought right while nobody is on it", func() {
			add1(b.call("one", newPod(), b.conf("1.1.0", gatewayed, v4range)))
			Expect(in(b.node, "ip -4 addr show cni0")).To(And(ContainSubstring("10.9.0.1/24"), Not(ContainSubstring("10.77"))))
		})

		It("is refused while others are on it, unless forceAddress says otherwise", func() {
			run(b.call("l2", newPod(), b.conf("1.1.0", "")), "ADD").OK(GinkgoTB())
			pod := newPod()
			f := run(b.call("one", pod, b.conf("1.1.0", gatewayed, v4range)), "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
			Expect(f.Msg).To(And(ContainSubstring(`"cni0" already has an IP address different from 10.9.0.1/24`), ContainSubstring("forceAddress")))
			add1(b.call("one", pod, b.conf("1.1.0", gatewayed+`"forceAddress":true,`, v4range)))
			Expect(in(b.node, "ip -4 addr show cni0")).To(And(ContainSubstring("10.9.0.1/24"), Not(ContainSubstring("10.77"))))
		})
	})

	DescribeTable("masquerade with each backend", func(backend string) {
		conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"ipMasqBackend":"`+backend+`",`, v4range, v6range)
		pod, other := newPod(), newPod()
		before := taken(b.outside)
		reply := run(b.call("one", pod, conf), "ADD").OK(GinkgoTB())
		add1(b.call("two", other, conf))
		for _, addr := range []string{nstest.OutsideV4 + ":80", "[" + nstest.OutsideV6 + "]:80"} {
			nstest.ServeTCP(GinkgoTB(), b.outside, addr)
		}
		for _, addr := range []string{"10.9.0.3:80", "[fd00:9::3]:80"} {
			nstest.ServeTCP(GinkgoTB(), other, addr)
		}
		nstest.MustDial(GinkgoTB(), pod, nstest.OutsideV4+":80", nstest.NodeV4)
		nstest.MustDial(GinkgoTB(), pod, "["+nstest.OutsideV6+"]:80", nstest.NodeV6)
		nstest.MustDial(GinkgoTB(), pod, "10.9.0.3:80", "10.9.0.2")
		nstest.MustDial(GinkgoTB(), pod, "[fd00:9::3]:80", "fd00:9::2")
		run(b.call("one", pod, withPrev(conf, reply)), "CHECK").OK(GinkgoTB())
		Expect(nstest.Snapshot(GinkgoTB(), b.node)).To(And(MatchRegexp(`10\.9\.0\.2\b`), MatchRegexp(`fd00:9::2\b`)))

		By("leaving no rule behind when the container is gone before DEL (H2.3)")
		pod.Remove(GinkgoTB())
		run(nstest.Call{ContainerID: "one", Node: b.node, NetNS: pod.Path(), Path: b.path, Config: conf}, "DEL").OK(GinkgoTB())
		Expect(nstest.Snapshot(GinkgoTB(), b.node)).NotTo(Or(MatchRegexp(`10\.9\.0\.2\b`), MatchRegexp(`fd00:9::2\b`)))
		nstest.MustDial(GinkgoTB(), other, nstest.OutsideV4+":80", nstest.NodeV4)
		run(b.call("two", nil, conf), "DEL").OK(GinkgoTB())
		expectAsBefore(before, b.outside)
	}, Entry(nil, "nftables"), Entry(nil, "iptables"))

	Describe("a failed ADD", func() {
		It("leaves no pair and no address when IPAM fails (H2.2)", func() {
			pod := newPod()
			before := taken(b.node, pod)
			conf := strings.Replace(b.conf("1.1.0", `"bridge":"cni0",`, v4range), `"10.9.0.0/24"`, `"10.9.0.0/31"`, 1)
			in(b.node, "ip link add cni0 up type bridge")
			in(b.node, "ip link del cni0")
			f := run(b.call("one", pod, conf), "ADD").Failure(GinkgoTB())
			Expect(f.Msg).To(ContainSubstring("too small to allocate from"))
			in(b.node, "ip link del cni0")
			expectAsBefore(before, b.node, pod)
		})

		It("does not free the live address when the ADD is repeated", func() {
			conf := b.conf("1.1.0", gatewayed, v4range)
			pod := newPod()
			add1(b.call("one", pod, conf))
			state := func() string {
				return nstest.Snapshot(GinkgoTB(), b.node, pod) + nstest.SnapshotDir(GinkgoTB(), b.leases)
			}
			before := nstest.Steady(state)
			f := run(b.call("one", pod, conf), "ADD").Failure(GinkgoTB())
			Expect(f.Msg).To(ContainSubstring(`"eth0" already exists`))
			Expect(nstest.Settled(before, state)).To(BeEmpty())
			By("nor in a new namespace of the same container")
			f = run(b.call("one", newPod(), conf), "ADD").Failure(GinkgoTB())
			Expect(f.Msg).To(ContainSubstring("not followed by a DEL"))
			nstest.ServeTCP(GinkgoTB(), pod, "10.9.0.2:80")
			nstest.MustDial(GinkgoTB(), b.node, "10.9.0.2:80", "10.9.0.1")
		})

		It("says so and leaves nothing when the result cannot be told", func() {
			pod := newPod()
			before := taken(b.node, pod)
			f := run(b.call("one", pod, b.conf("0.2.0", "")), "ADD").Failure(GinkgoTB())
			Expect(f.Msg).To(ContainSubstring("no valid IP addresses"))
			expectAsBefore(before, b.node, pod)
		})
	})

	Describe("DEL", func() {
		It("leaves node, pod and leases as before, and is idempotent, in every situation", func() {
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range, v6range)
			add1(b.call("warm", newPod(), conf))
			pod := newPod()
			state := func() string {
				return withoutCursor(nstest.Snapshot(GinkgoTB(), b.node, pod) + "\n" + nstest.SnapshotDir(GinkgoTB(), filepath.Join(b.leases, "net1")))
			}
			before := nstest.Steady(state)
			gone := filepath.Join(GinkgoTB().TempDir(), "gone")
			plain := filepath.Join(GinkgoTB().TempDir(), "plain")
			Expect(os.WriteFile(plain, nil, 0o600)).To(Succeed())
			for _, way := range []func(c nstest.Call, reply nstest.Reply) nstest.Call{
				func(c nstest.Call, reply nstest.Reply) nstest.Call { c.Config = withPrev(conf, reply); return c },
				func(c nstest.Call, _ nstest.Reply) nstest.Call { return c },
				func(c nstest.Call, _ nstest.Reply) nstest.Call { c.Pod = nil; return c },
				func(c nstest.Call, _ nstest.Reply) nstest.Call { c.Pod, c.NetNS = nil, gone; return c },
				func(c nstest.Call, _ nstest.Reply) nstest.Call { c.Pod, c.NetNS = nil, plain; return c },
				func(c nstest.Call, _ nstest.Reply) nstest.Call { c.Pod = newPod(); return c },
			} {
				c := b.call("one", pod, conf)
				reply := run(c, "ADD").OK(GinkgoTB())
				c = way(c, reply)
				run(c, "DEL").OK(GinkgoTB())
				run(c, "DEL").OK(GinkgoTB())
				Expect(nstest.Settled(before, state)).To(BeEmpty())
			}
		})

		It("does not touch the interface of a newcomer at the same path", func() {
			conf := b.conf("1.1.0", gatewayed, v4range)
			old, newcomer := newPod(), newPod()
			add1(b.call("old", old, conf))
			add1(b.call("new", newcomer, conf))
			run(b.call("old", newcomer, conf), "DEL").OK(GinkgoTB())
			Expect(in(newcomer, "ip -br addr show eth0")).To(ContainSubstring("10.9.0.3/24"))
			Expect(in(old, "ip -br link")).NotTo(ContainSubstring("eth0"))
		})

		It("releases the address of a pair that the reference plugin made", func() {
			conf := b.conf("1.0.0", "", v4range)
			pod := newPod()
			in(b.node, "ip link add cni0 up type bridge")
			in(b.node, "ip link add veth0badcafe type veth peer name eth0 netns "+pod.Path())
			in(b.node, "ip link set veth0badcafe master cni0 up")
			run(b.call("one", pod, conf), "DEL").OK(GinkgoTB())
			Expect(in(b.node, "ip -br link")).NotTo(ContainSubstring("veth0badcafe"))
		})

		It("finishes under a configuration that ADD would refuse", func() {
			conf := b.conf("1.1.0", gatewayed, v4range)
			pod := newPod()
			add1(b.call("one", pod, conf))
			c := b.call("one", pod, strings.Replace(conf, `"isDefaultGateway":true,`, `"vlan":9999,"mtu":-4,"vlanTrunk":[{"id":0}],`, 1))
			c.Args = "nonsense"
			run(c, "DEL").OK(GinkgoTB())
			Expect(in(pod, "ip -br link")).NotTo(ContainSubstring("eth0"))
		})
	})

	Describe("CHECK", func() {
		var c nstest.Call
		var host string
		BeforeEach(func() {
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"macspoofchk":true,"hairpinMode":true,`, v4range, v6range)
			c = b.call("one", newPod(), conf)
			reply := run(c, "ADD").OK(GinkgoTB())
			host = reply.Result(GinkgoTB()).Interfaces[1].Name
			c.Config = withPrev(conf, reply)
			run(c, "CHECK").OK(GinkgoTB())
		})

		DescribeTable("names what was changed", func(where func() *nstest.NS, line, want string) {
			in(where(), strings.ReplaceAll(line, "HOST", host))
			f := run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(codeChanged))
			Expect(f.Msg).To(ContainSubstring(strings.ReplaceAll(want, "HOST", host)))
		},
			Entry("address", func() *nstest.NS { return c.Pod }, "ip addr del 10.9.0.2/24 dev eth0", "interface eth0 has no address 10.9.0.2/24"),
			Entry("IPv6 address", func() *nstest.NS { return c.Pod }, "ip addr del fd00:9::2/64 dev eth0", "interface eth0 has no address fd00:9::2/64"),
			Entry("route", func() *nstest.NS { return c.Pod }, "ip route del default", "interface eth0 has no route 0.0.0.0/0 via 10.9.0.1"),
			Entry("gateway of a route", func() *nstest.NS { return c.Pod }, "ip route replace default via 10.9.0.77", "has no route 0.0.0.0/0 via 10.9.0.1"),
			Entry("container's link", func() *nstest.NS { return c.Pod }, "ip link set eth0 down", "interface eth0 is down"),
			Entry("master", func() *nstest.NS { return b.node }, "ip link set HOST nomaster", "interface HOST is no port of bridge cni0"),
			Entry("port", func() *nstest.NS { return b.node }, "ip link set HOST down", "port HOST is down"),
			Entry("hairpin", func() *nstest.NS { return b.node }, "ip link set HOST type bridge_slave hairpin off", "port HOST has hairpin false, not true"),
			Entry("isolation", func() *nstest.NS { return b.node }, "ip link set HOST type bridge_slave isolated on", "port HOST has isolated true, not false"),
			Entry("gateway", func() *nstest.NS { return b.node }, "ip addr del 10.9.0.1/24 dev cni0", "interface cni0 has no gateway address 10.9.0.1/24"),
			Entry("bridge", func() *nstest.NS { return b.node }, "ip link set cni0 down", "bridge cni0 is down"),
			Entry("forwarding", func() *nstest.NS { return b.node }, "sysctl -q -w net.ipv4.ip_forward=0", "sysctl net/ipv4/ip_forward is"),
			Entry("accept_ra", func() *nstest.NS { return b.node }, "sysctl -q -w net.ipv6.conf.HOST.accept_ra=1", "accept_ra is"),
			Entry("the bridge's accept_ra", func() *nstest.NS { return b.node }, "sysctl -q -w net.ipv6.conf.cni0.accept_ra=1", "conf/cni0/accept_ra is"),
			Entry("masquerade", func() *nstest.NS { return b.node }, "nft delete table inet plumb", "masquerade"),
			Entry("spoof check", func() *nstest.NS { return b.node }, "nft delete table bridge plumb", "MAC"),
		)

		It("passes after a later plugin changed MAC, MTU and sysctls, and while somebody listens", func() {
			in(c.Pod, "ip link set eth0 address 02:00:00:00:00:99 mtu 1300")
			in(c.Pod, "sysctl -q -w net.ipv4.conf.eth0.arp_notify=0")
			in(b.node, "ip link set cni0 promisc on")
			conf := c.Config
			c.Config = strings.Replace(conf, `"macspoofchk":true,`, "", 1)
			run(c, "CHECK").OK(GinkgoTB())
		})

		It("asks IPAM too", func() {
			Expect(os.RemoveAll(filepath.Join(b.leases, "net1", "10.9.0.2"))).To(Succeed())
			f := run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Msg).To(And(ContainSubstring("host-local"), ContainSubstring("10.9.0.2")))
		})
	})

	Describe("GC", func() {
		It("removes what is not valid in this network, and nothing else", func() {
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range)
			other := strings.NewReplacer(`"net1"`, `"net2"`, "10.9.0", "10.19.0", "cni0", "cni1").Replace(conf)
			keep, drop, foreign := newPod(), newPod(), newPod()
			add1(b.call("keep", keep, conf))
			add1(b.call("drop", drop, conf))
			add1(b.call("drop", foreign, other))
			gc := strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[{"containerID":"keep","ifname":"eth0"}]}`
			run(nstest.Call{Node: b.node, Path: b.path, Config: gc}, "GC").OK(GinkgoTB())
			Expect(in(keep, "ip -br addr show eth0")).To(ContainSubstring("10.9.0.2"))
			Expect(in(drop, "ip -br link")).NotTo(ContainSubstring("eth0"))
			Expect(in(foreign, "ip -br addr show eth0")).To(ContainSubstring("10.19.0.2"))
			state := nstest.Snapshot(GinkgoTB(), b.node) + nstest.SnapshotDir(GinkgoTB(), filepath.Join(b.leases, "net1"))
			Expect(state).NotTo(Or(ContainSubstring("net1/drop"), ContainSubstring("10.9.0.3 ")))
			Expect(state).To(And(ContainSubstring("net1/keep"), ContainSubstring("net2/drop")))
			By("refusing a list that does not say what to keep")
			for _, entry := range []string{`{"containerID":"keep"}`, `{}`, `null`} {
				bad := strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[` + entry + `]}`
				f := run(nstest.Call{Node: b.node, Path: b.path, Config: bad}, "GC").Failure(GinkgoTB())
				Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
				Expect(f.Msg).To(ContainSubstring("nothing is collected"))
			}
			Expect(in(keep, "ip -br addr show eth0")).To(ContainSubstring("10.9.0.2"))
			By("taking an empty list at its word")
			run(nstest.Call{Node: b.node, Path: b.path, Config: strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[]}`}, "GC").OK(GinkgoTB())
			Expect(in(keep, "ip -br link")).NotTo(ContainSubstring("eth0"))
			Expect(in(foreign, "ip -br addr show eth0")).To(ContainSubstring("10.19.0.2"))
		})
	})

	Describe("a container ID that fits into no name of the kernel's", func() {
		It("is attached and detached like any other", func() {
			id := strings.Repeat("y", 260)
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range)
			add1(b.call("warm", newPod(), conf))
			before := taken(b.node)
			add1(b.call(id, newPod(), conf))
			run(b.call(id, nil, conf), "DEL").OK(GinkgoTB())
			expectAsBefore(before, b.node)
		})
	})

	Describe("STATUS", func() {
		It("is well, and says when an ADD could not succeed", func() {
			c := nstest.Call{Node: b.node, Path: b.path, Config: b.conf("1.1.0", gatewayed+`"ipMasq":true,`, v4range)}
			run(c, "STATUS").OK(GinkgoTB())
			By("a pool that is exhausted")
			small := b.conf("1.1.0", "", `[{"subnet":"10.9.0.0/30"}]`)
			add1(b.call("one", newPod(), small))
			c.Config = small
			Expect(run(c, "STATUS").Failure(GinkgoTB()).Code).To(BeEquivalentTo(types.CodeNotAvailable))
			By("a name that is no bridge's")
			c.Config = strings.Replace(b.conf("1.1.0", "", v4range), `"cni0"`, `"`+nstest.Uplink+`"`, 1)
			f := run(c, "STATUS").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeNotAvailable))
			Expect(f.Msg).To(ContainSubstring("is no bridge"))
		})
	})

	Describe("bad input", func() {
		DescribeTable("is a clear error with nothing left behind", func(change func(c *nstest.Call), code int, want string) {
			c := b.call("one", newPod(), b.conf("1.1.0", gatewayed, v4range))
			change(&c)
			before := taken(b.node)
			f := run(c, "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(code))
			Expect(f.Msg + f.Details).To(ContainSubstring(want))
			if strings.Contains(nstest.Snapshot(GinkgoTB(), b.node), " cni0") {
				in(b.node, "ip link del cni0")
			}
			expectAsBefore(before, b.node)
			leases, err := filepath.Glob(filepath.Join(b.leases, "net1", "[0-9f]*"))
			Expect(err).NotTo(HaveOccurred())
			Expect(leases).To(BeEmpty())
		},
			Entry("no JSON", func(c *nstest.Call) { c.Config = "{" }, types.CodeDecode, "decode configuration"),
			Entry("null", func(c *nstest.Call) { c.Config = "null" }, types.CodeDecode, "null"),
			Entry("unknown version", func(c *nstest.Call) { c.Config = b.conf("1.7.0", "", v4range) }, types.CodeVersion, "incompatible CNI versions"),
			Entry("a missing netns", func(c *nstest.Call) { c.Pod, c.NetNS = nil, "/run/netns/no-such-pod" }, types.CodeNamespace, "no such file"),
			Entry("a plain file as netns", func(c *nstest.Call) { c.Pod, c.NetNS = nil, "/proc/self/status" }, types.CodeNamespace, "namespace"),
			Entry("the node's own netns", func(c *nstest.Call) { c.Pod = b.node }, types.CodeNamespace, "CNI_NETNS_OVERRIDE"),
			Entry("an IPAM type with a slash", func(c *nstest.Call) {
				c.Config = strings.Replace(c.Config, `"host-local"`, `"../bin/host-local"`, 1)
			}, types.CodeConfig, "../bin/host-local"),
			Entry("an IPAM plugin that is not there", func(c *nstest.Call) { c.Path = "/nonexistent" }, types.CodeConfig, `failed to find plugin "host-local" in path`),
			Entry("a CIDR that is none", func(c *nstest.Call) { c.Config = strings.Replace(c.Config, "10.9.0.0/24", "10.9.0.0", 1) }, types.CodeConfig, "10.9.0.0"),
			Entry("a bridge name that is no bridge's", func(c *nstest.Call) { c.Config = strings.Replace(c.Config, `"cni0"`, `"uplink0"`, 1) }, types.CodeConfig, "is no bridge"),
			Entry("an MTU without room for IPv6", func(c *nstest.Call) {
				c.Config = b.conf("1.1.0", gatewayed+`"mtu":1279,`, v6range)
			}, types.CodeConfig, "mtu 1279 of eth0 is too small for address fd00:9::2/64: IPv6 needs 1280"),
			Entry("the interface name \"all\"", func(c *nstest.Call) { c.IfName = "all" }, types.CodeEnvironment, "all interfaces"),
			Entry("bad CNI_ARGS", func(c *nstest.Call) { c.Args = "K8S_POD_NAME=x" }, types.CodeEnvironment, "IgnoreUnknown"),
			Entry("a prevResult that is none", func(c *nstest.Call) { c.Config = strings.TrimSuffix(c.Config, "}") + `,"prevResult":5}` }, types.CodeDecode, "prevResult"),
		)
	})

	Describe("in a chain", func() {
		It("puts the host side of an earlier plugin on the bridge, a tap device say", func() {
			in(b.node, "ip tuntap add tap0 mode tap")
			pod := newPod()
			prev := fmt.Sprintf(`,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"tap0"},{"name":"eth0","sandbox":%q}],"ips":[{"interface":1,"address":"10.9.0.5/24","gateway":"10.9.0.1"}]}}`, pod.Path())
			conf := strings.TrimSuffix(b.conf("1.1.0", `"isGateway":true,"hairpinMode":true,`), "}") + prev
			up := b.call("one", pod, conf)
			done := make(chan struct{})
			go func() { // a tap has carrier while somebody holds it
				defer close(done)
				defer GinkgoRecover()
				holdTap(b.node, "tap0", func() {
					result := add1(up)
					Expect(result.Interfaces).To(HaveLen(3))
					Expect(result.Interfaces[2].Name).To(Equal("cni0"))
					Expect(result.IPs).To(HaveLen(1))
					Expect(in(b.node, "ip -d link show tap0")).To(And(ContainSubstring("master cni0"), ContainSubstring("hairpin on")))
					Expect(in(b.node, "ip -4 addr show cni0")).To(ContainSubstring("10.9.0.1/24"))
				})
			}()
			<-done
			run(up, "DEL").OK(GinkgoTB())
			Expect(in(b.node, "ip link show tap0")).NotTo(ContainSubstring("master"))
		})
	})

	It("serves 200 pods, 32 at a time, with no address twice and nothing left", func() {
		conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,`, v4range, v6range)
		add1(b.call("warm", newPod(), conf))
		const count, atOnce = 200, 32
		pods := make([]*nstest.NS, count)
		for i := range pods {
			pods[i] = newPod()
		}
		before := nstest.Steady(func() string { return nstest.Snapshot(GinkgoTB(), b.node) })
		each := func(command string) map[string]int {
			seen := map[string]int{}
			var mu sync.Mutex
			var wg sync.WaitGroup
			slots := make(chan struct{}, atOnce)
			for i, pod := range pods {
				wg.Add(1)
				slots <- struct{}{}
				go func() {
					defer GinkgoRecover()
					defer wg.Done()
					defer func() { <-slots }()
					reply := run(b.call(fmt.Sprint("pod", i), pod, conf), command).OK(GinkgoTB())
					if command != "ADD" {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					for _, ip := range reply.Result(GinkgoTB()).IPs {
						seen[ip.Address.String()]++
					}
				}()
			}
			wg.Wait()
			return seen
		}
		seen := each("ADD")
		Expect(seen).To(HaveLen(2 * count))
		Expect(seen).To(HaveEach(1))
		each("DEL")
		Expect(nstest.Settled(before, func() string { return nstest.Snapshot(GinkgoTB(), b.node) })).To(BeEmpty())
		files, err := os.ReadDir(filepath.Join(b.leases, "net1"))
		Expect(err).NotTo(HaveOccurred())
		Expect(files).To(HaveLen(2 + 3)) // warm's two addresses; lock and two cursors
	})
})

var _ = Describe("fault sweep", func() {
	DescribeTable("leaves nothing, whichever step fails", sweep,
		Entry("layer 2", `"hairpinMode":true,`),
		Entry("dual stack with gateway", gatewayed, v4range, v6range),
		Entry("masquerade and spoof check", gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range),
	)
})

// sweep refuses each step under the configuration in turn.
func sweep(keys string, ranges ...string) {
	path, leases := nstest.Build(GinkgoTB(), "host-local"), GinkgoTB().TempDir()
	b := &bed{leases: leases}
	nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
		Plugin: plugin(), Config: b.conf("1.1.0", keys, ranges...), Path: path, Dirs: []string{leases},
		Ignore: func(line string) bool {
			return strings.Contains(line, "last_reserved_ip") || strings.Contains(line, ".plumb")
		},
	})
}

// taken is the state of the namespaces once it no longer moves.
func taken(namespaces ...*nstest.NS) string {
	return nstest.Steady(func() string { return nstest.Snapshot(GinkgoTB(), namespaces...) })
}

func expectAsBefore(before string, namespaces ...*nstest.NS) {
	GinkgoHelper()
	Expect(nstest.Settled(before, func() string { return nstest.Snapshot(GinkgoTB(), namespaces...) })).To(BeEmpty())
}

// withoutCursor drops what a DEL is not to bring back: the round-robin cursor.
func withoutCursor(state string) string {
	var kept []string
	for line := range strings.SplitSeq(state, "\n") {
		if line != "" && !strings.Contains(line, "last_reserved_ip") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
