package e2e

import (
	"fmt"
	"net"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// containerdPlugins contains the plugins of the list in containerd's documentation, and tuning.
const containerdPlugins = `
	{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "BACKEND", "hairpinMode": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]}},
	{"type": "portmap", "backend": "BACKEND", "snat": true, "capabilities": {"portMappings": true}},
	{"type": "bandwidth", "capabilities": {"bandwidth": true}},
	{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`

// These are the capability arguments in containerd's form. The keys begin with a capital letter,
// because containerd's structs have no JSON tags.
type (
	portMapping struct {
		HostPort, ContainerPort int32
		Protocol, HostIP        string
	}
	bandwidth struct{ IngressRate, IngressBurst, EgressRate, EgressBurst uint64 }
)

// A chainNetwork is a network with containerdPlugins. Its containers get host ports and bandwidth
// limits.
type chainNetwork struct {
	*testNetwork
	backend string
	ports   int32 // the number of allocated host ports
}

const firstPort = 8000

func newChainNetwork(cniVersion, backend string) *chainNetwork {
	GinkgoHelper()
	return &chainNetwork{testNetwork: newNetwork(cniVersion, strings.ReplaceAll(containerdPlugins, "BACKEND", backend)), backend: backend}
}

// newContainer returns a new container that is not attached, and its host port, which maps to port 80.
func (network *chainNetwork) newContainer(id string) (*container, int32) {
	GinkgoHelper()
	p := cnitest.NewContainer(id)
	network.ports++
	port := firstPort + network.ports
	p.RT.CapabilityArgs = map[string]any{
		"portMappings": []portMapping{{port, 80, "tcp", ""}, {port, 80, "udp", ""}},
		"bandwidth":    bandwidth{80_000_000, 4294967295, 40_000_000, 4294967295},
	}
	return p, port
}

func (network *chainNetwork) addContainer(id string) (*container, int32) {
	GinkgoHelper()
	p, port := network.newContainer(id)
	Expect(network.add(p)).To(Succeed())
	return p, port
}

// expectHostPort connects to the host port from each kind of client, over TCP and UDP, IPv4 and IPv6.
// The connections must reach p.
func (network *chainNetwork) expectHostPort(p, other *container, port int32) {
	GinkgoHelper()
	const gateway4, gateway6 = "10.1.0.1", "fd00:1::1"
	for _, client := range []struct {
		name     string
		from     *nstest.NS
		at, seen string // the host address, and the client address that p sees; "" for any
	}{
		{"from outside", network.Outside, nstest.HostV4, nstest.OutsideV4},
		{"from outside", network.Outside, nstest.HostV6, nstest.OutsideV6},
		{"from another container", other.NS, nstest.HostV4, gateway4},
		{"from another container", other.NS, nstest.HostV6, gateway6},
		{"from another container, at its gateway", other.NS, gateway4, gateway4},
		{"from another container, at its gateway", other.NS, gateway6, gateway6},
		{"from the host", network.Host, nstest.HostV4, ""},
		{"from the host", network.Host, nstest.HostV6, ""},
		{"from the host's 127.0.0.1", network.Host, "127.0.0.1", gateway4},
		{"from the container itself", p.NS, nstest.HostV4, gateway4},
		{"from the container itself", p.NS, nstest.HostV6, gateway6},
	} {
		addr, local := fmt.Sprintf("%s:%d", client.at, port), p.V4
		if strings.Contains(client.at, ":") {
			addr, local = fmt.Sprintf("[%s]:%d", client.at, port), p.V6
		}
		for protocol, dial := range map[string]func(*nstest.NS, string) (string, error){"TCP": nstest.Dial, "UDP": nstest.DialUDP} {
			reply, err := dial(client.from, addr)
			Expect(err).NotTo(HaveOccurred(), "%s %s, %s", protocol, addr, client.name)
			Expect(reply).To(HaveSuffix(" local="+local.String()), "%s %s, %s", protocol, addr, client.name)
			Expect(reply).To(HavePrefix("peer="+client.seen), "%s %s, %s", protocol, addr, client.name)
		}
	}
}

// serveHostPort starts servers at port 80 of the container, to which its host port maps.
func serveHostPort(p *container) {
	GinkgoHelper()
	for _, addr := range p.Addrs() {
		addr = net.JoinHostPort(addr, "80")
		nstest.ServeTCP(GinkgoTB(), p.NS, addr)
		nstest.ServeUDP(GinkgoTB(), p.NS, addr)
	}
}

// expectLimits checks that bandwidth and tuning have set what the list configures.
func (network *chainNetwork) expectLimits(p *container) {
	GinkgoHelper()
	qdiscs := network.Host.Must(GinkgoTB(), "tc", "qdisc", "show")
	Expect(qdiscs).To(ContainSubstring(" rate 80Mbit burst 500000b "), "want a burst of 50 ms, although containerd passes 4294967295")
	Expect(qdiscs).To(ContainSubstring(" rate 40Mbit burst 250000b "))
	Expect(p.Must(GinkgoTB(), "ip", "link", "show", "eth0")).To(ContainSubstring(" mtu 1400 "))
	Expect(p.Sysctl(GinkgoTB(), "net/ipv4/conf/eth0/arp_filter")).To(Equal("1"))
}

// testChain calls all verbs for several containers, and checks what each plugin of the list has done.
func (network *chainNetwork) testChain() {
	GinkgoHelper()
	ports := map[*container]int32{}
	var served int32 // the host port of the first container with servers
	network.testContainers(func(id string) *container {
		GinkgoHelper()
		p, port := network.addContainer(id)
		ports[p] = port
		return p
	}, func(a, b *container) {
		if served == 0 {
			served = ports[a]
			serveHostPort(a)
		}
		network.expectLimits(a)
		network.expectHostPort(a, b, served)
		expectTraffic(network.testNetwork, a, b)
	})
	_, err := nstest.Dial(network.Outside, fmt.Sprintf("%s:%d", nstest.HostV4, served))
	Expect(err).To(HaveOccurred(), "the port of a deleted container must be closed")
}

var _ = Describe("the plugin chain of containerd's documentation", func() {
	DescribeTable("connects containers from ADD to DEL", func(cniVersion, backend string) {
		nstest.LeakCheck(GinkgoTB())
		newChainNetwork(cniVersion, backend).testChain()
	}, EntryDescription("version %s, %s"),
		Entry(nil, "0.3.1", "nftables"), Entry(nil, "1.1.0", "iptables"))

	It("needs no external program with nftables, in version 1.1.0", func() {
		nstest.LeakCheck(GinkgoTB())
		network := newChainNetwork("1.1.0", "nftables")
		network.HidePrograms()
		network.testChain()
	})

	It("adds and deletes 60 containers, 16 at a time", func() {
		nstest.LeakCheck(GinkgoTB())
		network := newChainNetwork("1.1.0", "nftables")
		network.addContainer("existing")
		before := nstest.WaitStable(network.state)
		containers := make([]*container, 60)
		for i := range containers {
			containers[i], _ = network.newContainer(fmt.Sprintf("container%d", i))
		}
		Expect(concurrently(16, containers, network.add)).To(BeEmpty())
		Expect(nstest.Compare(sharedLines(before), sharedLines(network.state()))).To(BeEmpty(), "shared objects changed")
		Expect(network.reservations()).To(HaveLen(2*61), "one reservation per address")
		Expect(concurrently(16, containers, network.Check)).To(BeEmpty())
		for i, p := range containers {
			nstest.ServeTCP(GinkgoTB(), p.NS, p.V4.String()+":80")
			reply, err := nstest.Dial(network.Outside, fmt.Sprintf("%s:%d", nstest.HostV4, firstPort+2+i)) // the container "existing" uses the first port
			Expect(err).NotTo(HaveOccurred())
			Expect(reply).To(Equal("peer=" + nstest.OutsideV4 + " local=" + p.V4.String()))
		}
		Expect(concurrently(16, containers, network.Del)).To(BeEmpty())
		Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty())
	})
})

// sharedLines returns the lines of a state for objects that attachments share, which are tables,
// chains, rules and the bridge.
func sharedLines(state string) string {
	var lines []string
	for line := range strings.SplitSeq(state, "\n") {
		if strings.HasPrefix(line, "host: nft ") && !strings.HasPrefix(line, "host: nft element ") || strings.HasPrefix(line, "host: link cni0 ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
