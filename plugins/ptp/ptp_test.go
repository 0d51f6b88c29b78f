package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("ptp", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		nstest.LeakCheck(GinkgoTB())
	})

	Describe("ADD", func() {
		It("connects pods and the node with IPv4 and IPv6", func() {
			conf := b.conf("1.1.0", `"mtu":1400,`, v4range, v6range)
			one, two := newPod(), newPod()
			first := b.call("one", one, conf)
			first.Env = []string{"CNI_LOG_LEVEL=debug"}
			reply := run(first, "ADD").OK(GinkgoTB())
			host := reply.Result(GinkgoTB()).Interfaces[0].Name

			By("not waiting for duplicate address detection on either end")
			Expect(reply.Stderr).To(ContainSubstring("add link veth"))
			Expect(reply.Stderr).NotTo(ContainSubstring("await addresses"))
			Expect(in(one, "ip -6 addr show dev eth0 scope global tentative")).To(BeEmpty())
			Expect(in(b.node, "ip -6 addr show dev "+host+" scope global tentative")).To(BeEmpty())

			for _, addr := range []string{"10.1.2.2:80", "[fd00:1::2]:80"} {
				nstest.ServeTCP(GinkgoTB(), one, addr)
			}
			mustAdd(b.call("two", two, conf))
			nstest.MustDial(GinkgoTB(), two, "[fd00:1::2]:80", "fd00:1::3")
			nstest.MustDial(GinkgoTB(), two, "10.1.2.2:80", "10.1.2.3")
			nstest.MustDial(GinkgoTB(), b.node, "10.1.2.2:80", "10.1.2.1")
			nstest.MustDial(GinkgoTB(), b.node, "[fd00:1::2]:80", "fd00:1::1")
		})

		It("needs no retransmission for the first packet, in both directions and families", func() {
			conf := b.conf("1.1.0", "", v4range, v6range)
			for i := range 12 {
				one, two := newPod(), newPod()
				var addrs []string
				for _, ip := range mustAdd(b.call(fmt.Sprint("one", i), one, conf)).IPs {
					addrs = append(addrs, netip.AddrPortFrom(ip.Address.Addr(), 80).String())
					nstest.ServeTCP(GinkgoTB(), one, addrs[len(addrs)-1])
				}
				from, to := two, addrs
				if i%2 == 1 { // connect to the newer pod
					from, to = one, nil
				}
				for _, ip := range mustAdd(b.call(fmt.Sprint("two", i), two, conf)).IPs {
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

		It("lets the node reach a container at once whose MAC a later plugin changed", func() {
			pod := newPod()
			mustAdd(b.call("one", pod, b.conf("1.1.0", "", v4range, v6range)))
			for _, addr := range []string{"10.1.2.2:80", "[fd00:1::2]:80"} {
				nstest.ServeTCP(GinkgoTB(), pod, addr)
			}
			in(pod, "ip link set eth0 address 02:00:00:00:00:99")
			for _, addr := range []string{"10.1.2.2:80", "[fd00:1::2]:80"} {
				nstest.MustDial(GinkgoTB(), b.node, addr, "")
			}
			Expect(retransmissions(b.node)).To(Equal("0"))
		})

		It("returns what it made", func() {
			conf := strings.TrimSuffix(b.conf("1.1.0", `"mtu":1400,`, v4range, v6range), "}") + `,"dns":{"nameservers":["10.1.2.1"],"search":["a.example"]}}`
			pod := newPod()
			result := mustAdd(b.call("one", pod, conf))
			Expect(result.Interfaces).To(HaveLen(2))
			Expect(result.Interfaces[0]).To(And(HaveField("Name", MatchRegexp("^veth[0-9a-f]{8}$")), HaveField("MTU", 1400), HaveField("Sandbox", "")))
			Expect(result.Interfaces[1]).To(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", pod.Path())))
			Expect(in(b.node, "ip link show "+result.Interfaces[0].Name)).To(And(
				ContainSubstring("mtu 1400"), ContainSubstring("qlen 1000"), ContainSubstring("LOWER_UP"),
				ContainSubstring(result.Interfaces[0].MAC), ContainSubstring("alias plumb:net1/one/eth0")))
			Expect(in(pod, "ip link show eth0")).To(And(
				ContainSubstring("mtu 1400"), ContainSubstring("qlen 1000"), ContainSubstring("LOWER_UP"),
				ContainSubstring(result.Interfaces[1].MAC)))
			Expect(result.IPs).To(HaveEach(HaveField("Interface", podIndex)))
			Expect(fmt.Sprint(result.IPs[0].Address, result.IPs[0].Gateway, result.IPs[1].Address, result.IPs[1].Gateway)).
				To(Equal("10.1.2.2/24 10.1.2.1 fd00:1::2/64 fd00:1::1"))
			Expect(result.Routes).To(HaveLen(2))
			Expect(result.DNS).To(Equal(types.DNS{Nameservers: []string{"10.1.2.1"}, Search: []string{"a.example"}}))
		})

		It("returns the DNS of the IPAM plugin", func() {
			conf := static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"}`, `,"dns":{"nameservers":["10.1.2.53"]}`)
			Expect(mustAdd(b.call("one", newPod(), conf)).DNS.Nameservers).To(Equal([]string{"10.1.2.53"}))
		})

		It("sets the sysctls of both ends, and ignores router advertisements", func() {
			pod := newPod()
			result := mustAdd(b.call("one", pod, b.conf("1.1.0", "", v4range, v6range)))
			host := result.Interfaces[0].Name
			for key, want := range map[string]string{
				"net/ipv6/conf/eth0/accept_ra": "0", "net/ipv6/conf/eth0/accept_dad": "0",
				"net/ipv6/conf/eth0/keep_addr_on_down": "1", "net/ipv6/conf/eth0/disable_ipv6": "0", "net/ipv6/conf/lo/disable_ipv6": "0",
			} {
				Expect(pod.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
			}
			for key, want := range map[string]string{
				"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
				"net/ipv6/conf/" + host + "/accept_ra": "0", "net/ipv6/conf/" + host + "/accept_dad": "0",
			} {
				Expect(b.node.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
			}
			By("telling each end of the other")
			for _, gw := range []string{"10.1.2.1", "fd00:1::1"} {
				Expect(in(pod, "ip neigh show "+gw)).To(ContainSubstring("dev eth0 lladdr " + result.Interfaces[0].MAC))
			}
			for _, ip := range []string{"10.1.2.2", "fd00:1::2"} {
				Expect(in(b.node, "ip neigh show "+ip)).To(ContainSubstring("dev " + host + " lladdr " + result.Interfaces[1].MAC))
			}
		})

		It("works where IPv6 is off by default on the node and in the container", func() {
			pod, peer := newPod(), newPod()
			for _, n := range []*nstest.NS{b.node, pod} {
				n.SetSysctl(GinkgoTB(), "net/ipv6/conf/default/disable_ipv6", "1")
			}
			mustAdd(b.call("one", pod, b.conf("1.1.0", "", v6range)))
			mustAdd(b.call("two", peer, b.conf("1.1.0", "", v6range)))
			nstest.ServeTCP(GinkgoTB(), pod, "[fd00:1::2]:80")
			nstest.MustDial(GinkgoTB(), peer, "[fd00:1::2]:80", "fd00:1::3")
		})

		// state is the addresses and routes of both ends: what a person would look at.
		state := func(pod *nstest.NS, host string) string {
			GinkgoHelper()
			out := ""
			for _, end := range []struct {
				n    *nstest.NS
				name string
			}{{pod, "eth0"}, {b.node, host}} {
				for _, line := range []string{
					"ip -br -4 addr show dev %s", "ip -br -6 addr show dev %s scope global",
					"ip -4 route show dev %s", "ip -6 route show dev %s proto boot",
				} {
					line = fmt.Sprintf(line, end.name)
					out += "$ " + line + "\n" + in(end.n, line)
				}
			}
			// The index of the other end differs between runs; the kernel pads.
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
			pod := newPod()
			c := b.call("one", pod, conf())
			reply := run(c, "ADD").OK(GinkgoTB())
			nstest.Golden(GinkgoTB(), name, state(pod, reply.Result(GinkgoTB()).Interfaces[0].Name))
			c.Config = nstest.WithPrevResult(c.Config, reply.Stdout)
			run(c, "CHECK").OK(GinkgoTB())
		},
			Entry(nil, "v4", func() string { return b.conf("1.1.0", "", v4range) }),
			Entry(nil, "v6", func() string { return b.conf("1.1.0", "", v6range) }),
			Entry(nil, "dual", func() string { return b.conf("1.1.0", "", v4range, v6range) }),
			Entry(nil, "single", func() string { // prefixes of one address: /32 and /128
				return static(`{"address":"10.1.2.5/32","gateway":"169.254.1.1"},{"address":"fd00:1::5/128","gateway":"fe80::1"}`, defaults)
			}),
			Entry(nil, "several", func() string { // two addresses with one gateway, one with another, and one without
				return static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"},{"address":"10.1.2.3/24","gateway":"10.1.2.1"},`+
					`{"address":"10.1.3.2/24","gateway":"10.1.3.1"},{"address":"10.1.4.2/24"},`+
					`{"address":"fd00:1::2/64","gateway":"fd00:1::1"},{"address":"fd00:1::3/64","gateway":"fd00:1::4"}`, defaults)
			}),
			Entry(nil, "routes", func() string {
				return static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"}`,
					`,"routes":[{"dst":"10.50.0.0/16","mtu":1300,"advmss":1200,"priority":77},{"dst":"10.60.0.0/16","gw":"10.1.2.9"},`+
						`{"dst":"10.1.2.0/24"},{"dst":"0.0.0.0/0"},{"dst":"0.0.0.0/0"}]`)
			}),
		)

		It("adds routes to another routing table, and CHECK finds them", func() {
			for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
				pod := newPod()
				conf := strings.Replace(static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"}`,
					`,"routes":[{"dst":"0.0.0.0/0","table":100},{"dst":"10.60.0.0/16","table":100}]`), "1.1.0", version, 1)
				c := b.call("one", pod, conf)
				reply := run(c, "ADD").OK(GinkgoTB())
				Expect(in(pod, "ip -4 route show table 100")).To(And(
					ContainSubstring("default via 10.1.2.1"), ContainSubstring("10.60.0.0/16 via 10.1.2.1")))
				c.Config = nstest.WithPrevResult(conf, reply.Stdout)
				run(c, "CHECK").OK(GinkgoTB())
				in(pod, "ip route flush table 100")
				if version == "1.1.0" {
					Expect(run(c, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring("no route 0.0.0.0/0 via 10.1.2.1 table 100"))
				}
				run(c, "DEL").OK(GinkgoTB())
			}
		})

		It("makes a route with an unspecified gateway a route on the link", func() {
			pod := newPod()
			c := b.call("one", pod, static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"},{"address":"fd00:1::2/64","gateway":"fd00:1::1"}`,
				`,"routes":[{"dst":"0.0.0.0/0","gw":"0.0.0.0"},{"dst":"::/0","gw":"::"}]`))
			reply := run(c, "ADD").OK(GinkgoTB())
			Expect(in(pod, "ip -4 route show default")).To(Equal("default dev eth0 scope link \n"))
			Expect(in(pod, "ip -6 route show default")).To(ContainSubstring("default dev eth0 metric 1024"))
			c.Config = nstest.WithPrevResult(c.Config, reply.Stdout)
			run(c, "CHECK").OK(GinkgoTB())
		})

		It("does not use the unspecified gateway of a route as gateway of an address", func() {
			conf := static(`{"address":"10.1.2.2/24"}`, `,"routes":[{"dst":"0.0.0.0/0","gw":"0.0.0.0"}]`)
			Expect(run(b.call("one", newPod(), conf), "ADD").Failure(GinkgoTB()).Msg).To(ContainSubstring("has no gateway"))
		})

		It("uses the gateway of a route for addresses of the runtime, which have none", func() {
			pod := newPod()
			c := b.call("one", pod, withIPAM("1.1.0", `"runtimeConfig":{"ips":["10.1.2.77/24"]},`,
				`"type":"static","routes":[{"dst":"0.0.0.0/0","gw":"10.1.2.1"}]`))
			reply := run(c, "ADD").OK(GinkgoTB())
			Expect(in(pod, "ip -4 route")).To(Equal("default via 10.1.2.1 dev eth0 \n" +
				"10.1.2.0/24 via 10.1.2.1 dev eth0 src 10.1.2.77 \n10.1.2.1 dev eth0 scope link src 10.1.2.77 \n"))
			c.Config = nstest.WithPrevResult(c.Config, reply.Stdout)
			run(c, "CHECK").OK(GinkgoTB())
		})

		It("passes traffic to each of several addresses, also with /32 and /128", func() {
			pod, peer := newPod(), newPod()
			mustAdd(b.call("one", pod, static(`{"address":"10.1.2.5/32","gateway":"169.254.1.1"},{"address":"10.1.3.5/24","gateway":"10.1.3.1"},`+
				`{"address":"fd00:1::5/128","gateway":"fe80::1"}`, defaults)))
			mustAdd(b.call("two", peer, static(`{"address":"10.1.2.6/32","gateway":"169.254.1.1"},{"address":"fd00:1::6/128","gateway":"fe80::1"}`, defaults)))
			for _, addr := range []string{"10.1.2.5:80", "10.1.3.5:80", "[fd00:1::5]:80"} {
				nstest.ServeTCP(GinkgoTB(), pod, addr)
				nstest.MustDial(GinkgoTB(), peer, addr, "")
			}
		})

		DescribeTable("prints a result of the configured cniVersion", func(version string) {
			reply := run(b.call("one", newPod(), b.conf(version, "", v4range, v6range)), "ADD").OK(GinkgoTB())
			Expect(reply.Stdout).To(ContainSubstring(fmt.Sprintf(`"cniVersion": %q`, version)))
			result, err := types.ParseResult(types.Newest, []byte(reply.Stdout))
			Expect(err).NotTo(HaveOccurred())
			Expect(result.IPs).To(HaveLen(2))
			Expect(strings.Contains(reply.Stdout, `"mtu"`)).To(Equal(version == "1.1.0"))
			if version < "0.3.0" {
				Expect(result.Interfaces).To(BeEmpty())
			}
			c := b.call("one", nil, b.conf(version, "", v4range, v6range))
			run(c, "DEL").OK(GinkgoTB())
		},
			Entry(nil, "0.1.0"), Entry(nil, "0.2.0"), Entry(nil, "0.3.0"), Entry(nil, "0.3.1"),
			Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"))
	})

	DescribeTable("masquerades with each backend", func(backend string) {
		conf := b.conf("1.1.0", `"ipMasq":true,"ipMasqBackend":"`+backend+`",`, v4range, v6range)
		pod, other := newPod(), newPod()
		reply := run(b.call("one", pod, conf), "ADD").OK(GinkgoTB())
		mustAdd(b.call("two", other, conf))
		for _, addr := range []string{nstest.OutsideV4 + ":80", "[" + nstest.OutsideV6 + "]:80"} {
			nstest.ServeTCP(GinkgoTB(), b.outside, addr)
		}
		for _, addr := range []string{"10.1.2.3:80", "[fd00:1::3]:80"} {
			nstest.ServeTCP(GinkgoTB(), other, addr)
		}
		nstest.MustDial(GinkgoTB(), pod, nstest.OutsideV4+":80", nstest.NodeV4)
		nstest.MustDial(GinkgoTB(), pod, "["+nstest.OutsideV6+"]:80", nstest.NodeV6)
		nstest.MustDial(GinkgoTB(), pod, "10.1.2.3:80", "10.1.2.2")
		nstest.MustDial(GinkgoTB(), pod, "[fd00:1::3]:80", "fd00:1::2")
		run(b.call("one", pod, nstest.WithPrevResult(conf, reply.Stdout)), "CHECK").OK(GinkgoTB())
		Expect(nstest.Snapshot(GinkgoTB(), b.node)).To(And(MatchRegexp(`10\.1\.2\.2\b`), MatchRegexp(`fd00:1::2\b`)))

		By("leaving no rule when DEL comes after the container was removed and the configuration changed")
		pod.Remove(GinkgoTB())
		c := b.call("one", nil, strings.Replace(conf, `"ipMasq":true,"ipMasqBackend":"`+backend+`",`, "", 1))
		c.NetNS = pod.Path()
		run(c, "DEL").OK(GinkgoTB())
		Expect(nstest.Snapshot(GinkgoTB(), b.node)).NotTo(Or(MatchRegexp(`10\.1\.2\.2\b`), MatchRegexp(`fd00:1::2\b`)))
		nstest.MustDial(GinkgoTB(), other, nstest.OutsideV4+":80", nstest.NodeV4)
	}, Entry(nil, "nftables"), Entry(nil, "iptables"))

	Describe("a failed ADD", func() {
		It("leaves no pair and no address when forwarding cannot be enabled", func() {
			pod := newPod()
			before := b.snapshot(pod)()
			c := b.call("one", pod, b.conf("1.1.0", "", v4range))
			c.Before = func(step string) error {
				if strings.Contains(step, "net/ipv4/ip_forward") {
					return errors.New("forwarding refused")
				}
				return nil
			}
			Expect(run(c, "ADD").Failure(GinkgoTB()).Msg).To(ContainSubstring("forwarding refused"))
			Expect(nstest.WaitEqual(before, b.snapshot(pod))).To(BeEmpty())
		})

		It("calls DEL of the IPAM plugin when its lease has no address", func() {
			pod := newPod()
			before := b.snapshot(pod)()
			c := b.call("one", pod, withIPAM("1.1.0", "", `"type":"stub"`))
			c.Path = newIPAMStub(`echo '{"cniVersion":"1.1.0","ips":[]}'`, "")
			f := run(c, "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
			Expect(f.Msg).To(ContainSubstring("missing IP config"))
			Expect(calls(c.Path)).To(Equal("ADD DEL"))
			Expect(nstest.WaitEqual(before, b.snapshot(pod))).To(BeEmpty())
		})

		It("leaves no pair when the IPAM plugin fails, and does not call its DEL", func() {
			pod := newPod()
			before := b.snapshot(pod)()
			c := b.call("one", pod, withIPAM("1.1.0", "", `"type":"stub"`))
			c.Path = newIPAMStub(`echo '{"cniVersion":"1.1.0","code":11,"msg":"none left"}'; exit 1`, "")
			f := run(c, "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeTryAgain))
			Expect(f.Msg).To(ContainSubstring(`IPAM plugin "stub": none left`))
			Expect(calls(c.Path)).To(Equal("ADD"))
			Expect(nstest.WaitEqual(before, b.snapshot(pod))).To(BeEmpty())
		})

		It("keeps the address of the container when ADD is repeated", func() {
			conf := b.conf("1.1.0", "", v4range)
			pod := newPod()
			mustAdd(b.call("one", pod, conf))
			before := b.snapshot(pod)()
			f := run(b.call("one", pod, conf), "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
			Expect(f.Msg).To(ContainSubstring(`"eth0" already exists`))
			Expect(nstest.Compare(before, b.snapshot(pod)())).To(BeEmpty())
		})
	})

	DescribeTable("ADD names its interface in the error if the interface is removed during ADD", func(at string) {
		pod := newPod()
		b.node.SetForwarding(GinkgoTB(), "1") // DEL does not reset it
		before := nstest.WaitStable(b.snapshot(pod))
		c := b.call("one", pod, b.conf("1.1.0", "", v4range, v6range))
		nstest.RequireRemovedInterfaceInError(GinkgoTB(), plugin(), c, at)
		Expect(nstest.WaitEqual(before, b.snapshot(pod))).To(BeEmpty())
	},
		Entry("before it is set up", "set link eth0 up"),
		Entry("before its addresses are added", "add address 10.1.2.2/24"),
		Entry("before the gateway addresses are added", "add address 10.1.2.1/32"),
		Entry("at the last step", "add neighbor"),
	)

	DescribeTable("ADD with bad input returns an error that says what to do, and leaves nothing", func(change func(c *nstest.Call), code int, want ...string) {
		pod := newPod()
		c := b.call("one", pod, b.conf("1.1.0", "", v4range))
		change(&c)
		before := b.snapshot(pod)()
		f := run(c, "ADD").Failure(GinkgoTB())
		Expect(f.Code).To(BeEquivalentTo(code))
		for _, w := range want {
			Expect(f.Msg + f.Details).To(ContainSubstring(w))
		}
		Expect(f.CNIVersion).NotTo(BeEmpty())
		Expect(nstest.WaitEqual(before, b.snapshot(pod))).To(BeEmpty())
	},
		Entry("a configuration that is not JSON", func(c *nstest.Call) { c.Config = "{" }, types.CodeDecode, "decode configuration"),
		Entry("an unknown cniVersion", func(c *nstest.Call) { c.Config = b.conf("1.7.0", "", v4range) }, types.CodeVersion, "incompatible CNI versions"),
		Entry("a missing netns", func(c *nstest.Call) { c.Pod, c.NetNS = nil, "/run/netns/no-such-pod" }, types.CodeNamespace, "no such file"),
		Entry("a plain file as netns", func(c *nstest.Call) { c.Pod, c.NetNS = nil, "/proc/self/status" }, types.CodeNamespace, "namespace"),
		Entry("the node's own netns", func(c *nstest.Call) { c.Pod = b.node }, types.CodeNamespace, "CNI_NETNS_OVERRIDE"),
		Entry("no IPAM", func(c *nstest.Call) { c.Config = `{"cniVersion":"1.1.0","name":"net1","type":"ptp"}` }, types.CodeConfig, `ptp needs addresses: set "ipam"`),
		Entry("an IPAM without a type", func(c *nstest.Call) { c.Config = withIPAM("1.1.0", "", `"subnet":"10.1.2.0/24"`) }, types.CodeConfig, `ptp needs addresses: set "ipam"`),
		Entry("dhcp", func(c *nstest.Call) { c.Config = withIPAM("1.1.0", `"mtu":67,`, `"type":"dhcp"`) }, types.CodeConfig, "reaches the node only, and no DHCP server: use another IPAM plugin than dhcp", "mtu 67"),
		Entry("an IPAM plugin that does not exist", func(c *nstest.Call) { c.Path = "/nonexistent" }, types.CodeConfig, `failed to find plugin "host-local" in path`),
		Entry("an MTU too small", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"mtu":67,`, v4range) }, types.CodeConfig, "mtu 67 is not between 68 and 65535"),
		Entry("a negative MTU", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"mtu":-1500,`, v4range) }, types.CodeConfig, "mtu -1500 is not between"),
		Entry("an MTU too small for IPv6", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"mtu":1279,`, v6range) }, types.CodeConfig, "mtu 1279 of eth0 is too small for address fd00:1::2/64"),
		Entry("an MTU that is a string", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"mtu":"1500",`, v4range) }, types.CodeDecode, `key "mtu": want a number`),
		Entry("an unknown backend", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"ipMasqBackend":"ebtables",`, v4range) }, types.CodeConfig, "ipMasqBackend", "ebtables"),
		Entry("two problems", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"mtu":1,"ipMasqBackend":"ebtables",`, v4range) }, types.CodeConfig, "mtu 1", "ebtables"),
		Entry("no gateway", func(c *nstest.Call) { c.Config = static(`{"address":"10.1.2.2/24"}`, "") }, types.CodeConfig, "address 10.1.2.2/24 has no gateway", "169.254.1.1"),
		Entry("a gateway for one family only", func(c *nstest.Call) {
			c.Config = static(`{"address":"10.1.2.2/24","gateway":"10.1.2.1"},{"address":"fd00:1::2/64"}`, "")
		}, types.CodeConfig, "address fd00:1::2/64 has no gateway"),
		Entry("a gateway that is the address", func(c *nstest.Call) { c.Config = static(`{"address":"10.1.2.2/24","gateway":"10.1.2.2"}`, "") }, types.CodeConfig, "is its own gateway"),
		Entry("a gateway of the other family", func(c *nstest.Call) {
			c.Config = withIPAM("1.1.0", "", `"type":"stub"`)
			c.Path = newIPAMStub(`echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.2/24","gateway":"fe80::1"}]}'`, "")
		}, types.CodeConfig, "address 10.1.2.2/24 has the gateway fe80::1 of the other family"),
		Entry("an IPAM plugin whose answer is not JSON", func(c *nstest.Call) {
			c.Config = withIPAM("1.1.0", "", `"type":"stub"`)
			c.Path = newIPAMStub(`echo hello`, "")
		}, types.CodeDecode, `IPAM plugin "stub"`),
		Entry("an unknown key with strict", func(c *nstest.Call) { c.Config = b.conf("1.1.0", `"strict":true,"ipmask":true,`, v4range) }, types.CodeUnsupported, `"ipmask"`, `did you mean "ipMasq"?`),
	)

	It("ignores CNI_ARGS, a MAC and prevResult", func() {
		conf := strings.TrimSuffix(b.conf("1.1.0", `"runtimeConfig":{"mac":"02:00:00:00:00:07"},`, v4range), "}") + `,"prevResult":5}`
		c := b.call("one", newPod(), conf)
		c.Args = "IgnoreUnknown=1;MAC=02:00:00:00:00:08"
		Expect(mustAdd(c).Interfaces[podIndex].MAC).NotTo(HavePrefix("02:00:00:00:00"))
	})

	Describe("DEL", func() {
		It("leaves node, pod and reservations as before, also when it is repeated", func() {
			conf := b.conf("1.1.0", `"ipMasq":true,`, v4range, v6range)
			mustAdd(b.call("warm", newPod(), conf))
			pod := newPod()
			nstest.RequireDelRestores(GinkgoTB(), plugin(), b.call("one", pod, conf), b.snapshot(pod))
		})

		It("releases the address only after the link was deleted", func() {
			c := b.call("one", newPod(), withIPAM("1.1.0", "", `"type":"stub"`))
			links := filepath.Join(GinkgoTB().TempDir(), "links")
			c.Path = newIPAMStub(
				`echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.2/24","gateway":"10.1.2.1"}]}'`,
				fmt.Sprintf("nsenter --net=%s ip -o link show type veth >%s", b.node.Path(), links))
			host := mustAdd(c).Interfaces[0].Name

			By("not releasing it when the link cannot be deleted")
			c.Before = func(step string) error {
				if strings.HasPrefix(step, "delete link") {
					return errors.New("busy")
				}
				return nil
			}
			Expect(run(c, "DEL").Failure(GinkgoTB()).Msg).To(ContainSubstring("busy"))
			Expect(calls(c.Path)).To(Equal("ADD"))

			By("releasing it when the link was deleted")
			c.Before = nil
			run(c, "DEL").OK(GinkgoTB())
			Expect(calls(c.Path)).To(Equal("ADD DEL"))
			seen, err := os.ReadFile(links)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(seen)).To(And(ContainSubstring(nstest.Uplink), Not(ContainSubstring(host))))
		})

		DescribeTable("removes the rules that a concurrent ADD adds before the link is deleted", func(backend string) {
			conf := b.conf("1.1.0", `"ipMasq":true,"ipMasqBackend":"`+backend+`",`, v4range)
			mustAdd(b.call("warm", newPod(), conf))
			c := b.call("one", newPod(), conf)
			nstest.RequireDelAfterLateAdd(GinkgoTB(), plugin(), c, func(node *ns.Handle) error {
				m := masq.Masq{Node: node, Owner: types.Attachment{Network: "net1", ContainerID: "one", IfName: "eth0"}, Backend: masq.Backend(backend)}
				return masq.Add(&undo.Stack{}, m, []netip.Prefix{netip.MustParsePrefix("10.1.2.3/24")})
			})
		}, Entry(nil, "nftables"), Entry(nil, "iptables"))

		It("leaves the interface of another attachment whose namespace has the same path", func() {
			conf := b.conf("1.1.0", "", v4range)
			old, other := newPod(), newPod()
			mustAdd(b.call("old", old, conf))
			mustAdd(b.call("new", other, conf))
			run(b.call("old", other, conf), "DEL").OK(GinkgoTB())
			Expect(in(other, "ip -br addr show eth0")).To(ContainSubstring("10.1.2.3/24"))
			Expect(in(old, "ip -br link")).NotTo(ContainSubstring("eth0"))
		})
	})

	Describe("with an attachment that the reference plugin made", func() {
		var c nstest.Call
		BeforeEach(func() {
			pod := newPod()
			// A random name, no alias, and the state of both ends as the reference plugin leaves it.
			in(b.node, "ip link add vethbadcafe0 txqueuelen 0 type veth peer name eth0 netns "+pod.Path())
			pod.Batch(GinkgoTB(), "addr add 10.1.2.2/24 dev eth0 noprefixroute", "link set eth0 up",
				"route add 10.1.2.1 dev eth0 scope link src 10.1.2.2", "route add 10.1.2.0/24 via 10.1.2.1 dev eth0 src 10.1.2.2",
				"route add default via 10.1.2.1 dev eth0")
			b.node.Batch(GinkgoTB(), "addr add 10.1.2.1/32 dev vethbadcafe0", "link set vethbadcafe0 up", "route add 10.1.2.2 dev vethbadcafe0 scope host")
			b.node.SetSysctl(GinkgoTB(), "net/ipv4/ip_forward", "1")
			Expect(os.MkdirAll(filepath.Join(b.leases, "net1"), 0o755)).To(Succeed())
			Expect(os.WriteFile(filepath.Join(b.leases, "net1", "10.1.2.2"), []byte("one\r\neth0"), 0o600)).To(Succeed())
			prev := fmt.Sprintf(`{"cniVersion":"1.0.0","interfaces":[{"name":"vethbadcafe0","mac":"02:00:00:00:00:01"},{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":%q}],`+
				`"ips":[{"interface":1,"address":"10.1.2.2/24","gateway":"10.1.2.1"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{}}`, pod.Path())
			c = b.call("one", pod, nstest.WithPrevResult(b.conf("1.0.0", `"ipMasq":true,`, v4range), prev))
		})

		It("CHECK succeeds, and DEL without the container deletes it", func() {
			run(c, "CHECK").OK(GinkgoTB())
			c.Pod = nil
			run(c, "DEL").OK(GinkgoTB())
			Expect(in(b.node, "ip -br link")).NotTo(ContainSubstring("vethbadcafe0"))
			Expect(filepath.Join(b.leases, "net1", "10.1.2.2")).NotTo(BeAnExistingFile())
		})

		It("CHECK does not compare mtu and advmss of a route, which that plugin does not program", func() {
			plain := `"routes":[{"dst":"0.0.0.0/0"}],"dns"`
			Expect(c.Config).To(ContainSubstring(plain))
			c.Config = strings.Replace(c.Config, plain, `"routes":[{"dst":"0.0.0.0/0","mtu":1300,"advmss":1200}],"dns"`, 1)
			run(c, "CHECK").OK(GinkgoTB())
		})

		It("DEL without prevResult deletes it", func() {
			c.Config = b.conf("1.0.0", "", v4range)
			run(c, "DEL").OK(GinkgoTB())
			Expect(in(b.node, "ip -br link")).NotTo(ContainSubstring("vethbadcafe0"))
			Expect(filepath.Join(b.leases, "net1", "10.1.2.2")).NotTo(BeAnExistingFile())
		})
	})

	Describe("CHECK", func() {
		var c nstest.Call
		var host string
		BeforeEach(func() {
			conf := b.conf("1.1.0", `"ipMasq":true,`, v4range, v6range)
			c = b.call("one", newPod(), conf)
			reply := run(c, "ADD").OK(GinkgoTB())
			host = reply.Result(GinkgoTB()).Interfaces[0].Name
			c.Config = nstest.WithPrevResult(conf, reply.Stdout)
			run(c, "CHECK").OK(GinkgoTB())
		})

		DescribeTable("names the difference", func(where func() *nstest.NS, line, want string) {
			in(where(), strings.ReplaceAll(line, "HOST", host))
			f := run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeChanged))
			Expect(f.Msg).To(ContainSubstring(strings.ReplaceAll(want, "HOST", host)))
		},
			Entry("address", func() *nstest.NS { return c.Pod }, "ip addr del 10.1.2.2/24 dev eth0", "interface eth0 has no address 10.1.2.2/24"),
			Entry("IPv6 address", func() *nstest.NS { return c.Pod }, "ip addr del fd00:1::2/64 dev eth0", "interface eth0 has no address fd00:1::2/64"),
			Entry("default route", func() *nstest.NS { return c.Pod }, "ip route del default", "interface eth0 has no route 0.0.0.0/0 via 10.1.2.1"),
			Entry("route to the gateway", func() *nstest.NS { return c.Pod }, "ip -6 route del fd00:1::1", "interface eth0 has no route fd00:1::1/128"),
			Entry("route to the network", func() *nstest.NS { return c.Pod }, "ip route del 10.1.2.0/24", "interface eth0 has no route 10.1.2.0/24 via 10.1.2.1"),
			Entry("gateway of a route", func() *nstest.NS { return c.Pod }, "ip route replace default via 10.1.2.77 dev eth0 onlink", "has no route 0.0.0.0/0 via 10.1.2.1"),
			Entry("container's link", func() *nstest.NS { return c.Pod }, "ip link set eth0 down", "interface eth0 is down"),
			Entry("the pair", func() *nstest.NS { return c.Pod }, "ip link del eth0", "find link eth0"),
			Entry("the pair, seen from the node", func() *nstest.NS { return b.node }, "ip link del HOST", "no interface of the node is the other end of eth0 (net1/one/eth0)"),
			Entry("host end", func() *nstest.NS { return b.node }, "ip link set HOST down", "interface HOST is down"),
			Entry("host end with another name", func() *nstest.NS { return b.node }, "ip link set HOST down name veth9", "no interface of the node is the other end of eth0 (net1/one/eth0)"),
			Entry("gateway", func() *nstest.NS { return b.node }, "ip addr del 10.1.2.1/32 dev HOST", "interface HOST has no address 10.1.2.1/32"),
			Entry("route to the container", func() *nstest.NS { return b.node }, "ip -6 route del fd00:1::2 dev HOST", "interface HOST has no route fd00:1::2/128"),
			Entry("forwarding", func() *nstest.NS { return b.node }, "sysctl -q -w net.ipv4.ip_forward=0", "sysctl net/ipv4/ip_forward is"),
			Entry("IPv6 forwarding", func() *nstest.NS { return b.node }, "sysctl -q -w net.ipv6.conf.all.forwarding=0", "sysctl net/ipv6/conf/all/forwarding is"),
			Entry("accept_ra", func() *nstest.NS { return b.node }, "sysctl -q -w net.ipv6.conf.HOST.accept_ra=1", "accept_ra is"),
			Entry("masquerade", func() *nstest.NS { return b.node }, "nft delete table inet plumb", "masquerade"),
		)

		It("reports an interface of another kind", func() {
			in(c.Pod, "ip link del eth0")
			in(c.Pod, "ip link add eth0 up type bridge")
			Expect(run(c, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring(`of kind "bridge", not "veth"`))
		})

		It("reports another mtu of a route", func() {
			c := b.call("mtu", newPod(), static(`{"address":"10.1.2.9/24","gateway":"10.1.2.1"}`, `,"routes":[{"dst":"0.0.0.0/0","mtu":1300}]`))
			reply := run(c, "ADD").OK(GinkgoTB())
			c.Config = nstest.WithPrevResult(c.Config, reply.Stdout)
			run(c, "CHECK").OK(GinkgoTB())
			in(c.Pod, "ip route change default via 10.1.2.1 dev eth0 mtu 1200")
			Expect(run(c, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring("has no route 0.0.0.0/0 via 10.1.2.1 mtu 1300"))
		})

		It("fails with the result of another container", func() {
			c.Pod = newPod()
			Expect(run(c, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring("sandbox"))
		})

		It("fails without prevResult", func() {
			c.Config = b.conf("1.1.0", "", v4range)
			f := run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
			Expect(f.Msg).To(ContainSubstring("prevResult"))
		})

		It("succeeds after a later plugin changed MAC, MTU, queue and sysctls of both ends", func() {
			in(c.Pod, "ip link set eth0 address 02:00:00:00:00:99 mtu 1300 txqueuelen 5 promisc on")
			in(c.Pod, "sysctl -q -w net.ipv4.conf.eth0.arp_notify=0 net.ipv6.conf.eth0.accept_dad=1")
			in(b.node, "ip link set "+host+" address 02:00:00:00:00:98 mtu 1300")
			in(b.node, "tc qdisc add dev "+host+" root tbf rate 1mbit burst 100kb latency 25ms")
			run(c, "CHECK").OK(GinkgoTB())
		})

		It("calls the IPAM plugin", func() {
			Expect(os.RemoveAll(filepath.Join(b.leases, "net1", "10.1.2.2"))).To(Succeed())
			Expect(run(c, "CHECK").Failure(GinkgoTB()).Msg).To(And(ContainSubstring("host-local"), ContainSubstring("10.1.2.2")))
		})
	})

	It("GC deletes what belongs to no valid attachment of this network, and nothing else", func() {
		conf := b.conf("1.1.0", `"ipMasq":true,`, v4range)
		other := strings.NewReplacer(`"net1"`, `"net2"`, "10.1.2", "10.1.9").Replace(conf)
		keep, drop, foreign := newPod(), newPod(), newPod()
		mustAdd(b.call("keep", keep, conf))
		mustAdd(b.call("drop", drop, conf))
		mustAdd(b.call("drop", foreign, other))
		gc := strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[{"containerID":"keep","ifname":"eth0"}]}`
		run(nstest.Call{Node: b.node, Path: b.path, Config: gc}, "GC").OK(GinkgoTB())
		Expect(in(keep, "ip -br addr show eth0")).To(ContainSubstring("10.1.2.2"))
		Expect(in(drop, "ip -br link")).NotTo(ContainSubstring("eth0"))
		Expect(in(foreign, "ip -br addr show eth0")).To(ContainSubstring("10.1.9.2"))
		state := b.snapshot()()
		Expect(state).NotTo(Or(ContainSubstring("net1/drop"), ContainSubstring("10.1.2.3")))
		Expect(state).To(And(ContainSubstring("net1/keep"), ContainSubstring("net2/drop")))
		By("deleting everything of the network with an empty list")
		run(nstest.Call{Node: b.node, Path: b.path, Config: strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[]}`}, "GC").OK(GinkgoTB())
		Expect(in(keep, "ip -br link")).NotTo(ContainSubstring("eth0"))
		Expect(in(foreign, "ip -br addr show eth0")).To(ContainSubstring("10.1.9.2"))
	})

	It("STATUS fails if an ADD would fail", func() {
		c := nstest.Call{Node: b.node, Path: b.path, Config: b.conf("1.1.0", `"ipMasq":true,`, v4range)}
		run(c, "STATUS").OK(GinkgoTB())
		for want, conf := range map[string]string{
			"ptp needs addresses": `{"cniVersion":"1.1.0","name":"net1","type":"ptp"}`,
			"mtu 5":               b.conf("1.1.0", `"mtu":5,`, v4range),
			"no DHCP server":      withIPAM("1.1.0", "", `"type":"dhcp"`),
			"no-such-ipam":        withIPAM("1.1.0", "", `"type":"no-such-ipam"`),
		} {
			c.Config = conf
			f := run(c, "STATUS").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeNotAvailable), want)
			Expect(f.Msg).To(ContainSubstring(want))
		}
		By("a pool that is exhausted")
		c.Config = b.conf("1.1.0", "", `[{"subnet":"10.9.0.0/30"}]`)
		mustAdd(b.call("one", newPod(), c.Config))
		run(c, "STATUS").OK(GinkgoTB())
		full := strings.Replace(c.Config, `"ipam":{`, `"ipam":{"failStatusWhenFull":true,`, 1)
		Expect(full).NotTo(Equal(c.Config))
		c.Config = full
		f := run(c, "STATUS").Failure(GinkgoTB())
		Expect(f.Code).To(BeEquivalentTo(types.CodeNotAvailable))
		Expect(f.Msg).To(ContainSubstring("no IP addresses available"))
	})

	It("adds and deletes many pods at once, several times, without a duplicate address or leftovers", func() {
		conf := b.conf("1.1.0", `"ipMasq":true,`, v4range, v6range)
		mustAdd(b.call("warm", newPod(), conf))
		pods := make([]*nstest.NS, nstest.FullOrShort(32, 8))
		calls := make([]nstest.Call, len(pods))
		for i := range pods {
			pods[i] = newPod()
			calls[i] = b.call(fmt.Sprint("pod", i), pods[i], conf)
		}
		state := b.snapshot(pods...)
		before := nstest.WaitStable(state)
		for range nstest.FullOrShort(6, 2) {
			seen := map[string]bool{}
			for _, reply := range nstest.RunAll(plugin(), "ADD", calls) {
				for _, ip := range reply.Result(GinkgoTB()).IPs {
					Expect(seen).NotTo(HaveKey(ip.Address.String()))
					seen[ip.Address.String()] = true
				}
			}
			for _, reply := range nstest.RunAll(plugin(), "DEL", calls) {
				reply.OK(GinkgoTB())
			}
		}
		Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
	})
})

var _ = Describe("fault sweep", func() {
	DescribeTable("leaves nothing if any single step fails", func(keys string, ranges ...string) {
		path, leases := nstest.Build(GinkgoTB(), "host-local"), GinkgoTB().TempDir()
		b := &testbed{leases: leases}
		nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
			Plugin: plugin(), Config: b.conf("1.1.0", keys, ranges...), Path: path, Dirs: []string{leases},
			Ignore: nstest.KeptByHostLocal,
		})
	},
		Entry("dual stack, masquerade", `"mtu":1400,"ipMasq":true,`, v4range, v6range),
		Entry("masquerade by iptables", `"ipMasq":true,"ipMasqBackend":"iptables",`, v4range),
	)
})
