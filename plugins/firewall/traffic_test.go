package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	xt "github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// serve starts a server on port 80 of both families in each container and on the outside host.
func (b *testbed) serve() {
	GinkgoHelper()
	for i, p := range places() {
		nstest.ServeTCP(GinkgoTB(), b.containers[i], p.v4+":80")
		nstest.ServeTCP(GinkgoTB(), b.containers[i], "["+p.v6+"]:80")
	}
	nstest.ServeTCP(GinkgoTB(), b.Outside, nstest.OutsideV4+":80")
	nstest.ServeTCP(GinkgoTB(), b.Outside, "["+nstest.OutsideV6+"]:80")
}

// A probe is a connection to port 80 of an IPv4 address and of an IPv6 address. answers says whether both must
// succeed or fail.
type probe struct {
	from    *nstest.NS
	v4, v6  string
	answers bool
}

// toContainer returns the probe of the container with this index.
func toContainer(from *nstest.NS, to int, answers bool) probe {
	return probe{from, places()[to].v4, places()[to].v6, answers}
}

// answered opens one connection. If the connection must fail, answered waits for only one second, or with -short
// for a quarter of a second. That is enough to detect a packet that should have been dropped, and cannot fail
// the test on a slow machine.
func (p probe) answered(addr string) (err error) {
	if p.answers {
		_, err = nstest.Dial(p.from, addr)
		return err
	}
	return p.from.Do(func() error {
		c, err := net.DialTimeout("tcp", addr, time.Second/time.Duration(nstest.FullOrShort(1, 4)))
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}

// expect runs all probes concurrently.
func expect(probes ...probe) {
	GinkgoHelper()
	var wrong sync.Map
	var asked sync.WaitGroup
	for i, p := range probes {
		for _, addr := range []string{p.v4 + ":80", "[" + p.v6 + "]:80"} {
			asked.Go(func() {
				if err := p.answered(addr); (err == nil) != p.answers {
					wrong.Store(fmt.Sprintf("probe %d to %s answers: %t", i, addr, err == nil), err)
				}
			})
		}
	}
	asked.Wait()
	wrong.Range(func(what, err any) bool {
		AddReportEntry(fmt.Sprint(what), err)
		return true
	})
	wrong.Range(func(what, _ any) bool { Fail(what.(string)); return true })
}

func (b *testbed) setForwardPolicy(policy string) {
	GinkgoHelper()
	for _, program := range []string{"iptables", "ip6tables"} {
		b.Host.Must(GinkgoTB(), program, "-P", "FORWARD", policy)
	}
}

// publish maps port 80 of the host to the container with this index, as portmap does. It masquerades connections
// from the container's own bridge, because the answers must return through the host.
func (b *testbed) publish(container int) {
	GinkgoHelper()
	p := places()[container]
	for _, f := range []struct{ program, to, source string }{
		{"iptables", p.v4 + ":80", p.v4 + "/24"},
		{"ip6tables", "[" + p.v6 + "]:80", p.v6 + "/64"},
	} {
		b.Host.Must(GinkgoTB(), f.program, "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "-m", "addrtype", "--dst-type", "LOCAL", "--dport", "80", "-j", "DNAT", "--to-destination", f.to)
		b.Host.Must(GinkgoTB(), f.program, "-t", "nat", "-A", "POSTROUTING", "-p", "tcp", "-s", f.source, "-o", p.bridge, "-m", "conntrack", "--ctstate", "DNAT", "-j", "MASQUERADE")
	}
}

// addReferencePolicy adds the rules that the reference plugin adds for a bridge with the policy same-bridge.
func (b *testbed) addReferencePolicy(bridge, variant string) {
	GinkgoHelper()
	for _, program := range []string{"iptables", "ip6tables"} {
		_, err := b.Host.ExecInput(strings.ReplaceAll(referencePolicy, "cni1", xt.Quote(bridge)), program+variant+"-restore", "--noflush")
		Expect(err).NotTo(HaveOccurred())
	}
}

const referencePolicy = `*filter
-N CNI-FORWARD
-N CNI-ISOLATION-STAGE-1
-N CNI-ISOLATION-STAGE-2
-A FORWARD -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-A CNI-ISOLATION-STAGE-1 -i cni1 ! -o cni1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge)" -j CNI-ISOLATION-STAGE-2
-A CNI-ISOLATION-STAGE-1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
-A CNI-ISOLATION-STAGE-2 -o cni1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j DROP
-A CNI-ISOLATION-STAGE-2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
COMMIT
`

var _ = Describe("traffic", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		b.serve()
	})

	// The policy DROP is an error with the backend nftables, and firewalld drops packets itself. With -short, the
	// table omits DROP and each backend that does the same as another.
	backends := []string{iptables, nftables, "", firewalld}[:nstest.FullOrShort(4, 2)]
	forwards := []string{"ACCEPT", "DROP"}[:nstest.FullOrShort(2, 1)]
	var entries []TableEntry
	for _, backend := range backends {
		for _, policy := range []string{open, sameBridge, isolated} {
			for _, forward := range forwards {
				label := Label()
				switch {
				case forward == "DROP" && (backend == nftables || backend == firewalld):
					continue
				case forward == "ACCEPT" && (backend == nftables || backend == iptables):
					label = Label(nstest.Kernel)
				}
				entries = append(entries, Entry(nil, label, backend, policy, forward))
			}
		}
	}
	DescribeTable("passes as the policy says, with and without br_netfilter", func(backend, policy, forward string) {
		outside := forward == "ACCEPT"
		if backend == firewalld {
			d := nstest.StartFirewalld(GinkgoTB(), b.Host)
			GinkgoT().Setenv("DBUS_SYSTEM_BUS_ADDRESS", d.Address)
			outside = false // firewalld rejects packets that neither the source's nor the destination's zone accepts
		}
		b.setForwardPolicy(forward)
		b.publish(0)
		for container := range places() {
			keys := key("backend", backend) + key("ingressPolicy", policy)
			if container == 3 {
				keys = key("backend", backend)
			} else {
				keys += `"publishedPorts":true,`
			}
			b.OK("ADD", b.call(keys, container))
			b.OK("CHECK", b.call(keys, container))
		}
		probes := []probe{
			toContainer(b.containers[0], 1, policy != isolated), // on the same bridge
			toContainer(b.containers[0], 2, policy == open),     // on another bridge with a policy
			toContainer(b.containers[0], 3, true),               // on a bridge without a policy
			toContainer(b.containers[3], 0, true),               // from a bridge without a policy
			toContainer(b.Outside, 0, outside),
			{b.containers[0], nstest.OutsideV4, nstest.OutsideV6, true},
			toContainer(b.Host, 0, true),
			{b.containers[2], places()[2].gateway4, places()[2].gateway6, true}, // the published port, from another bridge with a policy
		}
		fromSameBridge := probe{b.containers[1], places()[1].gateway4, places()[1].gateway6, true}
		expect(append(probes, fromSameBridge)...)
		By("with br_netfilter")
		nstest.RequireFeature(GinkgoTB(), "br_netfilter", b.Host.SetBridgeNetfilter(GinkgoTB(), "1"))
		if policy != isolated { // with isolated, Linux 6.1 forwards the packets, and Linux 6.18 drops them
			probes = append(probes, fromSameBridge)
		}
		expect(probes...)
	}, entries)

	DescribeTable("to a published port passes between bridges only with publishedPorts", func(backend, policy string) {
		b.publish(0)
		common := key("backend", backend) + key("ingressPolicy", policy)
		published := func(answers bool) probe {
			return probe{b.containers[2], places()[2].gateway4, places()[2].gateway6, answers}
		}
		b.OK("ADD", b.call(common+`"publishedPorts":true,`, 0))
		b.OK("ADD", b.call(common, 2)) // a later ADD inserts no rule before the rules for published ports
		b.OK("CHECK", b.call(common+`"publishedPorts":true,`, 0))
		expect(published(true), toContainer(b.containers[2], 0, false), toContainer(b.containers[0], 2, false))
		By("without the key it does not pass")
		b.Fails("CHECK", b.call(common, 0), types.CodeChanged)
		b.OK("ADD", b.call(common, 0))
		expect(published(false))
	},
		Entry(nil, iptables, sameBridge), Entry(nil, nftables, isolated),
	)

	It("is dropped between a bridge in nftables and a bridge that the reference plugin added later, after REPAIR", func() {
		c := b.call(key("backend", nftables)+key("ingressPolicy", sameBridge), 0)
		b.OK("ADD", c)
		b.addReferencePolicy("cni1", "")
		b.Fails("CHECK", c, types.CodeChanged, "set isolated_bridges of table inet plumb lacks cni1")
		b.OK("REPAIR", c)
		b.OK("CHECK", c)
		expect(toContainer(b.containers[0], 2, false), toContainer(b.containers[2], 0, false), toContainer(b.containers[0], 3, true), toContainer(b.containers[3], 2, true))
	})

	DescribeTable("is dropped between a bridge in nftables and a bridge that the reference plugin added before", func(name, variant string) {
		b.Host.Batch(GinkgoTB(), "link set cni1 down")
		b.Host.Must(GinkgoTB(), "ip", "link", "set", "cni1", "name", name, "up")
		b.Host.Must(GinkgoTB(), "ip", "address", "add", places()[2].gateway6+"/64", "dev", name, "nodad")
		b.addReferencePolicy(name, variant)
		b.Host.MustLine(GinkgoTB(), "iptables"+variant+" -I "+stage1+" -m conntrack --ctstate INVALID -j RETURN") // of another program
		policies := func() string { return b.Host.MustLine(GinkgoTB(), "iptables"+variant+" -S "+stage1) }
		before := policies()
		c := b.call(key("ingressPolicy", isolated), 0)
		b.OK("ADD", c)
		b.OK("CHECK", c)
		expect(toContainer(b.containers[0], 2, false), toContainer(b.containers[2], 0, false), toContainer(b.containers[0], 3, true), toContainer(b.containers[3], 2, true))
		Expect(policies()).To(Equal(before))
		By("until an ADD on that bridge replaces its policy")
		other := b.call(key("ingressPolicy", open), 2)
		other.Config = strings.ReplaceAll(other.Config, `"cni1"`, strconv.Quote(name))
		b.OK("ADD", other)
		Expect(b.saved(variant)).To(And(Not(ContainSubstring(name)), ContainSubstring("--ctstate INVALID")))
		expect(toContainer(b.containers[0], 2, true), toContainer(b.containers[2], 0, true))
	},
		Entry(nil, "cni1", "-legacy"), Entry("with a name that iptables quotes", `"c"n'1`, "-nft"),
	)

	DescribeTable("between running containers is dropped after a change to isolated", func(backend, policy string) {
		keys := key("backend", backend) + key("ingressPolicy", isolated)
		b.Host.Batch(GinkgoTB(), "link add veth9 type veth peer name veth8", "link set veth9 master cni0 alias plumb:net9/c9/eth0",
			"link add veth7 type veth peer name veth6", "link set veth7 master cni0") // veth9 belongs to another network, and veth7 to an unknown owner
		for container := range 2 {
			b.Host.Batch(GinkgoTB(), fmt.Sprintf("link set veth%d alias plumb:net1/c%[1]d/eth0", container))
			b.OK("ADD", b.call(key("backend", backend)+key("ingressPolicy", policy), container))
		}
		expect(toContainer(b.containers[0], 1, true))
		b.OK("ADD", b.call(keys, 0))
		expect(toContainer(b.containers[0], 1, false), toContainer(b.containers[1], 0, false), toContainer(b.Host, 1, true))
		b.OK("CHECK", b.call(keys, 1))
		Expect(b.elements()).NotTo(Or(ContainSubstring("veth9"), ContainSubstring("veth7")))
		By("only the ADD that changes the policy lists the ports")
		c, steps := b.call(keys, 1).RecordSteps()
		b.OK("ADD", c)
		Expect(*steps).NotTo(ContainElement("list ports of cni0"))
		By("DEL and GC delete the elements of their containers")
		c.Config = bare("")
		b.OK("DEL", c)
		Expect(b.elements()).To(And(Not(ContainSubstring("veth1")), ContainSubstring("veth0")))
		b.OK("GC", b.Call("", nil, kept()))
		Expect(b.elements()).NotTo(ContainSubstring("veth"))
	},
		Entry(nil, iptables, sameBridge), Entry(nil, nftables, open),
	)

	DescribeTable("through the gateway of a VLAN passes as the policy says", func(backend string) {
		// With "vlan", the plugin bridge puts the gateway on one end of a veth pair, whose other end is a port of the bridge.
		b.Host.Batch(GinkgoTB(), "link add vbr type bridge", "link set vbr up", "link add vbr.100 type veth peer name vgate", "link set vgate master vbr up",
			"addr add 10.7.0.1/24 dev vbr.100", "addr add fd07::1/64 dev vbr.100 nodad", "link set vbr.100 up")
		var containers []*nstest.NS
		for i, v4 := range []string{"10.7.0.2", "10.7.0.3"} {
			container, port := nstest.New(GinkgoTB()).Named("tagged"+v4), fmt.Sprint("vport", i)
			v6 := fmt.Sprint("fd07::", 2+i)
			nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: port}, nstest.End{In: container, Name: "eth0", Addrs: []string{v4 + "/24", v6 + "/64"}})
			b.Host.Batch(GinkgoTB(), "link set "+port+" master vbr")
			container.Batch(GinkgoTB(), "route add default via 10.7.0.1", "route add default via fd07::1")
			nstest.ServeTCP(GinkgoTB(), container, v4+":80")
			nstest.ServeTCP(GinkgoTB(), container, "["+v6+"]:80")
			containers = append(containers, container)
			prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"vbr"},{"name":%q},{"name":"eth0","sandbox":"/container"},{"name":"vbr.100"}],`+
				`"ips":[{"address":"%s/24","interface":2},{"address":"%s/64","interface":2}]}`, port, v4, v6)
			c := nstest.Call{ContainerID: fmt.Sprint("tagged", i), Host: b.Host, Container: container, Config: confFor(key("backend", backend)+key("ingressPolicy", sameBridge), prev)}
			b.OK("ADD", c)
			b.OK("CHECK", c)
		}
		b.OK("ADD", b.call(key("backend", backend)+key("ingressPolicy", sameBridge), 2))
		expect(
			probe{b.containers[2], "10.7.0.2", "fd07::2", false}, // from another bridge with a policy
			toContainer(containers[0], 2, false),
			probe{b.containers[3], "10.7.0.2", "fd07::2", true}, // from a bridge without a policy
			probe{containers[0], "10.7.0.3", "fd07::3", true},   // in the same VLAN
		)
	}, Entry(nil, nftables))

	DescribeTable("follows a change of the policy at the next ADD", func(before, after string) {
		for _, policies := range [][2]string{{isolated, sameBridge}, {sameBridge, isolated}, {isolated, open}} {
			for container := range 3 {
				b.OK("ADD", b.call(key("backend", before)+key("ingressPolicy", policies[0]), container))
			}
			for container := range 3 {
				c := b.call(key("backend", after)+key("ingressPolicy", policies[1]), container)
				if container != 1 { // the first container's ADD has already changed the bridge's policy
					Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Code).To(BeEquivalentTo(types.CodeChanged), fmt.Sprint(policies))
				}
				b.OK("ADD", c)
			}
			for container := range 3 {
				b.OK("CHECK", b.call(key("backend", after)+key("ingressPolicy", policies[1]), container))
			}
			expect(toContainer(b.containers[0], 1, policies[1] != isolated), toContainer(b.containers[0], 2, policies[1] == open))
		}
		By("nothing of the former policy is left")
		Expect(b.elements()).To(BeEmpty())
		Expect(b.saved()).NotTo(ContainSubstring("cni0"))
	},
		Entry(nil, nftables, nftables), Entry(nil, iptables, nftables),
	)
})

var _ = Describe("a host", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("that drops no packets needs no external program", func() {
		c, steps := b.call("", 0).RecordSteps()
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			b.OK(command, c)
		}
		Expect(*steps).NotTo(ContainElement(MatchRegexp("^ip6?tables")))
		Expect(b.Host.Must(GinkgoTB(), "nft", "list", "ruleset")).To(BeEmpty())
	})

	It("whose iptables drops packets gets rules for that family only", func() {
		b.Host.Must(GinkgoTB(), "ip6tables", "-P", "FORWARD", "DROP")
		c := b.call("", 0)
		b.OK("ADD", c)
		Expect(b.saved()).To(And(ContainSubstring("ip6tables -A CNI-FORWARD"), Not(ContainSubstring("iptables -A CNI-FORWARD -s 10."))))
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(b.saved()).NotTo(ContainSubstring("fd00:1::2"))
	})

	It("whose iptables drops packets is an error for the backend nftables", func() {
		b.setForwardPolicy("DROP")
		b.Fails("ADD", b.call(key("backend", nftables), 0), types.CodeConfig, "use the backend iptables")
		c := b.call("", 0)
		c.Config = bare(key("backend", nftables))
		b.Fails("STATUS", c, types.CodeNotAvailable)
	})

	It("whose iptables-legacy drops packets gets rules there", func() {
		b.serve()
		b.Host.Must(GinkgoTB(), "iptables-legacy", "-P", "FORWARD", "DROP")
		c := b.call("", 0)
		b.OK("ADD", c)
		Expect(b.saved("-legacy")).To(ContainSubstring("-A CNI-FORWARD -s 10.9.0.2/32 -j ACCEPT"))
		b.OK("CHECK", c)
		nstest.MustDial(GinkgoTB(), b.containers[0], nstest.OutsideV4+":80", "10.9.0.2")
		c.Config = bare("")
		b.OK("DEL", c)
		Expect(b.saved("-legacy")).NotTo(ContainSubstring("10.9.0.2"))
		By("DEL with prevResult deletes the reference plugin's rules, which have no marker")
		b.Host.MustLine(GinkgoTB(), "iptables-legacy -A CNI-FORWARD -s 10.9.0.2 -j ACCEPT")
		b.OK("DEL", b.call("", 0))
		Expect(b.saved("-legacy")).NotTo(ContainSubstring("10.9.0.2"))
	})

	DescribeTable("whose nftables chain drops packets gets a warning from ADD and code 51 from STATUS", func(want, chain, rules string) {
		b.Host.Must(GinkgoTB(), "nft", "add table inet fw; add chain inet fw forwarded { type filter hook forward priority 0; "+chain+" }; "+rules)
		Expect(b.OK("ADD", b.call("", 0)).Stderr).To(ContainSubstring(want))
		c := b.call("", 0)
		c.Config = bare("")
		b.Fails("STATUS", c, types.CodeLimited, want)
	},
		Entry("by its policy", "the policy drop of chain forwarded of table inet fw", "policy drop;", ""),
		Entry("by its last rule", "the last rule of chain forwarded of table inet fw", "", "add rule inet fw forwarded ct state established accept; add rule inet fw forwarded counter drop"),
		Entry("by the last rule of another chain", "the last rule of chain forwarded of table inet fw", "",
			"add chain inet fw rest; add rule inet fw forwarded goto rest; add rule inet fw rest reject with icmpx type admin-prohibited"),
	)

	DescribeTable("whose iptables chain FORWARD ends in a rule that drops packets gets rules before it", func(variant string, rules ...string) {
		for _, rule := range rules {
			b.Host.MustLine(GinkgoTB(), "iptables-"+variant+" "+rule)
		}
		c := b.call("", 0)
		b.OK("ADD", c)
		b.OK("CHECK", c)
		nstest.MustDial(GinkgoTB(), b.containers[0], nstest.ServeTCP(GinkgoTB(), b.Outside, nstest.OutsideV4+":80").String(), "10.9.0.2")
		b.OK("DEL", c)
		Expect(b.saved("-" + variant)).NotTo(ContainSubstring("10.9.0.2"))
	},
		Entry(nil, "nft", "-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited"),
		Entry(nil, "nft", "-N END", "-A FORWARD -j END", "-A END -j DROP"),
		Entry(nil, "legacy", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited"),
	)
})
