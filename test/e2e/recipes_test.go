package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// howTo contains the lists of docs/how-to, with the tests of their packets.
var howTo = []recipe{
	{name: "dual-stack", request: goCNI, traffic: expectPublished},
	{name: "fixed", request: requestFixed, traffic: expectFixed},
	{name: "vms", request: requestMAC, traffic: expectSameAddress},
	{name: "services", request: goCNI, traffic: expectConflict},
	{name: "limited", traffic: expectQdiscs},
	{name: "storage", prepare: (*testNetwork).joinSegment, request: requestSegment, traffic: expectSegment},
	{name: "backend", prepare: (*testNetwork).joinSegment, traffic: expectTwoRouters},
	{name: "cameras", prepare: (*testNetwork).joinSegment, traffic: expectHost},
	{name: "tenant-blue", needs: "vrf", prepare: (*testNetwork).joinSegment, traffic: expectVRF},
	{name: "lan", prepare: (*testNetwork).serveDHCP, traffic: expectSegment},
	{name: "access", needs: "VLAN filtering of bridges", prepare: (*testNetwork).joinTrunk, traffic: expectAccess},
	{name: "trunk", needs: "VLAN filtering of bridges", prepare: (*testNetwork).joinTrunk, traffic: expectTrunk},
	{name: "fcnet", traffic: expectVM},
	{name: "aws-cni", prepare: (*testNetwork).replaceAWS, request: goCNI, traffic: expectPublished},
}

// These are the addresses on the segment of the pages.
const (
	segmentHost   = "192.0.2.9"
	segmentRouter = "192.0.2.1"
	fixedMAC      = "02:00:00:00:00:77"
)

// joinSegment creates eth1, whose segment contains the outside host as router.
func (network *testNetwork) joinSegment() {
	nstest.Join(GinkgoTB(), nstest.End{In: network.Host, Name: "eth1", Addrs: []string{segmentHost + "/24"}},
		nstest.End{In: network.Outside, Name: "eth1", Addrs: []string{segmentRouter + "/24", "192.0.2.2/24", "198.51.100.1/24"}})
}

func requestFixed(c *container) {
	c.RT.CapabilityArgs = map[string]any{"ips": []string{"10.7.0.77/24"}, "mac": fixedMAC}
}

func requestMAC(c *container) { c.RT.CapabilityArgs = map[string]any{"mac": fixedMAC} }

func requestSegment(c *container) {
	c.RT.CapabilityArgs = map[string]any{"ips": []string{"192.0.2.120/24"}}
}

func expectFixed(network *testNetwork, c *container) {
	Expect(c.Addrs()).To(Equal([]string{"10.7.0.77"}))
	Expect(c.IP("-br link show eth0")).To(ContainSubstring(fixedMAC))
	c.Must(GinkgoTB(), "ping", "-c", "1", "-W", "60", nstest.OutsideV4)
}

// expectSameAddress replaces the container by another one with the same MAC, after the network has assigned another
// address.
func expectSameAddress(network *testNetwork, c *container) {
	first := c.Addrs()
	Expect(network.Del(c)).To(Succeed())
	other, next := cnitest.NewContainer("other"), cnitest.NewContainer("next")
	next.RT.CapabilityArgs = c.RT.CapabilityArgs
	Expect(network.Add(other)).To(Succeed())
	Expect(network.Add(next)).To(Succeed())
	Expect(next.Addrs()).To(Equal(first))
	Expect(network.Del(other)).To(Succeed())
	Expect(network.Del(next)).To(Succeed())
	Expect(network.Add(c)).To(Succeed())
}

func expectConflict(network *testNetwork, c *container) {
	expectPublished(network, c)
	other := cnitest.NewContainer("other")
	goCNI(other)
	Expect(network.Add(other)).To(MatchError(And(ContainSubstring("8080"), ContainSubstring("web"))))
	Expect(network.Del(other)).To(Succeed()) // as runtimes do after a failed ADD
}

func expectQdiscs(network *testNetwork, c *container) {
	c.Must(GinkgoTB(), "ping", "-c", "1", "-W", "60", nstest.OutsideV4)
	Expect(network.Host.Must(GinkgoTB(), "tc", "qdisc", "show")).To(And(ContainSubstring(" rate 10Mbit "), ContainSubstring(" rate 5Mbit ")))
}

// expectSegment connects in both directions between the container and the outside host on the segment.
func expectSegment(network *testNetwork, c *container) {
	GinkgoHelper()
	Expect(c.V4.String()).To(HavePrefix("192.0.2."))
	server := nstest.ServeTCP(GinkgoTB(), network.Outside, segmentRouter+":0")
	nstest.MustDial(GinkgoTB(), c.NS, server.String(), c.V4.String())
	server = nstest.ServeTCP(GinkgoTB(), c.NS, withAnyPort(c.V4.String()))
	nstest.MustDial(GinkgoTB(), network.Outside, server.String(), segmentRouter)
}

func expectTwoRouters(network *testNetwork, c *container) {
	expectSegment(network, c)
	Expect(c.IP("route show default")).To(BeEmpty())
	Expect(c.IP("route show 198.51.100.0/24")).To(And(ContainSubstring("via 192.0.2.1 "), ContainSubstring("via 192.0.2.2 ")))
	nstest.MustDial(GinkgoTB(), c.NS, nstest.ServeTCP(GinkgoTB(), network.Outside, "198.51.100.1:0").String(), c.V4.String())
}

func expectHost(network *testNetwork, c *container) {
	expectSegment(network, c)
	nstest.MustDial(GinkgoTB(), network.Host, nstest.ServeTCP(GinkgoTB(), c.NS, withAnyPort(c.V4.String())).String(), segmentHost)
	nstest.MustDial(GinkgoTB(), c.NS, nstest.ServeTCP(GinkgoTB(), network.Host, segmentHost+":0").String(), c.V4.String())
}

func expectVRF(network *testNetwork, c *container) {
	c.Must(GinkgoTB(), "ip", "vrf", "show", "blue")
	c.Must(GinkgoTB(), "ping", "-c", "1", "-W", "60", "-I", "blue", segmentRouter)
}

// serveDHCP starts a DHCP server on the segment, and the daemon of dhcp.
func (network *testNetwork) serveDHCP() {
	GinkgoHelper()
	network.joinSegment()
	nstest.StartDnsmasq(GinkgoTB(), nstest.End{In: network.Outside, Name: "eth1"}, "--dhcp-range=192.0.2.100,192.0.2.150,255.255.255.0,1h")
	daemon := exec.Command(filepath.Join(nstest.Build(GinkgoTB(), "dhcp"), "dhcp"), "daemon")
	daemon.Stderr = GinkgoWriter
	Expect(os.MkdirAll("/run/cni", 0o755)).To(Succeed())
	Expect(network.Host.Start(daemon)).To(Succeed())
	DeferCleanup(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		Expect(daemon.Wait()).To(Succeed())
	})
	Eventually("/run/cni/dhcp.sock").Should(BeAnExistingFile())
}

// joinTrunk creates eth1 without addresses. The outside host receives the frames of the VLANs 100 and 200 on interfaces.
func (network *testNetwork) joinTrunk() {
	GinkgoHelper()
	nstest.Join(GinkgoTB(), nstest.End{In: network.Host, Name: "eth1"}, nstest.End{In: network.Outside, Name: "eth1"})
	for _, vlan := range []int{100, 200} {
		network.Outside.Batch(GinkgoTB(), fmt.Sprintf("link add link eth1 name eth1.%d type vlan id %[1]d", vlan),
			fmt.Sprintf("link set eth1.%d up", vlan), fmt.Sprintf("address add 10.%d.0.1/24 dev eth1.%[1]d", vlan))
	}
}

func expectAccess(_ *testNetwork, c *container) {
	c.Batch(GinkgoTB(), "address add 10.100.0.2/24 dev eth0")
	c.Must(GinkgoTB(), "ping", "-c", "1", "-W", "60", "10.100.0.1")
}

func expectTrunk(_ *testNetwork, c *container) {
	c.Batch(GinkgoTB(), "link add link eth0 name eth0.200 type vlan id 200", "link set eth0.200 up", "address add 10.200.0.2/24 dev eth0.200")
	c.Must(GinkgoTB(), "ping", "-c", "1", "-W", "60", "10.200.0.1")
}

// expectVM connects a virtual machine to the tap.
func expectVM(network *testNetwork, c *container) {
	GinkgoHelper()
	links := strings.Fields(c.IP("-br link show type tun"))
	mac := strings.Fields(c.IP("-br link show eth0"))[2]
	vm := nstest.NewGuest(GinkgoTB(), c.NS, links[0], "link set eth0 address "+mac,
		fmt.Sprintf("address add %s/24 dev eth0", c.V4), "route add default via 192.168.127.1")
	Eventually(func() error { _, err := vm.Exec("ping", "-c", "1", "-W", "1", nstest.OutsideV4); return err }).Should(Succeed())
}

// replaceAWS adds an executable aws-cni, which calls ptp.
func (network *testNetwork) replaceAWS() {
	GinkgoHelper()
	bin := nstest.Build(GinkgoTB(), "ptp", "host-local", "portmap")
	text := fmt.Sprintf(`#!/bin/sh
[ "$CNI_COMMAND" != VERSION ] || exec echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'
CNI_PATH=%[1]s exec %[1]s/ptp <<END
{"cniVersion": "0.4.0", "name": "aws-cni", "type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "dataDir": "%[2]s/leases",
	"ranges": [[{"subnet": "10.9.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
END
`, bin, network.Dir)
	dir := GinkgoTB().TempDir()
	Expect(os.WriteFile(filepath.Join(dir, "aws-cni"), []byte(text), 0o755)).To(Succeed())
	network.CNI.Path = append(network.CNI.Path, dir)
}
