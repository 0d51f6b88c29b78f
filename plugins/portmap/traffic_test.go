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

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// backends returns one table entry per backend, with the backend as its first parameter.
func backends(more ...any) []TableEntry {
	var entries []TableEntry
	for _, backend := range []string{backendNFTables, backendIPTables} {
		entries = append(entries, Entry(nil, append([]any{backend}, more...)...))
	}
	return entries
}

func withBackend(backend string) string { return fmt.Sprintf(`"backend":%q,`, backend) }

// A dialFunc connects over one protocol and returns the answer of the server.
type dialFunc func(n *nstest.NS, addr string) (string, error)

// serve starts servers in the first container, for TCP and UDP in both families.
func (b *testbed) serve() {
	GinkgoHelper()
	for _, addr := range []string{addr4 + ":80", "[" + addr6 + "]:80"} {
		nstest.ServeTCP(GinkgoTB(), b.containers[0], addr)
		nstest.ServeUDP(GinkgoTB(), b.containers[0], addr)
	}
}

// expectAnswer expects an answer of the first container. If peer is not empty, the answer must name peer as
// the source of the connection.
func expectAnswer(dial dialFunc, from *nstest.NS, addr, peer string) {
	GinkgoHelper()
	reply, err := dial(from, addr)
	Expect(err).NotTo(HaveOccurred(), addr)
	local := addr4
	if strings.HasPrefix(addr, "[") {
		local = addr6
	}
	Expect(reply).To(HaveSuffix("local=" + local))
	if peer != "" {
		Expect(reply).To(HavePrefix("peer="+peer+" "), addr)
	}
}

var _ = Describe("traffic", func() {
	var b *testbed
	var c nstest.Call
	BeforeEach(func() {
		b = newTestbed()
		b.serve()
	})
	both := []string{portMapping(8080, 80, overTCP), portMapping(8080, 80, overUDP)}

	DescribeTable("reaches the container from outside, other containers, the host and itself", func(backend string) {
		c = b.call("one", conf(withBackend(backend), both...))
		b.OK("ADD", c)
		for _, dial := range []dialFunc{nstest.Dial, nstest.DialUDP} {
			By("from outside, with the source address of that host")
			expectAnswer(dial, b.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
			expectAnswer(dial, b.Outside, "["+nstest.HostV6+"]:8080", nstest.OutsideV6)
			By("from another container, at any address of the host")
			expectAnswer(dial, b.containers[1], nstest.HostV4+":8080", gateway4)
			expectAnswer(dial, b.containers[1], gateway4+":8080", gateway4)
			expectAnswer(dial, b.containers[1], "["+gateway6+"]:8080", gateway6)
			By("from the host")
			expectAnswer(dial, b.Host, nstest.HostV4+":8080", "")
			expectAnswer(dial, b.Host, gateway4+":8080", "")
			expectAnswer(dial, b.Host, "["+nstest.HostV6+"]:8080", "")
			By("from the host's own 127.0.0.1")
			expectAnswer(dial, b.Host, "127.0.0.1:8080", gateway4)
			By("from the container itself")
			expectAnswer(dial, b.containers[0], nstest.HostV4+":8080", gateway4)
			expectAnswer(dial, b.containers[0], "["+gateway6+"]:8080", gateway6)
			By("and connections to the container's own address are not translated")
			expectAnswer(dial, b.containers[1], addr4+":80", peer4)
		}
		b.OK("DEL", c)
		nstest.MustNotAnswer(GinkgoTB(), b.Outside, nstest.HostV4+":8080")
	}, backends())

	DescribeTable("reaches the container again after the ruleset was flushed and REPAIR, including UDP packets that kept arriving", func(backend string) {
		c = b.call("one", conf(withBackend(backend), both...))
		b.OK("ADD", c)
		b.Host.Must(GinkgoTB(), "nft", "flush ruleset")
		b.Host.SetSysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet", "0")
		nstest.MustNotAnswer(GinkgoTB(), b.Outside, nstest.HostV4+":8080")
		b.OK("ADD", b.call("zero", confFor(withBackend(backend)+`"name":"net0",`, []string{addr4 + "/24"}, portMapping(9999, 80, overTCP)))) // for connection tracking
		talk := b.newTalker(b.Outside, nstest.HostV4+":8080")
		Expect(talk()).To(BeEmpty())
		b.OK("REPAIR", c)
		Expect(talk()).To(HaveSuffix("local=" + addr4))
		for _, dial := range []dialFunc{nstest.Dial, nstest.DialUDP} {
			expectAnswer(dial, b.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
			expectAnswer(dial, b.Outside, "["+nstest.HostV6+"]:8080", nstest.OutsideV6)
			expectAnswer(dial, b.containers[1], nstest.HostV4+":8080", gateway4)
			expectAnswer(dial, b.Host, "127.0.0.1:8080", gateway4)
		}
	}, backends())

	DescribeTable("between two containers is masqueraded even if netfilter sees bridged frames", Label(nstest.Kernel), func(backend string) {
		nstest.RequireFeature(GinkgoTB(), "br_netfilter", b.Host.SetBridgeNetfilter(GinkgoTB(), "1"))
		b.OK("ADD", b.call("one", conf(withBackend(backend), both...)))
		expectAnswer(nstest.Dial, b.containers[1], nstest.HostV4+":8080", gateway4)
		expectAnswer(nstest.Dial, b.containers[1], addr4+":80", peer4)
		expectAnswer(nstest.DialUDP, b.containers[0], nstest.HostV4+":8080", gateway4)
	}, backends())

	DescribeTable("is masqueraded according to snat, masqAll and markMasqBit", func(backend, keys, outside, peer string) {
		b.OK("ADD", b.call("one", conf(withBackend(backend)+keys, both...)))
		expectAnswer(nstest.Dial, b.Outside, nstest.HostV4+":8080", outside)
		if peer == "" { // the answer does not go through the host, so the container drops it
			nstest.MustNotAnswer(GinkgoTB(), b.containers[1], nstest.HostV4+":8080")
			return
		}
		expectAnswer(nstest.Dial, b.containers[1], nstest.HostV4+":8080", peer)
	},
		backends(`"snat":false,`, nstest.OutsideV4, ""),
		backends(`"masqAll":true,`, gateway4, gateway4),
		backends(`"markMasqBit":20,`, nstest.OutsideV4, gateway4),
	)

	DescribeTable("is translated at the address in hostIP only", func(backend string) {
		b.OK("ADD", b.call("one", conf(withBackend(backend),
			portMapping(8080, 80, overTCP+`,"hostIP":"`+nstest.HostV4+`"`), portMapping(8081, 80, overTCP+`,"hostIP":"127.0.0.1"`),
			portMapping(8082, 80, overTCP+`,"hostIP":"0.0.0.0"`), portMapping(8083, 80, overTCP+`,"hostIP":"::"`), portMapping(8084, 80, `"protocol":"TCP","hostIP":"`+nstest.HostV6+`"`))))
		for addr, reachable := range map[string]bool{
			nstest.HostV4 + ":8080": true, gateway4 + ":8080": false, nstest.HostV4 + ":8081": false, nstest.HostV4 + ":8082": true,
			"[" + nstest.HostV6 + "]:8082": false, "[" + nstest.HostV6 + "]:8083": true, nstest.HostV4 + ":8083": false,
			"[" + nstest.HostV6 + "]:8084": true, "[" + gateway6 + "]:8084": false,
		} {
			_, err := nstest.Dial(b.containers[1], addr)
			Expect(err == nil).To(Equal(reachable), addr)
		}
		expectAnswer(nstest.Dial, b.Host, "127.0.0.1:8081", gateway4)
	}, backends())

	DescribeTable("that the host forwards is not translated (CVE-2025-67499)", func(backend string) {
		b.OK("ADD", b.call("one", conf(withBackend(backend), both...)))
		b.Outside.Batch(GinkgoTB(), "route add 10.9.0.0/24 via "+nstest.HostV4)
		nstest.ServeTCP(GinkgoTB(), b.Outside, nstest.OutsideV4+":8080")
		nstest.ServeTCP(GinkgoTB(), b.containers[1], peer4+":8080")
		for from, addr := range map[*nstest.NS]string{b.containers[1]: nstest.OutsideV4 + ":8080", b.Outside: peer4 + ":8080", b.Host: nstest.OutsideV4 + ":8080"} {
			reply, err := nstest.Dial(from, addr)
			Expect(err).NotTo(HaveOccurred())
			Expect(reply).To(HaveSuffix("local=" + strings.TrimSuffix(addr, ":8080")))
		}
	}, backends())

	DescribeTable("to a port of a Service goes to the Service (CVE-2019-9946)", func(backend, program, rules string) {
		b.OK("ADD", b.call("one", conf(withBackend(backend), both...)))
		b.load(program, rules)
		nstest.ServeTCP(GinkgoTB(), b.containers[1], peer4+":80")
		reply, err := nstest.Dial(b.Outside, nstest.HostV4+":8080")
		Expect(err).NotTo(HaveOccurred())
		Expect(reply).To(HaveSuffix("local=" + peer4))
	},
		Entry("nftables backend, Service by nftables", backendNFTables, "nft",
			"table ip kube-proxy {\nchain nat-prerouting {\ntype nat hook prerouting priority dstnat\nip daddr "+nstest.HostV4+" tcp dport 8080 dnat to "+peer4+":80\n}\n}\n"),
		Entry("nftables backend, Service by iptables", backendNFTables, "iptables-restore",
			"*nat\n-I PREROUTING -d "+nstest.HostV4+" -p tcp --dport 8080 -j DNAT --to-destination "+peer4+":80\nCOMMIT\n"),
		Entry("iptables backend, Service by iptables", backendIPTables, "iptables-restore",
			"*nat\n-I PREROUTING -d "+nstest.HostV4+" -p tcp --dport 8080 -j DNAT --to-destination "+peer4+":80\nCOMMIT\n"),
	)

	DescribeTable("of another container does not reach 127.0.0.1 of the host (CVE-2020-8558)", func(backend, open string) {
		b.OK("ADD", b.call("one", conf(withBackend(backend), both...)))
		Expect(b.Host.Sysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet")).To(Equal("1"))
		Expect(b.Host.Sysctl(GinkgoTB(), "net/ipv4/conf/all/route_localnet")).To(Equal("0"))
		Expect(b.Host.Sysctl(GinkgoTB(), "net/ipv4/conf/"+nstest.Uplink+"/route_localnet")).To(Equal("0"))
		nstest.ServeTCP(GinkgoTB(), b.Host, "127.0.0.1:9999")
		neighbor := b.containers[1]
		neighbor.SetSysctl(GinkgoTB(), "net/ipv4/conf/eth0/route_localnet", "1")
		neighbor.Batch(GinkgoTB(), "addr del 127.0.0.1/8 dev lo", "route replace 127.0.0.1/32 via "+gateway4+" dev eth0 src "+peer4)
		nstest.MustNotAnswer(GinkgoTB(), neighbor, "127.0.0.1:9999")

		By("reaching it without the rule")
		words := strings.Fields(open)
		b.Host.Must(GinkgoTB(), words[0], words[1:]...)
		_, err := nstest.Dial(neighbor, "127.0.0.1:9999")
		Expect(err).NotTo(HaveOccurred())
	},
		Entry(nil, backendNFTables, "nft flush chain inet plumb localnet"),
		Entry(nil, backendIPTables, "iptables -t raw -F PREROUTING"),
	)

	DescribeTable("must meet the conditions of its own network only", func(backend string, conditions ...string) {
		var texts []string
		for _, c := range conditions {
			texts = append(texts, fmt.Sprintf("%q", c))
		}
		b.OK("ADD", b.call("one", conf(withBackend(backend)+`"conditionsV4":[`+strings.Join(texts, ",")+`],`, both...)))
		other := confFor(withBackend(backend)+`"name":"net2",`, []string{addr4 + "/24"}, portMapping(9090, 80, overTCP))
		b.OK("ADD", b.call("two", other))
		nstest.MustNotAnswer(GinkgoTB(), b.Outside, nstest.HostV4+":8080")
		expectAnswer(nstest.Dial, b.containers[1], nstest.HostV4+":8080", gateway4)
		expectAnswer(nstest.Dial, b.Outside, nstest.HostV4+":9090", nstest.OutsideV4)
		expectAnswer(nstest.Dial, b.Outside, "["+nstest.HostV6+"]:8080", nstest.OutsideV6)
	},
		Entry(nil, backendNFTables, "ip", "saddr", "!=", nstest.OutsideV4),
		Entry(nil, backendIPTables, "!", "-s", nstest.OutsideV4),
	)

	DescribeTable("over UDP from one port reaches the new container at once, and other connections stay", func(backend string) {
		nstest.ServeUDP(GinkgoTB(), b.containers[1], peer4+":80")
		nstest.ServeUDP(GinkgoTB(), b.Outside, nstest.OutsideV4+":8080")
		b.Outside.Batch(GinkgoTB(), "route add 10.9.0.0/24 via "+nstest.HostV4)
		one := b.call("one", conf(withBackend(backend), both...))
		two := b.call("two", confFor(withBackend(backend)+`"name":"net1",`, []string{peer4 + "/24"}, both...))

		// The kernel tracks connections only if a rule needs that.
		b.OK("ADD", b.call("zero", confFor(withBackend(backend)+`"name":"net0",`, []string{addr4 + "/24", addr6 + "/64"}, portMapping(9999, 80, overTCP))))
		newTalker := b.newTalker(b.Outside, nstest.HostV4+":8080")
		passing := b.newTalker(b.containers[1], nstest.OutsideV4+":8080")
		unrelated := b.newTalker(b.Outside, peer4+":80") // the container's port is another one's host port
		talk6 := b.newTalker(b.Outside, "["+nstest.HostV6+"]:8080")
		unrelated6 := b.newTalker(b.containers[1], "["+nstest.OutsideV6+"]:8080")
		nstest.ServeUDP(GinkgoTB(), b.Outside, "["+nstest.OutsideV6+"]:8080")
		b.Outside.Batch(GinkgoTB(), "route add fd00:9::/64 via "+nstest.HostV6)
		for _, addr := range []string{"[" + addr6 + "]:80", "[" + peer6 + "]:80"} { // wait until all addresses of the links are usable
			_, _ = nstest.Dial(b.Host, addr)
		}
		Expect(newTalker()).To(BeEmpty(), "nothing is mapped yet")
		Expect(talk6()).To(BeEmpty())
		Expect(unrelated6()).NotTo(BeEmpty())
		Expect(passing()).NotTo(BeEmpty())
		Expect(unrelated()).NotTo(BeEmpty())
		udpFlows := b.udpFlows("dst=" + nstest.OutsideV4)
		Expect(udpFlows).NotTo(BeEmpty())

		b.OK("ADD", one)
		Expect(newTalker()).To(HaveSuffix("local=" + addr4))
		Expect(talk6()).To(HaveSuffix("local=" + addr6))
		Expect(b.udpFlows("dst=" + nstest.OutsideV6)).To(HaveLen(1))
		b.OK("ADD", two)
		Expect(newTalker()).To(HaveSuffix("local="+peer4), "a port that was taken over")
		taken := b.udpFlows("dst=" + nstest.HostV4)
		b.Fails("REPAIR", one, types.CodeChanged, "belongs to")
		Expect(b.udpFlows("dst=" + nstest.HostV4)).To(Equal(taken))
		b.OK("DEL", two)
		Expect(b.udpFlows("dst=" + nstest.HostV4)).To(BeEmpty())
		Expect(b.udpFlows("dst=" + nstest.OutsideV4)).To(Equal(udpFlows))
		Expect(b.udpFlows("dst=" + peer4)).NotTo(BeEmpty())
		b.OK("DEL", one)
		Expect(b.udpFlows("dst=" + nstest.HostV6)).To(BeEmpty())
		Expect(b.udpFlows("dst=" + nstest.OutsideV6)).To(HaveLen(1))
	}, backends())

	It("reaches a container with a veth pair and no bridge, from 127.0.0.1, itself, outside and another container", func() {
		container := nstest.New(GinkgoTB())
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "veth0", Addrs: []string{"10.8.0.1/32"}}, nstest.End{In: container, Name: "eth0", Addrs: []string{"10.8.0.2/24"}})
		b.Host.Batch(GinkgoTB(), "route add 10.8.0.2 dev veth0")
		container.Batch(GinkgoTB(), "link set lo up", "route add default via 10.8.0.1")
		nstest.ServeTCP(GinkgoTB(), container, "10.8.0.2:80")
		b.OK("ADD", b.call("ptp", confFor(`"name":"net2",`, []string{"10.8.0.2/24"}, portMapping(8088, 80, overTCP))))
		nstest.MustDial(GinkgoTB(), b.Host, "127.0.0.1:8088", "10.8.0.1")
		nstest.MustDial(GinkgoTB(), container, nstest.HostV4+":8088", "10.8.0.1")
		nstest.MustDial(GinkgoTB(), b.Outside, nstest.HostV4+":8088", nstest.OutsideV4)
		nstest.MustDial(GinkgoTB(), b.containers[1], nstest.HostV4+":8088", peer4)
	})

	It("to [::1] reaches the server of the host, because the kernel could not route answers", func() {
		b.OK("ADD", b.call("one", conf("", both...)))
		nstest.ServeTCP(GinkgoTB(), b.Host, "[::1]:8080")
		nstest.MustDial(GinkgoTB(), b.Host, "[::1]:8080", "::1")
	})
})

// newTalker returns a function that sends one datagram and returns the answer, or "" if there is none.
// All datagrams come from the same port.
func (b *testbed) newTalker(from *nstest.NS, addr string) func() string {
	c := dialUDP(from, addr)
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

// udpFlows returns the tracked UDP connections of the host whose original destination is word, such as
// "dst=192.0.2.1".
func (b *testbed) udpFlows(word string) []string {
	GinkgoHelper()
	out := b.Host.Must(GinkgoTB(), "conntrack", "-L", "-p", "udp", "-f", "ipv4") + b.Host.Must(GinkgoTB(), "conntrack", "-L", "-p", "udp", "-f", "ipv6")
	var lines []string
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "src=") }); i >= 0 && words[i+1] == word {
			lines = append(lines, strings.Join(words[i:i+4], " "))
		}
	}
	return lines
}

// dialUDP returns a connected socket, which keeps its port.
func dialUDP(from *nstest.NS, addr string) net.Conn {
	GinkgoHelper()
	var c net.Conn
	Expect(from.Do(func() (err error) {
		c, err = net.Dial("udp", addr)
		return err
	})).To(Succeed())
	DeferCleanup(c.Close)
	return withReadTimeout{c}
}

// withReadTimeout waits three seconds for each answer.
type withReadTimeout struct{ net.Conn }

func (d withReadTimeout) Read(b []byte) (int, error) {
	_ = d.SetReadDeadline(time.Now().Add(3 * time.Second))
	return d.Conn.Read(b)
}
