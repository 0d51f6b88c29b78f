package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("behind an interface plugin, with the executables and dnsmasq", func() {
	var b *testbed
	BeforeEach(func() {
		nstest.LeakCheck(GinkgoTB())
		node, pod := nstest.NewNodeAndPod(GinkgoTB())
		b = &testbed{lan: node, pod: pod, socket: filepath.Join(GinkgoTB().TempDir(), "dhcp.sock")}
	})

	DescribeTable("ADD, CHECK and DEL work with",
		func(plugin, keys string) {
			router := nstest.New(GinkgoTB()).Named("router")
			nstest.Join(GinkgoTB(), nstest.End{In: b.lan, Name: "up0"}, nstest.End{In: router, Name: "lan0", Addrs: []string{"10.50.0.1/24"}})
			if plugin == "bridge" {
				b.lan.Batch(GinkgoTB(), "link add br0 up type bridge", "link set up0 master br0")
			}
			server := nstest.StartDnsmasq(GinkgoTB(), nstest.End{In: router, Name: "lan0"}, "--dhcp-range=10.50.0.10,10.50.0.50,255.255.255.0,2m", "--dhcp-option=option:mtu,1400", "--dhcp-option=option:domain-name,example.org", "--dhcp-option=option:dns-server,10.50.0.1")
			bin := nstest.Build(GinkgoTB(), plugin, "dhcp")
			b.startDaemon()
			c := nstest.Call{ContainerID: "m1", Node: b.lan, Pod: b.pod, Path: bin, Config: fmt.Sprintf(
				`{"cniVersion":"1.1.0","name":"d","type":%q,%s,"ipam":{"type":"dhcp","daemonSocketPath":%q,"mtu":true}}`, plugin, keys, b.socket)}
			call := func(command string) nstest.Reply {
				return nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), c.With(command)).OK(GinkgoTB())
			}
			added := call("ADD")
			result := added.Result(GinkgoTB())
			eth := slices.IndexFunc(result.Interfaces, func(i types.Interface) bool { return i.Name == "eth0" })
			Expect(result.Interfaces[eth].MTU).To(Equal(1400))
			Expect(result.DNS.Nameservers).To(Equal([]string{"10.50.0.1"}))
			Expect(result.DNS.Domain).To(Equal("example.org"))
			Expect(b.pod.MustLine(GinkgoTB(), "ip link show eth0")).To(ContainSubstring("mtu 1400"))
			Expect(b.pod.MustLine(GinkgoTB(), "ip route")).To(ContainSubstring("default via 10.50.0.1 dev eth0"))
			b.pod.MustLine(GinkgoTB(), "ping -c 1 -w 30 10.50.0.1")
			addr := result.IPs[0].Address.Addr().String()
			Expect(server.HasLease(addr)).To(BeTrue())
			c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
			call("CHECK")
			call("DEL")
			server.AwaitLog(GinkgoTB(), "DHCPRELEASE(lan0) "+addr)
			Eventually(server.HasLease).WithArguments(addr).Should(BeFalse())
			Expect(b.files()).To(BeEmpty())
			call("DEL")
		},
		Entry("bridge", "bridge", `"bridge":"br0"`),
		Entry("macvlan", "macvlan", `"master":"up0"`),
	)
})

var _ = It("survives the fault sweep", func() {
	b := &testbed{socket: filepath.Join(GinkgoTB().TempDir(), "dhcp.sock")}
	b.runDaemon()
	pods := 0
	nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
		Plugin: plugin(),
		Config: b.conf("1.1.0", ""),
		Dirs:   []string{strings.TrimSuffix(b.socket, ".sock")},
		Prepare: func(node, _ *nstest.NS) {
			b.lan = node
			node.Batch(GinkgoTB(), "link add br0 up type bridge", "addr add "+serverAddr+"/24 dev br0")
			b.server = nstest.StartDHCPServer(GinkgoTB(), nstest.End{In: node, Name: "br0", Addrs: []string{serverAddr + "/24"}}, lease)
		},
		PreparePod: func(pod *nstest.NS) {
			pods++
			name := fmt.Sprintf("pod%d", pods)
			b.join(pod, name)
			b.lan.MustLine(GinkgoTB(), "ip link set "+name+" master br0")
		},
	})
})
