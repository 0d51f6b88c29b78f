package runtimes

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// dhcpNetwork is a network on a bridge with the uplink as a port. The DHCP daemon uses its default
// socket.
const dhcpNetwork = `{
	"cniVersion": "1.0.0",
	"name": "pods",
	"plugins": [
		{"type": "bridge", "bridge": "cni0", "ipam": {"type": "dhcp", "clientID": "name"}},
		{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}
	]
}`

// startDHCP connects the host's uplink to a bridge, and starts dnsmasq on the outside host and the
// DHCP daemon on the host.
func (h *host) startDHCP() *nstest.Dnsmasq {
	GinkgoHelper()
	h.Host.Batch(GinkgoTB(), "link add cni0 up type bridge", "link set "+nstest.Uplink+" master cni0",
		"addr flush dev "+nstest.Uplink, "addr add "+nstest.HostV4+"/24 dev cni0")
	server := nstest.StartDnsmasq(GinkgoTB(), nstest.End{In: h.Outside, Name: nstest.Uplink}, "--dhcp-range=198.18.0.100,198.18.0.200,255.255.255.0,1h")
	daemon := exec.Command(filepath.Join(h.bin, "dhcp"), "daemon")
	daemon.Stderr = GinkgoWriter
	Expect(h.Host.Start(daemon)).To(Succeed())
	DeferCleanup(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		Expect(daemon.Wait()).To(Succeed())
	})
	Eventually(filepath.Join(runDir, "dhcp.sock")).Should(BeAnExistingFile())
	return server
}

var _ = Describe("containerd with dhcp", func() {
	It("runs pods with leases of a DHCP server, and releases the leases", func() {
		h := newHost()
		server := h.startDHCP()
		c := newContainerd(h, dhcpNetwork)
		existing, err := c.create(webPod("existing", 8079))
		Expect(err).NotTo(HaveOccurred())
		server.AwaitLog(GinkgoTB(), "DHCPACK", existing.v4)
		before := nstest.WaitStable(c.state)

		p, err := c.create(webPod("web", 8080))
		Expect(err).NotTo(HaveOccurred())
		server.AwaitLog(GinkgoTB(), "DHCPACK", p.v4)
		leases := nstest.ReadFile(GinkgoTB(), server.Leases)
		Expect(leases).To(ContainSubstring(" "+strings.ReplaceAll(fmt.Sprintf("% x", "\x00default/web"), " ", ":")), "want the client identifier with the pod's name")
		p.container("serve", ":80")
		Eventually(func() error { _, err := nstest.Dial(c.Outside, p.v4+":80"); return err }).Should(Succeed())
		nstest.MustDial(GinkgoTB(), c.Host, nstest.HostV4+":8080", "")

		Expect(p.stop()).To(Succeed())
		server.AwaitLog(GinkgoTB(), "DHCPRELEASE", p.v4)
		Eventually(server.HasLease).WithArguments(p.v4).Should(BeFalse())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "after StopPodSandbox")
		Expect(p.remove()).To(Succeed())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "after RemovePodSandbox")
		Expect(server.HasLease(existing.v4)).To(BeTrue())
	})
})
