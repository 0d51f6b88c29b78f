package main

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// families contains an IPv4 and an IPv6 address.
type families [2]string

// The addresses of two Services in testdata/kube-proxy-*, of their endpoint, of the host and of the container with host
// ports. The Service api has the port 443, and web has the port 8080 and the NodePort 30080.
var (
	apiAddrs       = families{"10.96.0.10", "fd00:96::10"}
	webAddrs       = families{"10.96.0.11", "fd00:96::11"}
	podAddrs       = families{"10.8.0.2", "fd00:8::2"}
	hostAddrs      = families{nstest.HostV4, nstest.HostV6}
	containerAddrs = families{addr4, addr6}
)

// addPod adds a container that is the endpoint of the Services. It is not on the bridge, because replies to other
// containers there would not pass through the host.
func (b *testbed) addPod() {
	GinkgoHelper()
	pod := nstest.New(GinkgoTB()).Named("pod")
	nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "pod0", Addrs: []string{"10.8.0.1/24", "fd00:8::1/64"}},
		nstest.End{In: pod, Name: "eth0", Addrs: []string{podAddrs[0] + "/24", podAddrs[1] + "/64"}})
	pod.Batch(GinkgoTB(), "route add default via 10.8.0.1", "route add default via fd00:8::1")
	b.Outside.Batch(GinkgoTB(), "route add 10.96.0.0/16 via "+nstest.HostV4, "route add fd00:96::/108 via "+nstest.HostV6)
	for _, addr := range podAddrs {
		nstest.ServeTCP(GinkgoTB(), pod, net.JoinHostPort(addr, "9090"))
	}
}

// loadKubeProxy loads the rules that kube-proxy added in that mode. Like kube-proxy, it adds the jumps to its chains of
// iptables before all other rules.
func (b *testbed) loadKubeProxy(mode string) {
	GinkgoHelper()
	for suffix, program := range map[string]string{"iptables.rules": "iptables-restore", "ip6tables.rules": "ip6tables-restore", "nftables.nft": "nft"} {
		if mode == "nftables" != (program == "nft") {
			continue
		}
		rules := nstest.ReadFile(GinkgoTB(), filepath.Join("testdata", "kube-proxy-"+suffix))
		b.load(program, regexp.MustCompile(`(?m)^-A ([A-Z]+) `).ReplaceAllString(rules, "-I $1 "))
	}
}

// expectServer expects that connections to a port of both addresses reach the servers with these local addresses.
func expectServer(from *nstest.NS, to families, port int, local families) {
	GinkgoHelper()
	for i, addr := range to {
		target := net.JoinHostPort(addr, strconv.Itoa(port))
		reply, err := nstest.Dial(from, target)
		Expect(err).NotTo(HaveOccurred(), target)
		Expect(reply).To(HaveSuffix("local="+local[i]), target)
	}
}

var _ = Describe("beside kube-proxy in its modes iptables and nftables", func() {
	var entries []TableEntry
	for _, mode := range []string{"iptables", "nftables"} {
		for _, backend := range []string{"", backendIPTables} { // the default is nftables
			entries = append(entries, Entry(nil, mode, backend, false), Entry(nil, mode, backend, true))
		}
	}

	DescribeTable("a Service gets the packets to its addresses, and a host port those to the host", func(mode, backend string, addFirst bool) {
		b := newTestbed()
		b.serve()
		b.addPod()
		keys := ""
		if backend != "" {
			keys = withBackend(backend)
		}
		c := b.call("one", conf(keys, portMapping(443, 80, overTCP), portMapping(8080, 80, overTCP), portMapping(30080, 80, overTCP)))
		if addFirst {
			b.OK("ADD", c)
		}
		b.loadKubeProxy(mode)
		if !addFirst {
			b.OK("ADD", c)
		}

		nodePort, otherAddr := podAddrs, podAddrs
		if mode == "nftables" {
			otherAddr = containerAddrs // kube-proxy translates NodePorts at the node's own addresses only
			if backend == backendIPTables && !addFirst {
				nodePort = containerAddrs // portmap's chains are younger, and have the same priority
			}
		}
		for _, from := range []*nstest.NS{b.Outside, b.Host, b.containers[0], b.containers[1]} {
			expectServer(from, apiAddrs, 443, podAddrs)
			expectServer(from, webAddrs, 8080, podAddrs)
			for _, port := range []int{443, 8080} {
				expectServer(from, hostAddrs, port, containerAddrs)
			}
			expectServer(from, hostAddrs, 30080, nodePort)
		}
		expectServer(b.containers[1], families{gateway4, gateway6}, 30080, otherAddr)
		b.OK("CHECK", c)
		b.OK("DEL", c)
		expectServer(b.Outside, hostAddrs, 30080, podAddrs)
	}, func(mode, backend string, addFirst bool) string {
		return fmt.Sprintf("kube-proxy %s, portmap %q, ADD first: %t", mode, backend, addFirst)
	}, entries)
})
