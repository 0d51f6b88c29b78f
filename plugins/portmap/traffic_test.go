package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// backends is the column of a table.
func backends(more ...any) []TableEntry {
	var entries []TableEntry
	for _, backend := range []string{nftables, iptables} {
		entries = append(entries, Entry(nil, append([]any{backend}, more...)...))
	}
	return entries
}

func withBackend(backend string) string { return fmt.Sprintf(`"backend":%q,`, backend) }

// An asker dials over one of the protocols.
type asker func(n *nstest.NS, addr string) (string, error)

// serve answers in the first pod, over both protocols and families.
func (b *bed) serve() {
	GinkgoHelper()
	for _, addr := range []string{pod4 + ":80", "[" + pod6 + "]:80"} {
		nstest.ServeTCP(GinkgoTB(), b.pods[0], addr)
		nstest.ServeUDP(GinkgoTB(), b.pods[0], addr)
	}
}

// expectAnswer wants the first pod to answer, and to have seen peer; empty: anybody.
func expectAnswer(ask asker, from *nstest.NS, addr, peer string) {
	GinkgoHelper()
	reply, err := ask(from, addr)
	Expect(err).NotTo(HaveOccurred(), addr)
	local := pod4
	if strings.HasPrefix(addr, "[") {
		local = pod6
	}
	Expect(reply).To(HaveSuffix("local=" + local))
	if peer != "" {
		Expect(reply).To(HavePrefix("peer="+peer+" "), addr)
	}
}

var _ = Describe("traffic", func() {
	var b *bed
	var c nstest.Call
	BeforeEach(func() {
		b = newBed()
		b.serve()
	})
	both := []string{mapped(8080, 80, overTCP), mapped(8080, 80, overUDP)}

	DescribeTable("reaches the container from everywhere", func(backend string) {
		c = b.call("one", conf(withBackend(backend), both...))
		ok(c, "ADD")
		for _, ask := range []asker{nstest.Dial, nstest.DialUDP} {
			By("from outside, with its own address")
			expectAnswer(ask, b.outside, nstest.NodeV4+":8080", nstest.OutsideV4)
			expectAnswer(ask, b.outside, "["+nstest.NodeV6+"]:8080", nstest.OutsideV6)
			By("from another pod, at any address of the node")
			expectAnswer(ask, b.pods[1], nstest.NodeV4+":8080", gateway4)
			expectAnswer(ask, b.pods[1], gateway4+":8080", gateway4)
			expectAnswer(ask, b.pods[1], "["+gateway6+"]:8080", gateway6)
			By("from the node")
			expectAnswer(ask, b.node, nstest.NodeV4+":8080", "")
			expectAnswer(ask, b.node, gateway4+":8080", "")
			expectAnswer(ask, b.node, "["+nstest.NodeV6+"]:8080", "")
			By("from the node's own 127.0.0.1")
			expectAnswer(ask, b.node, "127.0.0.1:8080", gateway4)
			By("from the container itself")
			expectAnswer(ask, b.pods[0], nstest.NodeV4+":8080", gateway4)
			expectAnswer(ask, b.pods[0], "["+gateway6+"]:8080", gateway6)
			By("and leaves what is addressed to the container as it is")
			expectAnswer(ask, b.pods[1], pod4+":80", peer4)
		}
		ok(c, "DEL")
		_, err := nstest.Dial(b.outside, nstest.NodeV4+":8080")
		Expect(err).To(HaveOccurred())
	}, backends())

	DescribeTable("passes the node between two pods with bridged frames seen by netfilter too", Label(nstest.Kernel), func(backend string) {
		nstest.RequireFeature(GinkgoTB(), "br_netfilter", b.bridgeNetfilter("1"))
		ok(b.call("one", conf(withBackend(backend), both...)), "ADD")
		expectAnswer(nstest.Dial, b.pods[1], nstest.NodeV4+":8080", gateway4)
		expectAnswer(nstest.Dial, b.pods[1], pod4+":80", peer4)
		expectAnswer(nstest.DialUDP, b.pods[0], nstest.NodeV4+":8080", gateway4)
	}, backends())

	DescribeTable("is masqueraded as the configuration says", func(backend, keys, outside, peer string) {
		ok(b.call("one", conf(withBackend(backend)+keys, both...)), "ADD")
		expectAnswer(nstest.Dial, b.outside, nstest.NodeV4+":8080", outside)
		reply, err := nstest.Dial(b.pods[1], nstest.NodeV4+":8080")
		if peer == "" { // the answer goes past the node: nobody asked this one
			Expect(err).To(HaveOccurred())
			return
		}
		Expect(reply).To(HavePrefix("peer=" + peer + " "))
	},
		backends(`"snat":false,`, nstest.OutsideV4, ""),
		backends(`"masqAll":true,`, gateway4, gateway4),
		backends(`"markMasqBit":20,`, nstest.OutsideV4, gateway4),
	)

	DescribeTable("keeps to the address of the node that the mapping names", func(backend string) {
		ok(b.call("one", conf(withBackend(backend),
			mapped(8080, 80, overTCP+`,"hostIP":"`+nstest.NodeV4+`"`), mapped(8081, 80, overTCP+`,"hostIP":"127.0.0.1"`),
			mapped(8082, 80, overTCP+`,"hostIP":"0.0.0.0"`), mapped(8083, 80, overTCP+`,"hostIP":"::"`), mapped(8084, 80, `"protocol":"TCP","hostIP":"`+nstest.NodeV6+`"`))), "ADD")
		for addr, reachable := range map[string]bool{
			nstest.NodeV4 + ":8080": true, gateway4 + ":8080": false, nstest.NodeV4 + ":8081": false, nstest.NodeV4 + ":8082": true,
			"[" + nstest.NodeV6 + "]:8082": false, "[" + nstest.NodeV6 + "]:8083": true, nstest.NodeV4 + ":8083": false,
			"[" + nstest.NodeV6 + "]:8084": true, "[" + gateway6 + "]:8084": false,
		} {
			_, err := nstest.Dial(b.pods[1], addr)
			Expect(err == nil).To(Equal(reachable), addr)
		}
		expectAnswer(nstest.Dial, b.node, "127.0.0.1:8081", gateway4)
	}, backends())

	DescribeTable("that is only passing by is left alone (CVE-2025-67499)", func(backend string) {
		ok(b.call("one", conf(withBackend(backend), both...)), "ADD")
		b.outside.Batch(GinkgoTB(), "route add 10.9.0.0/24 via "+nstest.NodeV4)
		nstest.ServeTCP(GinkgoTB(), b.outside, nstest.OutsideV4+":8080")
		nstest.ServeTCP(GinkgoTB(), b.pods[1], peer4+":8080")
		for from, addr := range map[*nstest.NS]string{b.pods[1]: nstest.OutsideV4 + ":8080", b.outside: peer4 + ":8080", b.node: nstest.OutsideV4 + ":8080"} {
			reply, err := nstest.Dial(from, addr)
			Expect(err).NotTo(HaveOccurred())
			Expect(reply).To(HaveSuffix("local=" + strings.TrimSuffix(addr, ":8080")))
		}
	}, backends())

	DescribeTable("that a Service claims goes where the Service says (CVE-2019-9946)", func(backend, program, rules string) {
		ok(b.call("one", conf(withBackend(backend), both...)), "ADD")
		b.load(program, rules)
		nstest.ServeTCP(GinkgoTB(), b.pods[1], peer4+":80")
		reply, err := nstest.Dial(b.outside, nstest.NodeV4+":8080")
		Expect(err).NotTo(HaveOccurred())
		Expect(reply).To(HaveSuffix("local=" + peer4))
	},
		Entry("of kube-proxy by nftables", nftables, "nft",
			"table ip kube-proxy {\nchain nat-prerouting {\ntype nat hook prerouting priority dstnat\nip daddr "+nstest.NodeV4+" tcp dport 8080 dnat to "+peer4+":80\n}\n}\n"),
		Entry("of kube-proxy by iptables", nftables, "iptables-restore",
			"*nat\n-I PREROUTING -d "+nstest.NodeV4+" -p tcp --dport 8080 -j DNAT --to-destination "+peer4+":80\nCOMMIT\n"),
		Entry("by iptables both", iptables, "iptables-restore",
			"*nat\n-I PREROUTING -d "+nstest.NodeV4+" -p tcp --dport 8080 -j DNAT --to-destination "+peer4+":80\nCOMMIT\n"),
	)

	DescribeTable("of a neighbour does not reach the node's 127.0.0.1 (CVE-2020-8558)", func(backend, open string) {
		ok(b.call("one", conf(withBackend(backend), both...)), "ADD")
		Expect(b.node.Sysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet")).To(Equal("1"))
		Expect(b.node.Sysctl(GinkgoTB(), "net/ipv4/conf/all/route_localnet")).To(Equal("0"))
		Expect(b.node.Sysctl(GinkgoTB(), "net/ipv4/conf/"+nstest.Uplink+"/route_localnet")).To(Equal("0"))
		nstest.ServeTCP(GinkgoTB(), b.node, "127.0.0.1:9999")
		neighbour := b.pods[1]
		neighbour.SetSysctl(GinkgoTB(), "net/ipv4/conf/eth0/route_localnet", "1")
		neighbour.Batch(GinkgoTB(), "addr del 127.0.0.1/8 dev lo", "route replace 127.0.0.1/32 via "+gateway4+" dev eth0 src "+peer4)
		_, err := nstest.Dial(neighbour, "127.0.0.1:9999")
		Expect(err).To(HaveOccurred())

		By("while the attack works without the rule")
		words := strings.Fields(open)
		b.node.Must(GinkgoTB(), words[0], words[1:]...)
		_, err = nstest.Dial(neighbour, "127.0.0.1:9999")
		Expect(err).NotTo(HaveOccurred())
	},
		Entry(nil, nftables, "nft flush chain inet plumb localnet"),
		Entry(nil, iptables, "iptables -t raw -F PREROUTING"),
	)

	DescribeTable("meets the conditions of its own network only", func(backend string, conditions ...string) {
		var texts []string
		for _, c := range conditions {
			texts = append(texts, fmt.Sprintf("%q", c))
		}
		ok(b.call("one", conf(withBackend(backend)+`"conditionsV4":[`+strings.Join(texts, ",")+`],`, both...)), "ADD")
		other := confFor(withBackend(backend)+`"name":"net2",`, []string{pod4 + "/24"}, mapped(9090, 80, overTCP))
		ok(b.call("two", other), "ADD")
		_, err := nstest.Dial(b.outside, nstest.NodeV4+":8080")
		Expect(err).To(HaveOccurred())
		expectAnswer(nstest.Dial, b.pods[1], nstest.NodeV4+":8080", gateway4)
		expectAnswer(nstest.Dial, b.outside, nstest.NodeV4+":9090", nstest.OutsideV4)
		expectAnswer(nstest.Dial, b.outside, "["+nstest.NodeV6+"]:8080", nstest.OutsideV6)
	},
		Entry(nil, nftables, "ip", "saddr", "!=", nstest.OutsideV4),
		Entry(nil, iptables, "!", "-s", nstest.OutsideV4),
	)

	DescribeTable("over UDP follows at once, and only that of the mapping", func(backend string) {
		nstest.ServeUDP(GinkgoTB(), b.pods[1], peer4+":80")
		nstest.ServeUDP(GinkgoTB(), b.outside, nstest.OutsideV4+":8080")
		b.outside.Batch(GinkgoTB(), "route add 10.9.0.0/24 via "+nstest.NodeV4)
		one := b.call("one", conf(withBackend(backend), both...))
		two := b.call("two", confFor(withBackend(backend)+`"name":"net1",`, []string{peer4 + "/24"}, both...))

		// The kernel tracks connections where some rule needs it.
		ok(b.call("zero", confFor(withBackend(backend)+`"name":"net0",`, []string{pod4 + "/24", pod6 + "/64"}, mapped(9999, 80, overTCP))), "ADD")
		talk := b.talk(b.outside, nstest.NodeV4+":8080")
		passing := b.talk(b.pods[1], nstest.OutsideV4+":8080")
		unrelated := b.talk(b.outside, peer4+":80") // the container's port is another one's host port
		talk6 := b.talk(b.outside, "["+nstest.NodeV6+"]:8080")
		unrelated6 := b.talk(b.pods[1], "["+nstest.OutsideV6+"]:8080")
		nstest.ServeUDP(GinkgoTB(), b.outside, "["+nstest.OutsideV6+"]:8080")
		b.outside.Batch(GinkgoTB(), "route add fd00:9::/64 via "+nstest.NodeV6)
		for _, addr := range []string{"[" + pod6 + "]:80", "[" + peer6 + "]:80"} { // until all addresses of the links are usable
			_, _ = nstest.Dial(b.node, addr)
		}
		Expect(talk()).To(BeEmpty(), "nobody listens yet")
		Expect(talk6()).To(BeEmpty())
		Expect(unrelated6()).NotTo(BeEmpty())
		Expect(passing()).NotTo(BeEmpty())
		Expect(unrelated()).NotTo(BeEmpty())
		flows := b.flows("dst=" + nstest.OutsideV4)
		Expect(flows).NotTo(BeEmpty())

		ok(one, "ADD")
		Expect(talk()).To(HaveSuffix("local=" + pod4))
		Expect(talk6()).To(HaveSuffix("local=" + pod6))
		Expect(b.flows("dst=" + nstest.OutsideV6)).To(HaveLen(1))
		ok(two, "ADD")
		Expect(talk()).To(HaveSuffix("local="+peer4), "a port that changes hands")
		ok(two, "DEL")
		Expect(b.flows("dst=" + nstest.NodeV4)).To(BeEmpty())
		Expect(b.flows("dst=" + nstest.OutsideV4)).To(Equal(flows))
		Expect(b.flows("dst=" + peer4)).NotTo(BeEmpty())
		ok(one, "DEL")
		Expect(b.flows("dst=" + nstest.NodeV6)).To(BeEmpty())
		Expect(b.flows("dst=" + nstest.OutsideV6)).To(HaveLen(1))
	}, backends())

	It("comes to a container behind a pair of its own, from 127.0.0.1 and from itself", func() {
		pod := nstest.New(GinkgoTB())
		nstest.Join(GinkgoTB(), nstest.End{In: b.node, Name: "veth0", Addrs: []string{"10.8.0.1/32"}}, nstest.End{In: pod, Name: "eth0", Addrs: []string{"10.8.0.2/24"}})
		b.node.Batch(GinkgoTB(), "route add 10.8.0.2 dev veth0")
		pod.Batch(GinkgoTB(), "link set lo up", "route add default via 10.8.0.1")
		nstest.ServeTCP(GinkgoTB(), pod, "10.8.0.2:80")
		ok(b.call("ptp", confFor(`"name":"net2",`, []string{"10.8.0.2/24"}, mapped(8088, 80, overTCP))), "ADD")
		nstest.MustDial(GinkgoTB(), b.node, "127.0.0.1:8088", "10.8.0.1")
		nstest.MustDial(GinkgoTB(), pod, nstest.NodeV4+":8088", "10.8.0.1")
		nstest.MustDial(GinkgoTB(), b.outside, nstest.NodeV4+":8088", nstest.OutsideV4)
		nstest.MustDial(GinkgoTB(), b.pods[1], nstest.NodeV4+":8088", peer4)
	})

	It("to [::1] stays with the node, which has no way back from there", func() {
		ok(b.call("one", conf("", both...)), "ADD")
		nstest.ServeTCP(GinkgoTB(), b.node, "[::1]:8080")
		nstest.MustDial(GinkgoTB(), b.node, "[::1]:8080", "::1")
	})
})

// talk gives a function that sends one datagram more, always from one port, and gives
// the answer; empty: none.
func (b *bed) talk(from *nstest.NS, addr string) func() string {
	c := connectUDP(from, addr)
	return func() string {
		buf := make([]byte, 256)
		if _, err := c.Write([]byte("?")); err != nil {
			return ""
		}
		n, err := c.Read(buf)
		if err != nil && !errors.Is(err, fs.ErrClosed) {
			return ""
		}
		return string(buf[:n])
	}
}

// flows are the UDP connections that the node tracks and that begin
// with this destination.
func (b *bed) flows(word string) []string {
	GinkgoHelper()
	out := b.node.Must(GinkgoTB(), "conntrack", "-L", "-p", "udp", "-f", "ipv4") + b.node.Must(GinkgoTB(), "conntrack", "-L", "-p", "udp", "-f", "ipv6")
	var lines []string
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "src=") }); i >= 0 && words[i+1] == word {
			lines = append(lines, strings.Join(words[i:i+4], " "))
		}
	}
	return lines
}

// connectUDP gives a socket that keeps its port.
func connectUDP(from *nstest.NS, addr string) net.Conn {
	GinkgoHelper()
	var c net.Conn
	Expect(from.Do(func() (err error) {
		c, err = net.Dial("udp", addr)
		return err
	})).To(Succeed())
	DeferCleanup(c.Close)
	return deadlined{c}
}

// deadlined gives each answer three seconds.
type deadlined struct{ net.Conn }

func (d deadlined) Read(b []byte) (int, error) {
	_ = d.SetReadDeadline(time.Now().Add(3 * time.Second))
	return d.Conn.Read(b)
}
