package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/plumb-cni/plumb/test/nstest"
)

const gatewayed = `"isDefaultGateway":true,`

var _ = Describe("bridge", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		nstest.LeakCheck(GinkgoTB())
	})

	Describe("ADD", func() {
		It("connects two pods and the node with IPv4 and IPv6, and the first packet passes", func() {
			conf := b.conf("1.1.0", gatewayed+`"mtu":1400,`, v4range, v6range)
			one, two := newPod(), newPod()
			result := mustAdd(b.call("one", one, conf))
			mustAdd(b.call("two", two, conf))
			for _, addr := range []string{"10.9.0.2:80", "[fd00:9::2]:80"} {
				nstest.ServeTCP(GinkgoTB(), one, addr)
			}
			nstest.MustDial(GinkgoTB(), two, "10.9.0.2:80", "10.9.0.3")
			nstest.MustDial(GinkgoTB(), two, "[fd00:9::2]:80", "fd00:9::3")
			nstest.MustDial(GinkgoTB(), b.node, "10.9.0.2:80", "10.9.0.1")
			nstest.MustDial(GinkgoTB(), b.node, "[fd00:9::2]:80", "fd00:9::1")

			By("returning what it made")
			Expect(result.Interfaces).To(HaveLen(3))
			Expect(result.Interfaces[0]).To(And(HaveField("Name", "cni0"), HaveField("MTU", 1400), HaveField("MAC", Not(BeEmpty()))))
			Expect(result.Interfaces[1].Name).To(MatchRegexp("^veth[0-9a-f]{8}$"))
			Expect(result.Interfaces[2]).To(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", one.Path())))
			Expect(result.IPs).To(HaveEach(HaveField("Interface", podIndex)))
			Expect(fmt.Sprint(result.IPs[0].Address, result.IPs[0].Gateway, result.IPs[1].Address, result.IPs[1].Gateway)).
				To(Equal("10.9.0.2/24 10.9.0.1 fd00:9::2/64 fd00:9::1"))
			Expect(in(one, "ip link show eth0")).To(And(ContainSubstring(result.Interfaces[2].MAC), ContainSubstring("qlen 1000")))
			Expect(in(b.node, "ip link show "+result.Interfaces[1].Name)).To(And(
				ContainSubstring(result.Interfaces[1].MAC), ContainSubstring("alias plumb:net1/one/eth0")))

			By("making the same routes, sysctls and forwarding as the reference plugin")
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
			By("leaving no address tentative, in the container and on the bridge")
			Expect(in(one, "ip -6 addr show scope global tentative")).To(BeEmpty())
			Expect(in(b.node, "ip -6 addr show dev cni0 tentative")).To(BeEmpty())
		})

		DescribeTable("prints a result of the configured cniVersion", func(version string) {
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

		It("does not wait for duplicate address detection", func() {
			c := b.call("one", newPod(), b.conf("1.1.0", gatewayed, v4range, v6range))
			c.Env = []string{"CNI_LOG_LEVEL=debug"}
			reply := run(c, "ADD").OK(GinkgoTB())
			Expect(reply.Stderr).To(ContainSubstring("add link veth"))
			Expect(reply.Stderr).NotTo(ContainSubstring("await addresses"))
		})

		It("waits for duplicate address detection with enabledad", func() {
			c := b.call("one", newPod(), b.conf("1.1.0", gatewayed+`"enabledad":true,`, v6range))
			c.Env = []string{"CNI_LOG_LEVEL=debug"}
			reply := run(c, "ADD").OK(GinkgoTB())
			Expect(reply.Stderr).To(ContainSubstring("await addresses of eth0"))
			Expect(c.Pod.Sysctl(GinkgoTB(), "net/ipv6/conf/eth0/accept_dad")).To(Equal("1"))
			Expect(in(c.Pod, "ip -6 addr show tentative")).To(BeEmpty())
		})

		It("fails with enabledad if another host on the bridge has the address, and names it", func() {
			other := newPod()
			mustAdd(b.call("other", other, b.conf("1.1.0", "")))
			in(other, "ip addr add fd00:9::2/64 dev eth0 nodad")
			f := run(b.call("one", newPod(), b.conf("1.1.0", `"enabledad":true,`, v6range)), "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(attach.CodeDuplicate))
			Expect(f.Msg).To(And(ContainSubstring("fd00:9::2/64: the address is in use"), ContainSubstring("give the other host or this container another address")))
		})

		It("adds no address without IPAM, and CHECK succeeds", func() {
			conf := b.conf("1.0.0", "")
			pod := newPod()
			reply := run(b.call("one", pod, conf), "ADD").OK(GinkgoTB())
			Expect(in(pod, "ip -4 addr show eth0")).To(BeEmpty())
			Expect(in(pod, "ip link show eth0")).To(ContainSubstring("LOWER_UP"))
			run(b.call("one", pod, nstest.WithPrevResult(conf, reply.Stdout)), "CHECK").OK(GinkgoTB())
		})

		It("leaves the container's end down with disableContainerInterface", func() {
			pod := newPod()
			mustAdd(b.call("one", pod, b.conf("1.1.0", `"disableContainerInterface":true,`)))
			Expect(in(pod, "ip link show eth0")).NotTo(ContainSubstring(",UP"))
		})

		It("uses the MAC of CNI_ARGS", func() {
			pod := newPod()
			c := b.call("one", pod, b.conf("1.1.0", ""))
			c.Args = "IgnoreUnknown=1;K8S_POD_NAME=a=b;MAC=c2:b0:57:49:47:f1"
			Expect(mustAdd(c).Interfaces[2].MAC).To(Equal("c2:b0:57:49:47:f1"))
			Expect(in(pod, "ip link show eth0")).To(ContainSubstring("c2:b0:57:49:47:f1"))
		})

		It("sets hairpin mode and port isolation, if they are configured", func() {
			result := mustAdd(b.call("one", newPod(), b.conf("1.1.0", `"hairpinMode":true,"portIsolation":true,`)))
			port := in(b.node, "ip -d link show "+result.Interfaces[1].Name)
			Expect(port).To(And(ContainSubstring("hairpin on"), ContainSubstring("isolated on")))
			two := mustAdd(b.call("two", newPod(), b.conf("1.1.0", "")))
			port = in(b.node, "ip -d link show "+two.Interfaces[1].Name)
			Expect(port).To(And(ContainSubstring("hairpin off"), ContainSubstring("isolated off")))
		})

		It("sets the bridge promiscuous with promiscMode", func() {
			mustAdd(b.call("one", newPod(), b.conf("1.1.0", `"promiscMode":true,`)))
			Expect(in(b.node, "ip link show cni0")).To(ContainSubstring("PROMISC"))
		})

		It("adds routes with all their attributes, and the default route once", func() {
			pod := newPod()
			routes := `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.50.0.0/16","mtu":1300,"advmss":1200,"priority":77},{"dst":"10.60.0.0/16","gw":"10.9.0.9","table":100}]}}`
			conf := strings.TrimSuffix(b.conf("1.0.0", gatewayed, v4range), "}}") + routes
			reply := run(b.call("one", pod, conf), "ADD").OK(GinkgoTB())
			Expect(in(pod, "ip -4 route")).To(And(
				ContainSubstring("10.50.0.0/16 via 10.9.0.1 dev eth0 metric 77 mtu 1300 advmss 1200"),
				ContainSubstring("default via 10.9.0.1 dev eth0")))
			Expect(strings.Count(in(pod, "ip -4 route"), "default")).To(Equal(1))
			Expect(in(pod, "ip -4 route show table 100")).To(ContainSubstring("10.60.0.0/16 via 10.9.0.9 dev eth0"))
			run(b.call("one", pod, nstest.WithPrevResult(conf, reply.Stdout)), "CHECK").OK(GinkgoTB())
		})

		It("keeps the bridge's MAC when ports are added and removed", func() {
			conf := b.conf("1.1.0", gatewayed, v4range)
			first := mustAdd(b.call("one", newPod(), conf)).Interfaces[0].MAC
			for i := range 5 {
				id := fmt.Sprint("more", i)
				Expect(mustAdd(b.call(id, newPod(), conf)).Interfaces[0].MAC).To(Equal(first))
				run(b.call(id, nil, conf), "DEL").OK(GinkgoTB())
			}
			run(b.call("one", nil, conf), "DEL").OK(GinkgoTB())
			Expect(in(b.node, "ip link show cni0")).To(ContainSubstring(first))
		})

		DescribeTable("keeps the MAC of a bridge that it did not make",
			func(lines ...string) {
				for _, conf := range []string{b.conf("1.1.0", ""), b.conf("1.1.0", gatewayed, v4range)} {
					b.node.Batch(GinkgoTB(), append([]string{"link add cni0 type bridge"}, lines...)...)
					mac := func() string { return strings.Fields(in(b.node, "ip -br link show cni0"))[2] }
					before := mac()
					for _, id := range []string{"one", "two"} {
						Expect(mustAdd(b.call(id, newPod(), conf)).Interfaces[0].MAC).To(Equal(before))
						Expect(mac()).To(Equal(before))
					}
					for _, id := range []string{"one", "two"} {
						run(b.call(id, nil, conf), "DEL").OK(GinkgoTB())
						Expect(mac()).To(Equal(before))
					}
					in(b.node, "ip link del cni0")
				}
			},
			Entry("down, without ports"),
			Entry("up, without ports", "link set cni0 up"),
			Entry("with the MAC of its uplink", "link set uplink0 address 02:00:00:00:00:01 master cni0", "link set cni0 up"),
			Entry("with an uplink whose MAC is higher than any other", "link set uplink0 address fe:ff:ff:ff:ff:ff master cni0", "link set cni0 up"),
			Entry("with an uplink that is down", "link set uplink0 down address fe:ff:ff:ff:ff:fe master cni0", "link set cni0 up"),
		)

		It("fixes the MAC of an existing bridge that has lost all its ports", func() {
			b.node.Batch(GinkgoTB(), "link add cni0 type bridge", "link add port0 type veth peer name port1", "link set port0 master cni0", "link del port0")
			conf := b.conf("1.1.0", gatewayed, v4range)
			first := mustAdd(b.call("one", newPod(), conf)).Interfaces[0].MAC
			Expect(mustAdd(b.call("two", newPod(), conf)).Interfaces[0].MAC).To(Equal(first))
			run(b.call("one", nil, conf), "DEL").OK(GinkgoTB())
			Expect(in(b.node, "ip link show cni0")).To(ContainSubstring(first))
		})

		It("sets accept_dad of an existing bridge only if it is down, as after a killed ADD", func() {
			acceptDAD := func() string { return b.node.Sysctl(GinkgoTB(), "net/ipv6/conf/cni0/accept_dad") }
			in(b.node, "ip link add cni0 type bridge")
			mustAdd(b.call("one", newPod(), b.conf("1.1.0", gatewayed, v6range)))
			Expect(acceptDAD()).To(Equal("0"))
			run(b.call("one", nil, b.conf("1.1.0", gatewayed, v6range)), "DEL").OK(GinkgoTB())
			in(b.node, "ip link del cni0")
			in(b.node, "ip link add cni0 up type bridge")
			mustAdd(b.call("one", newPod(), b.conf("1.1.0", gatewayed, v6range)))
			Expect(acceptDAD()).To(Equal("1"))
		})

		It("adds a gateway address for each of two ranges of one family", func() {
			conf := b.conf("1.1.0", gatewayed, v4range, `[{"subnet":"10.10.0.0/24"}]`)
			mustAdd(b.call("one", newPod(), conf))
			mustAdd(b.call("two", newPod(), conf))
			Expect(in(b.node, "ip -4 addr show cni0")).To(And(ContainSubstring("10.9.0.1/24"), ContainSubstring("10.10.0.1/24")))
		})

		It("sets accept_ra to 2 on an uplink with an advertised default route when it enables IPv6 forwarding", func() {
			b.node.SetSysctl(GinkgoTB(), "net/ipv6/conf/all/forwarding", "0")
			b.node.SetSysctl(GinkgoTB(), "net/ipv6/conf/"+nstest.Uplink+"/accept_ra", "1")
			in(b.node, "ip -6 route add default via "+nstest.OutsideV6+" dev "+nstest.Uplink+" proto ra metric 5")
			mustAdd(b.call("one", newPod(), b.conf("1.1.0", gatewayed, v6range)))
			Expect(b.node.Sysctl(GinkgoTB(), "net/ipv6/conf/"+nstest.Uplink+"/accept_ra")).To(Equal("2"))
		})
	})

	Describe("with a bridge that has another address", func() {
		BeforeEach(func() {
			in(b.node, "ip link add cni0 up type bridge")
			in(b.node, "ip addr add 10.77.0.1/24 dev cni0")
		})

		DescribeTable("ADD fails and keeps the address; with forceAddress it replaces the address", func(others bool) {
			if others {
				run(b.call("l2", newPod(), b.conf("1.1.0", "")), "ADD").OK(GinkgoTB())
			}
			pod := newPod()
			f := run(b.call("one", pod, b.conf("1.1.0", gatewayed, v4range)), "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
			Expect(f.Msg).To(And(ContainSubstring(`"cni0" already has an IP address different from 10.9.0.1/24`),
				ContainSubstring("10.77.0.1/24"), ContainSubstring("forceAddress")))
			Expect(in(b.node, "ip -4 addr show cni0")).To(And(ContainSubstring("10.77.0.1/24"), Not(ContainSubstring("10.9.0.1"))))
			mustAdd(b.call("one", pod, b.conf("1.1.0", gatewayed+`"forceAddress":true,`, v4range)))
			Expect(in(b.node, "ip -4 addr show cni0")).To(And(ContainSubstring("10.9.0.1/24"), Not(ContainSubstring("10.77"))))
		},
			Entry("while the bridge has ports", true),
			Entry("while the bridge has no ports", false),
		)
	})

	Describe("ADD warns of", func() {
		warnings := func(conf string) string {
			GinkgoHelper()
			return run(b.call("one", newPod(), conf), "ADD").OK(GinkgoTB()).Stderr
		}

		It("a bridge that runs STP", func() {
			in(b.node, "ip link add cni0 up type bridge stp_state 1 forward_delay 200")
			Expect(warnings(b.conf("1.1.0", gatewayed, v4range))).To(ContainSubstring("bridge cni0 runs STP"))
		})

		It("an mtu larger than the bridge's", func() {
			mustAdd(b.call("other", newPod(), b.conf("1.1.0", "", v4range)))
			Expect(warnings(b.conf("1.1.0", `"mtu":9000,`, v4range))).To(ContainSubstring("mtu 9000 is larger than 1500, the mtu of bridge cni0"))
		})

		It("a network that is on another interface of the node as well", func() {
			in(b.node, "ip link add old0 up type bridge")
			in(b.node, "ip addr add 10.9.0.1/24 dev old0")
			in(b.node, "ip addr add fd00:9::1/64 dev old0 nodad")
			warned := warnings(b.conf("1.1.0", gatewayed, v4range, v6range))
			Expect(warned).To(ContainSubstring("10.9.0.0/24 of bridge cni0 is also on interface old0 (10.9.0.1/24)"))
			Expect(warned).To(ContainSubstring("fd00:9::/64 of bridge cni0 is also on interface old0 (fd00:9::1/64)"))
		})

		It("a gateway outside the network of its address", func() {
			ranges := `[{"subnet":"10.9.0.0/24","gateway":"10.99.0.1"}]`
			Expect(warnings(b.conf("1.1.0", `"isGateway":true,`, ranges, v6range))).To(And(
				ContainSubstring("the gateway 10.99.0.1 is outside the network of address 10.9.0.1/24"), Not(ContainSubstring("fd00:9::1"))))
			Expect(in(b.node, "ip -4 addr show cni0")).To(ContainSubstring("10.99.0.1/24"))
		})

		It("nothing if the node reaches the network by its default route or not at all", func() {
			Expect(warnings(b.conf("1.1.0", gatewayed+`"mtu":1500,`, v4range, v6range))).To(BeEmpty())
			run(b.call("one", nil, b.conf("1.1.0", gatewayed, v4range, v6range)), "DEL").OK(GinkgoTB())
			in(b.node, "ip link del cni0")
			in(b.node, "ip route add blackhole 10.9.0.0/16")
			Expect(warnings(b.conf("1.1.0", gatewayed, v4range))).To(BeEmpty())
		})
	})

	DescribeTable("masquerades with each backend", func(backend string) {
		conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"ipMasqBackend":"`+backend+`",`, v4range, v6range)
		pod, other := newPod(), newPod()
		before := snapshotOf(b.outside)
		reply := run(b.call("one", pod, conf), "ADD").OK(GinkgoTB())
		mustAdd(b.call("two", other, conf))
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
		run(b.call("one", pod, nstest.WithPrevResult(conf, reply.Stdout)), "CHECK").OK(GinkgoTB())
		Expect(nstest.Snapshot(GinkgoTB(), b.node)).To(And(MatchRegexp(`10\.9\.0\.2\b`), MatchRegexp(`fd00:9::2\b`)))

		By("leaving no rule when DEL comes after the container was removed")
		pod.Remove(GinkgoTB())
		run(nstest.Call{ContainerID: "one", Node: b.node, NetNS: pod.Path(), Path: b.path, Config: conf}, "DEL").OK(GinkgoTB())
		Expect(nstest.Snapshot(GinkgoTB(), b.node)).NotTo(Or(MatchRegexp(`10\.9\.0\.2\b`), MatchRegexp(`fd00:9::2\b`)))
		nstest.MustDial(GinkgoTB(), other, nstest.OutsideV4+":80", nstest.NodeV4)
		run(b.call("two", nil, conf), "DEL").OK(GinkgoTB())
		expectUnchanged(before, b.outside)
	}, Entry(nil, "nftables"), Entry(nil, "iptables"))

	Describe("a failed ADD", func() {
		It("leaves no pair and no address when the IPAM plugin fails", func() {
			pod := newPod()
			before := snapshotOf(b.node, pod)
			f := run(b.call("one", pod, b.conf("1.1.0", "", `[{"subnet":"10.9.0.0/31"}]`)), "ADD").Failure(GinkgoTB())
			Expect(f.Msg).To(ContainSubstring("too small to allocate from"))
			in(b.node, "ip link del cni0")
			expectUnchanged(before, b.node, pod)
		})

		It("keeps the address of the container when ADD is repeated", func() {
			conf := b.conf("1.1.0", gatewayed, v4range)
			pod := newPod()
			mustAdd(b.call("one", pod, conf))
			state := func() string {
				return nstest.Snapshot(GinkgoTB(), b.node, pod) + nstest.SnapshotDir(GinkgoTB(), b.leases)
			}
			before := nstest.WaitStable(state)
			f := run(b.call("one", pod, conf), "ADD").Failure(GinkgoTB())
			Expect(f.Msg).To(ContainSubstring(`"eth0" already exists`))
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
			By("also when it is repeated in another namespace")
			f = run(b.call("one", newPod(), conf), "ADD").Failure(GinkgoTB())
			Expect(f.Msg).To(ContainSubstring("not followed by a DEL"))
			nstest.ServeTCP(GinkgoTB(), pod, "10.9.0.2:80")
			nstest.MustDial(GinkgoTB(), b.node, "10.9.0.2:80", "10.9.0.1")
		})

		It("leaves nothing when the cniVersion cannot express the result", func() {
			pod := newPod()
			before := snapshotOf(b.node, pod)
			f := run(b.call("one", pod, b.conf("0.2.0", "")), "ADD").Failure(GinkgoTB())
			Expect(f.Msg).To(ContainSubstring("no valid IP addresses"))
			expectUnchanged(before, b.node, pod)
		})
	})

	DescribeTable("ADD names its interface in the error if the interface is removed during ADD", func(at string) {
		c := b.call("one", newPod(), b.conf("1.1.0", gatewayed, v4range, v6range))
		nstest.RequireRemovedInterfaceInError(GinkgoTB(), plugin(), c, at)
		leases, err := filepath.Glob(filepath.Join(b.leases, "net1", "[1f]*"))
		Expect(err).NotTo(HaveOccurred())
		Expect(leases).To(BeEmpty())
	},
		Entry("before the host end becomes a port", "set port veth"),
		Entry("before it is set up", "set link eth0 up"),
		Entry("before its sysctls are written", "write sysctls "),
		Entry("before its addresses are added", "add address 10.9.0.2/24"),
		Entry("after its addresses were added", "set link cni0 address"),
		Entry("at the last step", "set link eth0 address"),
	)

	Describe("DEL", func() {
		It("leaves node, pod and reservations as before, also when it is repeated", func() {
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range, v6range)
			mustAdd(b.call("warm", newPod(), conf))
			pod := newPod()
			state := func() string {
				return withoutCursor(nstest.Snapshot(GinkgoTB(), b.node, pod) + "\n" + nstest.SnapshotDir(GinkgoTB(), filepath.Join(b.leases, "net1")))
			}
			nstest.RequireDelRestores(GinkgoTB(), plugin(), b.call("one", pod, conf), state)
		})

		DescribeTable("removes the rules that a concurrent ADD adds before the link is deleted", func(backend string) {
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"ipMasqBackend":"`+backend+`",`, v4range)
			mustAdd(b.call("warm", newPod(), conf))
			c := b.call("one", newPod(), conf)
			nstest.RequireDelAfterLateAdd(GinkgoTB(), plugin(), c, func(node *ns.Handle) error {
				m := masq.Masq{Node: node, Owner: types.Attachment{Network: "net1", ContainerID: "one", IfName: "eth0"}, Backend: masq.Backend(backend)}
				return masq.Add(&undo.Stack{}, m, []netip.Prefix{netip.MustParsePrefix("10.9.0.3/24")})
			})
		}, Entry(nil, "nftables"), Entry(nil, "iptables"))

		It("leaves the interface of another attachment whose namespace has the same path", func() {
			conf := b.conf("1.1.0", gatewayed, v4range)
			old, other := newPod(), newPod()
			mustAdd(b.call("old", old, conf))
			mustAdd(b.call("new", other, conf))
			run(b.call("old", other, conf), "DEL").OK(GinkgoTB())
			Expect(in(other, "ip -br addr show eth0")).To(ContainSubstring("10.9.0.3/24"))
			Expect(in(old, "ip -br link")).NotTo(ContainSubstring("eth0"))
		})

		It("deletes a pair that the reference plugin made", func() {
			conf := b.conf("1.0.0", "", v4range)
			pod := newPod()
			in(b.node, "ip link add cni0 up type bridge")
			in(b.node, "ip link add veth0badcafe type veth peer name eth0 netns "+pod.Path())
			in(b.node, "ip link set veth0badcafe master cni0 up")
			run(b.call("one", pod, conf), "DEL").OK(GinkgoTB())
			Expect(in(b.node, "ip -br link")).NotTo(ContainSubstring("veth0badcafe"))
		})

		It("succeeds with a configuration that ADD would refuse", func() {
			conf := b.conf("1.1.0", gatewayed, v4range)
			pod := newPod()
			mustAdd(b.call("one", pod, conf))
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
			c.Config = nstest.WithPrevResult(conf, reply.Stdout)
			run(c, "CHECK").OK(GinkgoTB())
		})

		DescribeTable("names the difference", func(where func() *nstest.NS, line, want string) {
			in(where(), strings.ReplaceAll(line, "HOST", host))
			f := run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeChanged))
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
			Entry("route of the node", func() *nstest.NS { return b.node }, "ip route del 10.9.0.0/24 dev cni0", "interface cni0 has no route 10.9.0.0/24: packets for 10.9.0.2 leave through "),
			Entry("IPv6 route of the node", func() *nstest.NS { return b.node }, "ip route del fd00:9::/64 dev cni0", "interface cni0 has no route fd00:9::/64: packets for fd00:9::2 leave through "),
			Entry("route of the node to another interface", func() *nstest.NS { return b.node }, "ip route add 10.9.0.2/32 dev HOST",
				"interface cni0 has the route 10.9.0.0/24, but packets for 10.9.0.2 leave through HOST"),
			Entry("bridge", func() *nstest.NS { return b.node }, "ip link set cni0 down", "bridge cni0 is down"),
			Entry("bridge that was deleted", func() *nstest.NS { return b.node }, "ip link del cni0", "bridge cni0 does not exist"),
			Entry("forwarding", func() *nstest.NS { return b.node }, "sysctl -q -w net.ipv4.ip_forward=0", "sysctl net/ipv4/ip_forward is"),
			Entry("accept_ra", func() *nstest.NS { return b.node }, "sysctl -q -w net.ipv6.conf.HOST.accept_ra=1", "accept_ra is"),
			Entry("the bridge's accept_ra", func() *nstest.NS { return b.node }, "sysctl -q -w net.ipv6.conf.cni0.accept_ra=1", "conf/cni0/accept_ra is"),
			Entry("masquerade", func() *nstest.NS { return b.node }, "nft delete table inet plumb", "masquerade"),
			Entry("spoof check", func() *nstest.NS { return b.node }, "nft delete table bridge plumb", "MAC"),
		)

		It("succeeds after a later plugin changed MAC, MTU and sysctls, and with a promiscuous bridge", func() {
			in(c.Pod, "ip link set eth0 address 02:00:00:00:00:99 mtu 1300")
			in(c.Pod, "sysctl -q -w net.ipv4.conf.eth0.arp_notify=0")
			in(b.node, "ip link set cni0 promisc on")
			conf := c.Config
			c.Config = strings.Replace(conf, `"macspoofchk":true,`, "", 1)
			run(c, "CHECK").OK(GinkgoTB())
		})

		It("does not compare mtu and advmss of routes if the reference plugin made the pair", func() {
			pod := newPod()
			conf := strings.TrimSuffix(b.conf("1.0.0", "", v4range), "}}") +
				`,"routes":[{"dst":"10.50.0.0/16","mtu":1300,"advmss":1200},{"dst":"10.60.0.0/16","gw":"0.0.0.0"}]}}`
			c := b.call("reference", pod, conf)
			reply := run(c, "ADD").OK(GinkgoTB())
			c.Config = nstest.WithPrevResult(conf, reply.Stdout)
			run(c, "CHECK").OK(GinkgoTB())
			// Make the pair look like one of the reference plugin: without alias and attributes.
			host := reply.Result(GinkgoTB()).Interfaces[1].Name
			in(b.node, "ip link set "+host+" down")
			in(b.node, "ip link set "+host+" name vethreference up")
			b.node.Must(GinkgoTB(), "ip", "link", "set", "vethreference", "alias", "")
			in(pod, "ip route change 10.50.0.0/16 via 10.9.0.1 dev eth0 proto boot")
			c.Config = strings.ReplaceAll(c.Config, host, "vethreference")
			c.Config = strings.Replace(c.Config, `"dst": "10.50.0.0/16"`, `"dst": "10.50.0.0/16", "mtu": 1300`, 1)
			run(c, "CHECK").OK(GinkgoTB())
		})

		It("calls the IPAM plugin", func() {
			Expect(os.RemoveAll(filepath.Join(b.leases, "net1", "10.9.0.2"))).To(Succeed())
			f := run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Msg).To(And(ContainSubstring("host-local"), ContainSubstring("10.9.0.2")))
		})
	})

	Describe("GC", func() {
		It("deletes what belongs to no valid attachment of this network, and nothing else", func() {
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range)
			other := strings.NewReplacer(`"net1"`, `"net2"`, "10.9.0", "10.19.0", "cni0", "cni1").Replace(conf)
			keep, drop, foreign := newPod(), newPod(), newPod()
			mustAdd(b.call("keep", keep, conf))
			mustAdd(b.call("drop", drop, conf))
			mustAdd(b.call("drop", foreign, other))
			gc := strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[{"containerID":"keep","ifname":"eth0"}]}`
			run(nstest.Call{Node: b.node, Path: b.path, Config: gc}, "GC").OK(GinkgoTB())
			Expect(in(keep, "ip -br addr show eth0")).To(ContainSubstring("10.9.0.2"))
			Expect(in(drop, "ip -br link")).NotTo(ContainSubstring("eth0"))
			Expect(in(foreign, "ip -br addr show eth0")).To(ContainSubstring("10.19.0.2"))
			state := nstest.Snapshot(GinkgoTB(), b.node) + nstest.SnapshotDir(GinkgoTB(), filepath.Join(b.leases, "net1"))
			Expect(state).NotTo(Or(ContainSubstring("net1/drop"), ContainSubstring("10.9.0.3 ")))
			Expect(state).To(And(ContainSubstring("net1/keep"), ContainSubstring("net2/drop")))
			By("refusing an incomplete list")
			for _, entry := range []string{`{"containerID":"keep"}`, `{}`, `null`} {
				bad := strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[` + entry + `]}`
				f := run(nstest.Call{Node: b.node, Path: b.path, Config: bad}, "GC").Failure(GinkgoTB())
				Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
				Expect(f.Msg).To(ContainSubstring("nothing is collected"))
			}
			Expect(in(keep, "ip -br addr show eth0")).To(ContainSubstring("10.9.0.2"))
			By("deleting everything of the network with an empty list")
			run(nstest.Call{Node: b.node, Path: b.path, Config: strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[]}`}, "GC").OK(GinkgoTB())
			Expect(in(keep, "ip -br link")).NotTo(ContainSubstring("eth0"))
			Expect(in(foreign, "ip -br addr show eth0")).To(ContainSubstring("10.19.0.2"))
		})
	})

	Describe("with a container ID of 260 bytes", func() {
		It("ADD and DEL succeed and leave nothing", func() {
			id := strings.Repeat("y", 260)
			conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range)
			mustAdd(b.call("warm", newPod(), conf))
			before := snapshotOf(b.node)
			mustAdd(b.call(id, newPod(), conf))
			run(b.call(id, nil, conf), "DEL").OK(GinkgoTB())
			expectUnchanged(before, b.node)
		})
	})

	Describe("STATUS", func() {
		It("succeeds, and fails if an ADD would fail", func() {
			c := nstest.Call{Node: b.node, Path: b.path, Config: b.conf("1.1.0", gatewayed+`"ipMasq":true,`, v4range)}
			run(c, "STATUS").OK(GinkgoTB())
			By("a pool that is exhausted")
			small := b.conf("1.1.0", "", `[{"subnet":"10.9.0.0/30"}]`)
			mustAdd(b.call("one", newPod(), small))
			c.Config = small
			run(c, "STATUS").OK(GinkgoTB())
			c.Config = strings.Replace(small, `"ipam":{`, `"ipam":{"failStatusWhenFull":true,`, 1)
			Expect(c.Config).NotTo(Equal(small))
			Expect(run(c, "STATUS").Failure(GinkgoTB()).Code).To(BeEquivalentTo(types.CodeNotAvailable))
			By("a name of an interface that is no bridge")
			c.Config = strings.Replace(b.conf("1.1.0", "", v4range), `"cni0"`, `"`+nstest.Uplink+`"`, 1)
			f := run(c, "STATUS").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeNotAvailable))
			Expect(f.Msg).To(ContainSubstring("is no bridge"))
		})
	})

	Describe("with bad input", func() {
		DescribeTable("ADD returns an error that names the problem, and leaves nothing", func(change func(c *nstest.Call), code int, want string) {
			c := b.call("one", newPod(), b.conf("1.1.0", gatewayed, v4range))
			change(&c)
			before := snapshotOf(b.node)
			f := run(c, "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(code))
			Expect(f.Msg + f.Details).To(ContainSubstring(want))
			if strings.Contains(nstest.Snapshot(GinkgoTB(), b.node), " cni0") {
				in(b.node, "ip link del cni0")
			}
			expectUnchanged(before, b.node)
			leases, err := filepath.Glob(filepath.Join(b.leases, "net1", "[0-9f]*"))
			Expect(err).NotTo(HaveOccurred())
			Expect(leases).To(BeEmpty())
		},
			Entry("a configuration that is not JSON", func(c *nstest.Call) { c.Config = "{" }, types.CodeDecode, "decode configuration"),
			Entry("the configuration null", func(c *nstest.Call) { c.Config = "null" }, types.CodeDecode, "null"),
			Entry("an unknown cniVersion", func(c *nstest.Call) { c.Config = b.conf("1.7.0", "", v4range) }, types.CodeVersion, "incompatible CNI versions"),
			Entry("a missing netns", func(c *nstest.Call) { c.Pod, c.NetNS = nil, "/run/netns/no-such-pod" }, types.CodeNamespace, "no such file"),
			Entry("a plain file as netns", func(c *nstest.Call) { c.Pod, c.NetNS = nil, "/proc/self/status" }, types.CodeNamespace, "namespace"),
			Entry("the node's own netns", func(c *nstest.Call) { c.Pod = b.node }, types.CodeNamespace, "CNI_NETNS_OVERRIDE"),
			Entry("an IPAM type with a slash", func(c *nstest.Call) {
				c.Config = strings.Replace(c.Config, `"host-local"`, `"../bin/host-local"`, 1)
			}, types.CodeConfig, "../bin/host-local"),
			Entry("an IPAM plugin that does not exist", func(c *nstest.Call) { c.Path = "/nonexistent" }, types.CodeConfig, `failed to find plugin "host-local" in path`),
			Entry("a subnet without a prefix length", func(c *nstest.Call) { c.Config = strings.Replace(c.Config, "10.9.0.0/24", "10.9.0.0", 1) }, types.CodeConfig, "10.9.0.0"),
			Entry("the name of an interface that is no bridge", func(c *nstest.Call) { c.Config = strings.Replace(c.Config, `"cni0"`, `"uplink0"`, 1) }, types.CodeConfig, "is no bridge"),
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
				b.node.SetSysctl(GinkgoTB(), "net/ipv6/conf/default/disable_ipv6", "1")
				c.Config = b.conf("1.1.0", gatewayed, v6range)
			}, types.CodeConfig, "net/ipv6/conf/cni0/disable_ipv6 is 1: enable IPv6 there, or remove the IPv6 range from ipam"),
			Entry("a gateway in none of the container's networks", func(c *nstest.Call) {
				c.Config = strings.TrimSuffix(b.conf("1.1.0", "", v4range), "}}") + `,"routes":[{"dst":"0.0.0.0/0","gw":"10.99.0.1"}]}}`
			}, types.CodeConfig, "10.99.0.1, the gateway of the route to 0.0.0.0/0, is in none of the networks of eth0 [10.9.0.2/24]"),
			Entry("an IPv6 gateway in none of the container's networks", func(c *nstest.Call) {
				c.Config = strings.TrimSuffix(b.conf("1.1.0", "", v6range), "}}") + `,"routes":[{"dst":"::/0","gw":"fd99::1"}]}}`
			}, types.CodeConfig, "fd99::1, the gateway of the route to ::/0, is in none of the networks of eth0 [fd00:9::2/64]"),
			Entry("the interface name \"all\"", func(c *nstest.Call) { c.IfName = "all" }, types.CodeEnvironment, "all interfaces"),
			Entry("bad CNI_ARGS", func(c *nstest.Call) { c.Args = "K8S_POD_NAME=x" }, types.CodeEnvironment, "IgnoreUnknown"),
			Entry("a prevResult that is a number", func(c *nstest.Call) { c.Config = strings.TrimSuffix(c.Config, "}") + `,"prevResult":5}` }, types.CodeDecode, "prevResult"),
		)
	})

	Describe("in a chain", func() {
		It("makes the tap device of an earlier plugin a port of the bridge", func() {
			in(b.node, "ip tuntap add tap0 mode tap")
			pod := newPod()
			prev := fmt.Sprintf(`,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"tap0"},{"name":"eth0","sandbox":%q}],"ips":[{"interface":1,"address":"10.9.0.5/24","gateway":"10.9.0.1"}]}}`, pod.Path())
			conf := strings.TrimSuffix(b.conf("1.1.0", `"isGateway":true,"hairpinMode":true,`), "}") + prev
			up := b.call("one", pod, conf)
			done := make(chan struct{})
			go func() { // a tap device has a carrier while a process has it open
				defer close(done)
				defer GinkgoRecover()
				holdTap(b.node, "tap0", func() {
					result := mustAdd(up)
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

	It("adds and deletes many pods, 32 at a time, without a duplicate address or leftovers", func() {
		conf := b.conf("1.1.0", gatewayed+`"ipMasq":true,`, v4range, v6range)
		mustAdd(b.call("warm", newPod(), conf))
		const atOnce = 32
		count := nstest.FullOrShort(200, atOnce)
		pods := make([]*nstest.NS, count)
		for i := range pods {
			pods[i] = newPod()
		}
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), b.node) })
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
		Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), b.node) })).To(BeEmpty())
		files, err := os.ReadDir(filepath.Join(b.leases, "net1"))
		Expect(err).NotTo(HaveOccurred())
		Expect(files).To(HaveLen(2 + 3)) // the two addresses of "warm", the lock and two cursors
	})
})

var _ = Describe("fault sweep", func() {
	DescribeTable("leaves nothing if any single step fails", sweep,
		Entry("layer 2", `"hairpinMode":true,`),
		Entry("dual stack with gateway", gatewayed, v4range, v6range),
		Entry("masquerade and spoof check", gatewayed+`"ipMasq":true,"macspoofchk":true,`, v4range),
	)
})

// sweep runs the fault sweep with a configuration.
func sweep(keys string, ranges ...string) {
	path, leases := nstest.Build(GinkgoTB(), "host-local"), GinkgoTB().TempDir()
	b := &testbed{leases: leases}
	nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
		Plugin: plugin(), Config: b.conf("1.1.0", keys, ranges...), Path: path, Dirs: []string{leases},
		Ignore: nstest.KeptByHostLocal,
	})
}

// snapshotOf returns the state of the namespaces when it no longer changes.
func snapshotOf(namespaces ...*nstest.NS) string {
	return nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), namespaces...) })
}

// expectUnchanged waits until the state of the namespaces is as before.
func expectUnchanged(before string, namespaces ...*nstest.NS) {
	GinkgoHelper()
	Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), namespaces...) })).To(BeEmpty())
}

// withoutCursor removes the round-robin cursor of host-local, which DEL does not restore.
func withoutCursor(state string) string {
	var kept []string
	for line := range strings.SplitSeq(state, "\n") {
		if line != "" && !strings.Contains(line, "last_reserved_ip") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
