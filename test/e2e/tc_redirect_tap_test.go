package e2e

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// newVM returns a container that is not attached, with the settings of its tap and a host port that maps to port 80.
func newVM(id string, port int32) *container {
	GinkgoHelper()
	p := cnitest.NewContainer(id)
	p.RT.Args = [][2]string{{"TC_REDIRECT_TAP_NAME", "vm0"}, {"TC_REDIRECT_TAP_UID", "1000"}, {"TC_REDIRECT_TAP_GID", "1000"}}
	p.RT.CapabilityArgs = map[string]any{"portMappings": []portMapping{{port, 80, "tcp", ""}}}
	return p
}

// start connects a namespace, which stands for the virtual machine, to the tap of the container.
func start(p *container) *nstest.NS {
	GinkgoHelper()
	mac := strings.Fields(p.IP("-br link show eth0"))[2]
	return nstest.NewGuest(GinkgoTB(), p.NS, "vm0", "link set eth0 address "+mac,
		fmt.Sprintf("address add %s/16 dev eth0", p.V4), fmt.Sprintf("address add %s/64 dev eth0", p.V6), "route add default via 10.1.0.1", "route add default via fd00:1::1")
}

var _ = DescribeTable("a virtual machine is connected from ADD to DEL, and the other plugins of the list accept the result with its interface",
	func(interfacePlugin string) {
		nstest.LeakCheck(GinkgoTB())
		network := newNetwork("1.1.0", fmt.Sprintf(`{"type": %s, "ipMasq": true, %s}, {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
			{"type": "firewall"}, {"type": "tc-redirect-tap"}`, interfacePlugin, hostLocal))
		existing, p := newVM("existing", 8001), newVM("vm1", 8002)
		Expect(network.add(existing)).To(Succeed())
		before := nstest.WaitStable(network.state)
		Expect(network.add(p)).To(Succeed())
		attached := nstest.WaitStable(network.state)
		vm := start(p)
		for i, addr := range []string{p.V4.String(), p.V6.String()} {
			// The kernel notices the carrier of the tap with a delay.
			Eventually(func() error { _, err := network.Host.Exec("ping", "-c", "1", "-W", "1", addr); return err }).Should(Succeed())
			local := []string{p.V4.String() + ":80", "[" + p.V6.String() + "]:80"}[i]
			nstest.ServeTCP(GinkgoTB(), vm, local)
			nstest.MustDial(GinkgoTB(), network.Host, local, "")
			outside := []string{nstest.OutsideV4 + ":80", "[" + nstest.OutsideV6 + "]:80"}[i]
			nstest.ServeTCP(GinkgoTB(), network.Outside, outside)
			nstest.MustDial(GinkgoTB(), vm, outside, []string{nstest.HostV4, nstest.HostV6}[i])
			hostPort := []string{nstest.HostV4 + ":8002", "[" + nstest.HostV6 + "]:8002"}[i]
			nstest.MustDial(GinkgoTB(), network.Outside, hostPort, []string{nstest.OutsideV4, nstest.OutsideV6}[i])
		}
		Expect(network.Check(p)).To(Succeed())
		Expect(network.GC(existing, p)).To(Succeed())
		Expect(network.Check(p)).To(Succeed())
		Expect(nstest.WaitEqual(attached, network.state)).To(BeEmpty(), "GC of valid attachments")
		Expect(network.Del(p)).To(Succeed())
		Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "DEL")
		Expect(p.IP("link")).NotTo(ContainSubstring("vm0"))
		_, err := nstest.Dial(network.Outside, nstest.HostV4+":8002")
		Expect(err).To(HaveOccurred(), "the host port of a deleted container must be closed")

		By("deleting a container without its namespace, and by GC")
		for _, del := range []func(p *container) error{
			func(p *container) error { p.Remove(GinkgoTB()); return network.Del(p) },
			func(*container) error { return network.GC(existing) },
		} {
			p := newVM("vm2", 8002)
			Expect(network.add(p)).To(Succeed())
			Expect(del(p)).To(Succeed())
			Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty())
		}
		Expect(network.Check(existing)).To(Succeed())
	},
	EntryDescription("%s"),
	Entry(nil, `"ptp"`), Entry(nil, `"bridge", "isGateway": true`),
)
