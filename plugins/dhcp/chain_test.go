package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// served contains dnsmasq's flags for addresses and options.
var served = []string{"--dhcp-range=10.50.0.10,10.50.0.50,255.255.255.0,2m", "--dhcp-option=option:mtu,1400",
	"--dhcp-option=option:domain-name,example.org", "--dhcp-option=option:dns-server,10.50.0.1"}

// An interfacePlugin is an interface plugin that calls dhcp.
type interfacePlugin struct {
	name, keys string
	prepare    func(b *testbed, router *nstest.NS) // may be nil
	serve      string                              // the router's interface that reaches the container
}

func (p interfacePlugin) call(b *testbed) nstest.Call {
	c := b.call("")
	c.Config = fmt.Sprintf(`{"cniVersion":"1.1.0","name":"d","type":%q,%s,"ipam":{"type":"dhcp","daemonSocketPath":%q,"mtu":true}}`, p.name, p.keys, b.socket)
	return c
}

// exec calls the executable.
func (p interfacePlugin) exec(command string, c nstest.Call) nstest.Reply {
	GinkgoHelper()
	return nstest.Exec(GinkgoTB(), filepath.Join(c.Path, p.name), c.With(command))
}

// newRouterSegment returns a testbed whose host is connected to a router. The host's end is up0, and the router's end is
// lan0. The testbed's Path contains the executables of dhcp and of the interface plugin.
func newRouterSegment(p interfacePlugin) (b *testbed, router *nstest.NS) {
	GinkgoHelper()
	b, router = newBed("dhcp", p.name), nstest.New(GinkgoTB()).Named("router")
	nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "up0"}, nstest.End{In: router, Name: "lan0", Addrs: []string{serverAddr + "/24"}})
	if p.prepare != nil {
		p.prepare(b, router)
	}
	return b, router
}

// requireKind skips the spec if the kernel cannot create a link of the kind.
func requireKind(b *testbed, feature, kind string) {
	GinkgoHelper()
	_, err := b.Host.Exec("ip", strings.Fields("link add link up0 name try0 type "+kind)...)
	nstest.RequireFeature(GinkgoTB(), feature, err)
	b.Host.Batch(GinkgoTB(), "link del try0")
}

var (
	behindBridge = interfacePlugin{
		name: "bridge", keys: `"bridge":"br0"`, serve: "lan0",
		prepare: func(b *testbed, _ *nstest.NS) {
			b.Host.Batch(GinkgoTB(), "link add br0 up type bridge", "link set up0 master br0")
		},
	}
	behindMacvlan    = interfacePlugin{name: "macvlan", keys: `"master":"up0"`, serve: "lan0"}
	behindHostDevice = interfacePlugin{name: "host-device", keys: `"device":"up0"`, serve: "lan0"}
	behindIPVlan     = interfacePlugin{
		name: "ipvlan", keys: `"master":"up0"`, serve: "lan0",
		prepare: func(b *testbed, _ *nstest.NS) { requireKind(b, "ipvlan", "ipvlan") },
	}
	behindVLAN = interfacePlugin{
		name: "vlan", keys: `"master":"up0","vlanId":100`, serve: "tagged",
		prepare: func(b *testbed, router *nstest.NS) {
			requireKind(b, "8021q", "vlan id 100")
			router.Batch(GinkgoTB(), "link add link lan0 name tagged type vlan id 100", "addr del "+serverAddr+"/24 dev lan0",
				"addr add "+serverAddr+"/24 dev tagged", "link set tagged up")
		},
	}
)

var _ = Describe("behind an interface plugin, with the executables and dnsmasq", func() {
	DescribeTable("ADD, CHECK and DEL work with",
		func(p interfacePlugin) {
			b, router := newRouterSegment(p)
			server := nstest.StartDnsmasq(GinkgoTB(), nstest.End{In: router, Name: p.serve}, served...)
			b.startDaemon()
			c := p.call(b)
			call := func(command string) nstest.Reply { return p.exec(command, c).OK(GinkgoTB()) }
			added := call("ADD")
			result := added.Result(GinkgoTB())
			eth := slices.IndexFunc(result.Interfaces, func(i types.Interface) bool { return i.Name == "eth0" })
			Expect(result.Interfaces[eth].MTU).To(Equal(1400))
			Expect(result.DNS.Nameservers).To(Equal([]string{"10.50.0.1"}))
			Expect(result.DNS.Domain).To(Equal("example.org"))
			Expect(b.container.MustLine(GinkgoTB(), "ip link show eth0")).To(ContainSubstring("mtu 1400"))
			Expect(b.container.MustLine(GinkgoTB(), "ip route")).To(ContainSubstring("default via 10.50.0.1 dev eth0"))
			b.container.MustLine(GinkgoTB(), "ping -c 1 -w 30 10.50.0.1")
			addr := result.IPs[0].Address.Addr().String()
			Expect(server.HasLease(addr)).To(BeTrue())
			c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
			call("CHECK")
			call("DEL")
			server.AwaitLog(GinkgoTB(), "DHCPRELEASE("+p.serve+") "+addr)
			Eventually(server.HasLease).WithArguments(addr).Should(BeFalse())
			Expect(b.files()).To(BeEmpty())
			Expect(b.container.MustLine(GinkgoTB(), "ip -o link")).NotTo(ContainSubstring("eth0"))
			Expect(b.Host.MustLine(GinkgoTB(), "ip link show up0")).To(ContainSubstring("mtu 1500"))
			call("DEL")
		},
		Entry("bridge", behindBridge),
		Entry("macvlan", behindMacvlan),
		Entry("host-device", behindHostDevice),
		Entry("vlan", Label(nstest.Kernel), behindVLAN),
		Entry("ipvlan", Label(nstest.Kernel), behindIPVlan),
	)

	DescribeTable("after the server assigned another address, CHECK names both and gives advice, and a new ADD returns the new address, with",
		func(p interfacePlugin) {
			b, router := newRouterSegment(p)
			short := nstest.DHCPLease{Address: "10.50.0.5/24", Duration: 60 * time.Second, Renew: time.Second, Rebind: 50 * time.Second}
			server := nstest.StartDHCPServer(GinkgoTB(), nstest.End{In: router, Name: "lan0", Addrs: []string{serverAddr + "/24"}}, short)
			b.startDaemon()
			c := p.call(b)
			call := func(command string) nstest.Reply { return p.exec(command, c) }
			added := call("ADD").OK(GinkgoTB())
			config := c.Config
			c.Config = nstest.WithPrevResult(config, added.Stdout)
			call("CHECK").OK(GinkgoTB())
			short.Address = "10.50.0.6/24"
			server.Lease(short)
			Eventually(func() string { return b.container.MustLine(GinkgoTB(), "ip -4 -br addr show eth0") }).Should(ContainSubstring("10.50.0.6/24"))
			Eventually(b.record).Should(ContainSubstring(`"10.50.0.6/24"`))
			call("CHECK").RequireFailure(GinkgoTB(), types.CodeChanged,
				"prevResult lacks the lease's address 10.50.0.6/24: the DHCP server has changed the address; delete the attachment and add it again",
				"eth0 has no address 10.50.0.5/24")
			call("DEL").OK(GinkgoTB())
			c.Config = config
			Expect(call("ADD").Result(GinkgoTB()).IPs[0].Address.String()).To(Equal("10.50.0.6/24"))
			call("DEL").OK(GinkgoTB())
		},
		Entry("bridge", behindBridge),
		Entry("macvlan", behindMacvlan),
	)

	DescribeTable("an address with prefix length 32 reaches its router by a route on the link, with",
		func(p interfacePlugin) {
			b, router := newRouterSegment(p)
			router.Batch(GinkgoTB(), "addr add 10.60.0.1/24 dev lan0")
			nstest.StartDHCPServer(GinkgoTB(), nstest.End{In: router, Name: "lan0", Addrs: []string{"10.60.0.1/24"}}, nstest.DHCPLease{
				Address: "10.60.0.5/32", Duration: time.Hour,
				Options: map[uint8][]byte{3: {10, 60, 0, 1}, 121: {32, 10, 60, 0, 1, 0, 0, 0, 0, 0, 10, 60, 0, 1}},
			})
			b.startDaemon()
			c := p.call(b)
			call := func(command string) nstest.Reply { return p.exec(command, c).OK(GinkgoTB()) }
			c.Config = nstest.WithPrevResult(c.Config, call("ADD").Stdout)
			b.container.MustLine(GinkgoTB(), "ping -c 1 -w 30 "+serverAddr)
			call("CHECK")
			call("DEL")
		},
		Entry("bridge", behindBridge),
		Entry("macvlan", behindMacvlan),
	)

	It("two ipvlans on one master, which share a MAC, get different addresses and renew them", Label(nstest.Kernel), func() {
		b, router := newRouterSegment(behindIPVlan)
		server := nstest.StartDnsmasq(GinkgoTB(), nstest.End{In: router, Name: "lan0"}, append(served, "--dhcp-option=option:T1,5")...)
		b.startDaemon()
		first := behindIPVlan.call(b)
		second := first
		second.ContainerID, second.Container = "m2", nstest.New(GinkgoTB()).Named("second")
		call := func(command string, c nstest.Call) nstest.Reply { return behindIPVlan.exec(command, c).OK(GinkgoTB()) }
		add := func(c nstest.Call) (mac, addr string) {
			GinkgoHelper()
			result := call("ADD", c).Result(GinkgoTB())
			addr = result.IPs[0].Address.Addr().String()
			server.AwaitLog(GinkgoTB(), "broadcast response")
			server.AwaitLog(GinkgoTB(), "DHCPACK(lan0) "+addr)
			return result.Interfaces[0].MAC, addr
		}
		mac1, addr1 := add(first)
		mac2, addr2 := add(second)
		Expect(mac1).To(Equal(mac2))
		Expect(addr1).NotTo(Equal(addr2))
		first.Container.MustLine(GinkgoTB(), "ping -c 1 -w 30 "+addr2)
		By("renewal")
		for _, addr := range []string{addr1, addr2} {
			server.AwaitLog(GinkgoTB(), "DHCPACK(lan0) "+addr)
		}
		By("DEL")
		call("DEL", first)
		server.AwaitLog(GinkgoTB(), "DHCPRELEASE(lan0) "+addr1)
		Expect(server.HasLease(addr2)).To(BeTrue())
		second.Container.MustLine(GinkgoTB(), "ping -c 1 -w 30 10.50.0.1")
		call("DEL", second)
		server.AwaitLog(GinkgoTB(), "DHCPRELEASE(lan0) "+addr2)
		Expect(b.files()).To(BeEmpty())
	})
})

var _ = It("survives the fault sweep", func() {
	b := newBed()
	b.runDaemon()
	containers := 0
	nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
		Plugin: b.Plugin,
		Config: b.conf("1.1.0", ""),
		Dirs:   []string{strings.TrimSuffix(b.socket, ".sock")},
		Prepare: func(host, _ *nstest.NS) {
			b.Host = host
			host.Batch(GinkgoTB(), "link add br0 up type bridge", "addr add "+serverAddr+"/24 dev br0")
			b.server = nstest.StartDHCPServer(GinkgoTB(), nstest.End{In: host, Name: "br0", Addrs: []string{serverAddr + "/24"}}, lease)
		},
		PrepareContainer: func(container *nstest.NS) {
			containers++
			name := fmt.Sprintf("container%d", containers)
			b.join(container, name)
			b.Host.MustLine(GinkgoTB(), "ip link set "+name+" master br0")
		},
	})
})
