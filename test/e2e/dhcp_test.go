package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/cnitest"
	"github.com/plumb-cni/plumb/test/nstest"
)

// A dhcpNetwork is a network with the IPAM plugin dhcp, its daemon, and dnsmasq on the outside host. All
// containers are on the segment of the outside host.
type dhcpNetwork struct {
	*testNetwork
	server *nstest.Dnsmasq
	socket string
}

const dhcpIPAM = `"ipam": {"type": "dhcp", "daemonSocketPath": "DIR/dhcp.sock"}`

// A dhcpTest is a list of plugins in which the interface plugin uses dhcp.
type dhcpTest struct {
	plugins string
	prepare func(network *dhcpNetwork) // may be nil
	ports   bool                       // the list contains portmap
}

var (
	dhcpBehindBridge = dhcpTest{
		plugins: `{"type": "bridge", "bridge": "cni0", ` + dhcpIPAM + `},
			{"type": "portmap", "backend": "nftables", "snat": true, "capabilities": {"portMappings": true}},
			{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400}`,
		prepare: func(network *dhcpNetwork) {
			network.Host.Batch(GinkgoTB(), "link add cni0 up type bridge", "link set "+nstest.Uplink+" master cni0",
				"addr flush dev "+nstest.Uplink, "addr add "+nstest.HostV4+"/24 dev cni0")
		},
		ports: true,
	}
	dhcpBehindMacvlan = dhcpTest{plugins: `{"type": "macvlan", "master": "uplink0", ` + dhcpIPAM + `}, {"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400}`}
)

func (t dhcpTest) start(cniVersion string) *dhcpNetwork {
	GinkgoHelper()
	nstest.LeakCheck(GinkgoTB())
	network := &dhcpNetwork{testNetwork: newNetwork(cniVersion, t.plugins)}
	network.socket = filepath.Join(network.Dir, "dhcp.sock")
	if t.prepare != nil {
		t.prepare(network)
	}
	network.server = nstest.StartDnsmasq(GinkgoTB(), nstest.End{In: network.Outside, Name: nstest.Uplink}, "--dhcp-range=198.18.0.100,198.18.0.200,255.255.255.0,1h")
	network.startDaemon()
	return network
}

// startDaemon starts the executable and waits for its socket, because libcni calls STATUS only from version 1.1.0 on.
func (network *dhcpNetwork) startDaemon() {
	GinkgoHelper()
	cmd := exec.Command(filepath.Join(network.CNI.Path[0], "dhcp"), "daemon", "-socketpath", network.socket, "-resendmax", "200ms")
	cmd.Stderr = GinkgoWriter
	Expect(network.Host.Start(cmd)).To(Succeed())
	DeferCleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	Eventually(network.socket).Should(BeAnExistingFile())
	Expect(network.Status()).To(Succeed())
}

// addLeased calls ADD for a new container, which must succeed. The container's host port is 8000 + nth.
func (network *dhcpNetwork) addLeased(id string, nth int32) *container {
	GinkgoHelper()
	p := cnitest.NewContainer(id)
	p.RT.CapabilityArgs = map[string]any{"portMappings": []portMapping{{firstPort + nth, 80, "tcp", ""}}}
	Expect(network.Add(p)).To(Succeed())
	Expect(p.Addrs()).To(HaveLen(1))
	network.server.AwaitLog(GinkgoTB(), "DHCPACK("+nstest.Uplink+") "+p.V4.String())
	return p
}

// expectRelease waits until dnsmasq has received the container's RELEASE.
func (network *dhcpNetwork) expectRelease(p *container) {
	GinkgoHelper()
	network.server.AwaitLog(GinkgoTB(), "DHCPRELEASE("+nstest.Uplink+") "+p.V4.String())
	Eventually(network.server.HasLease).WithArguments(p.V4.String()).Should(BeFalse())
}

func (network *dhcpNetwork) files() []string {
	all, _ := filepath.Glob(filepath.Join(filepath.Dir(network.socket), "dhcp", "[^.]*"))
	return all
}

// expectTraffic connects between the containers and the outside host.
func (network *dhcpNetwork) expectTraffic(containers ...*container) {
	GinkgoHelper()
	toOutside := nstest.ServeTCP(GinkgoTB(), network.Outside, nstest.OutsideV4+":0").String()
	for i, p := range containers {
		nstest.MustDial(GinkgoTB(), p.NS, toOutside, p.V4.String())
		addr := nstest.ServeTCP(GinkgoTB(), p.NS, p.V4.String()+":0").String()
		nstest.MustDial(GinkgoTB(), network.Outside, addr, nstest.OutsideV4)
		other := containers[(i+1)%len(containers)]
		nstest.MustDial(GinkgoTB(), other.NS, addr, other.V4.String())
	}
}

// expectChain checks the effects of portmap and tuning.
func (network *dhcpNetwork) expectChain(t dhcpTest, p *container, nth int32) {
	GinkgoHelper()
	Expect(p.MustLine(GinkgoTB(), "ip link show eth0")).To(ContainSubstring(" mtu 1400 "))
	if t.ports {
		nstest.ServeTCP(GinkgoTB(), p.NS, p.V4.String()+":80")
		nstest.MustDial(GinkgoTB(), network.Host, fmt.Sprintf("%s:%d", nstest.HostV4, firstPort+nth), "")
	}
}

var _ = Describe("dhcp", func() {
	DescribeTable("connects containers from ADD to DEL", func(t dhcpTest, cniVersion string) {
		network := t.start(cniVersion)
		existing := network.addLeased("existing", 0)
		before := nstest.WaitStable(network.state)
		a, b := network.addLeased("a", 1), network.addLeased("b", 2)
		expectCheck(network.testNetwork, cniVersion, a, b)
		network.expectTraffic(a, b)
		network.expectChain(t, a, 1)

		By("GC")
		Expect(network.GC(existing, a, b)).To(Succeed())
		Expect(network.files()).To(HaveLen(3))
		expectCheck(network.testNetwork, cniVersion, existing, a, b)
		if cniVersion == "1.1.0" {
			Expect(network.WithoutCache(func() error { return network.GC(existing, a) })).To(Succeed())
			network.expectRelease(b)
			c := network.addLeased("c", 3)
			Expect(network.GC(existing, a)).To(Succeed()) // libcni calls DEL for b and c, which its cache contains
			network.expectRelease(c)
			Expect(network.files()).To(HaveLen(2))
			expectCheck(network.testNetwork, cniVersion, existing, a)
			network.expectTraffic(existing, a)
		}

		By("DEL")
		Expect(network.Del(a)).To(Succeed())
		network.expectRelease(a)
		Expect(network.WithoutCache(func() error { return network.Del(a.IDOnly()) })).To(Succeed())
		Expect(network.Del(b)).To(Succeed())
		Expect(network.files()).To(HaveLen(1))
		Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "objects remain after DEL")

		By("DEL after the end of the namespace, with only the container ID and the interface name")
		existing.Remove(GinkgoTB())
		Expect(network.WithoutCache(func() error { return network.Del(existing.IDOnly()) })).To(Succeed())
		Expect(network.files()).To(BeEmpty())
	},
		Entry("bridge, portmap and tuning, version 0.3.1", dhcpBehindBridge, "0.3.1"),
		Entry("bridge, portmap and tuning, version 1.0.0", dhcpBehindBridge, "1.0.0"),
		Entry("bridge, portmap and tuning, version 1.1.0", dhcpBehindBridge, "1.1.0"),
		Entry("macvlan and tuning, version 1.0.0", dhcpBehindMacvlan, "1.0.0"),
		Entry("macvlan and tuning, version 1.1.0", dhcpBehindMacvlan, "1.1.0"),
	)
})
