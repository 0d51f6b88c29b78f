package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/explain"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("plumb explain", func() {
	It("shows the hops of an attachment's packets, in order", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", strings.Replace(chain, `"ranges"`, `"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "ranges"`, 1))
		b.add(list, newContainer(id("8c1f"), 8080))
		before := nstest.WaitStable(b.state)
		out := regexp.MustCompile(`veth\w+`).ReplaceAllString(b.plumb("explain", "8c1f"), "VETH")
		Expect(nstest.Compare(before, b.state())).To(BeEmpty())
		Expect(out).To(Equal(`network pods, container ` + id("8c1f") + `, interface eth0
out  container  eth0 (veth), MTU 1400, 10.1.2.2/24, fd00:1:2::2/64
     container  route default via 10.1.2.1 dev eth0
     container  route 10.1.2.0/24 dev eth0
     container  route fd00:1:2::/64 metric 256 dev eth0
     container  route default via fd00:1:2::1 metric 1024 dev eth0
     host       VETH (veth), MTU 1500, port of cni0: hairpin off, isolated off
     host       cni0 (bridge), MTU 1500, 10.1.2.1/24, fd00:1:2::1/64
     host       table inet plumb, chain postrouting: from 10.1.2.2 jump masq/pods/10.1.2.0/24, which masquerades, except to the subnet and to multicast addresses
     host       table inet plumb, chain postrouting: from fd00:1:2::2 jump masq/pods/fd00_1_2__/64, which masquerades, except to the subnet and to multicast addresses
in   host       host port tcp 8080 of IP version 4 is forwarded to 10.1.2.2 port 80 (table inet plumb, map hostport4)
     host       host port tcp 8080 of IP version 6 is forwarded to fd00:1:2::2 port 80 (table inet plumb, map hostport6)
     host       Services of Kubernetes see these packets first (kube-proxy has the priority dstnat, host ports dstnat + 1)
     host       route to 10.1.2.2 through cni0
     host       route to fd00:1:2::2 through cni0
     host       cni0 (bridge), MTU 1500, 10.1.2.1/24, fd00:1:2::1/64
     host       VETH (veth), MTU 1500, port of cni0: hairpin off, isolated off
     container  eth0 (veth), MTU 1400, 10.1.2.2/24, fd00:1:2::2/64
`))
		var paths []explain.Path
		Expect(json.Unmarshal([]byte(b.plumb("explain", "8c1f", "eth0", "-o", "json")), &paths)).To(Succeed())
		Expect(paths).To(HaveLen(1))
		Expect(paths[0].Out[0]).To(Equal(explain.Hop{Where: "container", What: "eth0 (veth), MTU 1400, 10.1.2.2/24, fd00:1:2::2/64"}))
	})

	It("shows each rate limit only where packets meet it", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", strings.Replace(chain, `{"type": "tuning",`,
			`{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000}, {"type": "tuning",`, 1)),
			newContainer("c1"))
		out, in, _ := strings.Cut(b.plumb("explain", "c1"), "\nin ")
		Expect(out).To(MatchRegexp(`veth\w+ \(veth\), MTU 1500, port of cni0.*\n.* (bwp\w+) \(ifb\), MTU 1500, limits the rate \(tbf; tc -s qdisc show dev .*\n.* cni0 `))
		Expect(in).To(MatchRegexp(`cni0 .*\n.* veth\w+ \(veth\), MTU 1500, limits the rate \(tbf; tc -s qdisc show dev .*, port of cni0.*\n.* eth0 `))
		Expect(in).NotTo(ContainSubstring("(ifb)"))
	})

	It("shows host ports in the order of their numbers", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1", 8443, 443, 9000, 80, 8080, 22))
		var ports []string
		for _, m := range regexp.MustCompile(`host port tcp (\d+) of IP version 4`).FindAllStringSubmatch(b.plumb("explain", "c1"), -1) {
			ports = append(ports, m[1])
		}
		Expect(ports).To(Equal([]string{"22", "80", "443", "8080", "8443", "9000"}))
	})

	It("names the cause of lost packets", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", chain)
		p := newContainer("c1", 8080)
		b.add(list, p)
		b.add(list, newContainer("e1", 8080))
		b.host.SetForwarding(GinkgoTB(), "0")
		b.host.MustLine(GinkgoTB(), "ip addr flush dev cni0")
		p.MustLine(GinkgoTB(), "ip link set eth0 down")
		b.host.Must(GinkgoTB(), "nft", "add map inet plumb masq4-former { type ipv4_addr : verdict; }")
		b.host.Must(GinkgoTB(), "nft", `add element inet plumb masq4-former { 10.1.2.99 comment "pods/c1/eth0" : jump masq/pods/10.1.2.0/24 }`)
		out := b.plumb("explain", "c1")
		Expect(out).NotTo(ContainSubstring("10.1.2.99"), "another attachment has that address now")
		Expect(out).To(ContainSubstring("container  eth0 (veth) is down"))
		Expect(out).To(ContainSubstring("has no carrier, MTU 1500, port of cni0"))
		Expect(out).To(ContainSubstring(`host       CHECK of bridge: sysctl net/ipv4/ip_forward is "0", want "1"`))
		Expect(out).To(ContainSubstring("host port 8080/tcp of IP version 4 belongs to pods/e1/eth0 now"))
		Expect(out).To(ContainSubstring("host       no route to 10.1.2.2\n"))
	})

	It("names the route that refuses packets to the container", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		b.host.IP("route add blackhole 10.1.2.2")
		out := b.plumb("explain", "c1")
		Expect(out).To(ContainSubstring("host       blackhole route 10.1.2.2, which refuses packets to 10.1.2.2\n"))
		Expect(out).To(ContainSubstring("host       CHECK of bridge: the host has the blackhole route 10.1.2.2, which refuses packets for 10.1.2.2"))
		Expect(b.plumb("explain", "10.1.2.2")).To(Equal(out))
	})

	It("names what the host has lost", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", chain)
		b.add(list, newContainer("c1", 8080))
		b.add(list, newContainer("c2"))
		for _, command := range []string{
			"nft flush ruleset", "ip address flush dev cni0 scope global",
			"ip link set $(ip -o link show master cni0 | head -n 1 | cut -d: -f2 | cut -d@ -f1) nomaster",
		} {
			b.host.Must(GinkgoTB(), "sh", "-c", command)
		}
		out := b.plumb("explain", "c1")
		Expect(out).To(ContainSubstring("container c1, interface eth0"))
		Expect(out).To(And(MatchRegexp(`check +host +CHECK of bridge: `), MatchRegexp(`host +CHECK of portmap: .*8080`)))
		Expect(out + b.plumb("explain", "c2")).To(MatchRegexp(`interface veth\w+ is not a port of bridge cni0\n`))
	})

	It("shows the master of a macvlan, and no route on the host", func() {
		b := newTestbed()
		b.host.Batch(GinkgoTB(), "link add eth1 type veth peer name switch1", "link set eth1 up", "link set switch1 up")
		b.add(b.network("20-lan.conflist", pageLAN), newContainer("c1"))
		out := b.plumb("explain", "c1")
		Expect(strings.Count(out, "host       eth1 (veth), MTU 1500, master of eth0\n")).To(Equal(2), out)
		Expect(out).NotTo(ContainSubstring("no route"))
		b.host.Batch(GinkgoTB(), "link set eth1 down")
		Expect(b.plumb("explain", "c1")).To(ContainSubstring("eth1 (veth) is down, MTU 1500, master of eth0"))
	})

	It("shows that the pair of host-access carries only packets of the host", func() {
		b := newTestbed()
		b.host.Batch(GinkgoTB(), "link add eth1 type veth peer name switch1", "link set eth1 up", "link set switch1 up", "addr add 192.168.7.1/24 dev eth1")
		plugins := strings.Replace(pageLAN, "        }\n    ]", `        }, {"type": "host-access"}]`, 1)
		b.add(b.network("20-lan.conflist", plugins), newContainer("c1"))
		out := b.plumb("explain", "c1")
		Expect(out).To(MatchRegexp(`host       vethh\w+ carries only packets to and from the host, which table inet plumb limits \(host-access\)\n`))
		Expect(out).NotTo(MatchRegexp(`vethh\w+ \(veth\)`))
		Expect(b.plumb("list")).To(MatchRegexp(`vethh\w+, host-access`))
	})

	It("shows the hops on the host if the container's namespace is gone or unknown", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", chain)
		p := newContainer("c1")
		b.add(list, p)
		p.Remove(GinkgoTB())
		Expect(b.plumb("explain", "c1")).To(And(MatchRegexp("container  not shown: .*: not a network namespace"), ContainSubstring("masquerades")))
		b.addHalf(newContainer("e1"))
		Expect(b.plumb("explain", "e1")).To(And(ContainSubstring("container  not shown: libcni's cache does not contain"), ContainSubstring("port of cni0")))
	})

	It("prefers the container whose ID equals the argument", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", chain)
		b.add(list, newContainer("c1"))
		b.add(list, newContainer("c10"))
		Expect(b.plumb("explain", "c1")).To(ContainSubstring("container c1, "))
	})

	It("shows all containers with the address", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", chain)
		b.add(list, newContainer("c1"))
		Expect(os.RemoveAll(b.path("leases/pods"))).To(Succeed())
		b.add(list, newContainer("c2"))
		Expect(b.plumb("explain", "10.1.2.2", "eth0")).To(And(ContainSubstring("container c1, "), ContainSubstring("container c2, ")))
	})

	It("prints the command that lists the iptables rules", func() {
		const chainOfC1 = "CNI-DN-48c5963fc74ef84afd142" // the beginning of the SHA-512 of "podsc1"
		const hint = "iptables rules of the container are not shown; to list them: { iptables-save; ip6tables-save; } | grep -e c1 -e " + chainOfC1 + "\n"
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		Expect(b.plumb("explain", "10.1.2.2")).To(Equal(b.plumb("explain", "c1")), "by the address")
		Expect(b.plumb("explain", "c1")).NotTo(ContainSubstring("iptables"))
		b.host.Must(GinkgoTB(), "nft", "add table ip6 nat; add chain ip6 nat "+chainOfC1)
		Expect(b.plumb("explain", "c1")).To(ContainSubstring(hint), "the chain of the reference plugin")
		b.host.Must(GinkgoTB(), "nft", "delete table ip6 nat")
		b.add(b.network("10-pods.conflist", strings.Replace(chain, `"ipMasq": true`, `"ipMasq": true, "ipMasqBackend": "iptables"`, 1)), newContainer("c2"))
		Expect(b.plumb("explain", "c2")).To(ContainSubstring("{ iptables-save; ip6tables-save; } | grep -e c2 -e CNI-DN-"))
	})

	DescribeTable("rejects an argument that does not select exactly one container", func(want string, args ...string) {
		b := newTestbed()
		list := b.network("10-pods.conflist", chain)
		b.add(list, newContainer("c1"))
		b.add(list, newContainer("c2"))
		reply := b.run("", append(append([]string{"explain"}, args...), b.directories()...)...)
		Expect(reply.Exit).To(Equal(exitUsage))
		Expect(reply.Stderr).To(ContainSubstring(want))
	},
		Entry("a prefix of two IDs", `the IDs of 2 containers begin with "c"; give more of the ID`, "c"),
		Entry("a prefix of no ID", `no container whose ID begins with "x" is attached to a network of this host; a pod's ID is the ID of its sandbox; plumb list shows all attachments`, "x"),
		Entry("an address of no container", `no container of this host has the address fd00:1:2::99; plumb list shows all attachments`, "FD00:1:2:0::99"),
		Entry("an interface that the container lacks", `has an interface "eth1"`, "c1", "eth1"),
		Entry("no argument", "plumb: CONTAINER is missing\nSee plumb explain --help.\n"),
	)
})
