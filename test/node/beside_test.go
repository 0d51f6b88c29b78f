package node

import (
	"encoding/json"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("a node beside other software", Label("beside"), func() {
	var c *cluster
	var n *node
	BeforeEach(func() {
		c = newCluster(1, os.Getenv("PLUMB_BIN"))
		n = c.control()
	})
	AfterEach(func() { Expect(n.plumb("doctor")).To(ContainSubstring("nothing found")) })

	It("keeps the routes of a router that sends advertisements, although the node forwards", func() {
		n.SetSysctl(GinkgoTB(), "net/ipv6/conf/eth0/accept_ra", "1") // the default of the kernel
		n.SetSysctl(GinkgoTB(), "net/ipv6/conf/eth0/autoconf", "0")  // expectTraffic knows only the other address
		c.SetSysctl(GinkgoTB(), "net/ipv6/conf/lan/accept_ra", "0")
		n.IP("-6 route del default")
		nstest.StartDnsmasq(GinkgoTB(), nstest.End{In: c.NS, Name: "lan"}, "--dhcp-range=198.18.0.250,198.18.0.251",
			"--enable-ra", "--dhcp-range=2001:db8:18::,ra-only", "--ra-param=lan,4,60")
		a, b := c.startPods()
		outside := c.serveOutside()
		for range 2 {
			Eventually(func() string { return n.Must(GinkgoTB(), "ip", "-6", "route", "show", "default", "proto", "ra") }).ShouldNot(BeEmpty())
			expectTraffic(c, a, b, outside)
			n.IP("-6 route flush proto ra table main") // the next advertisement adds the route again
		}
	})

	It("connects pods with firewalld, also after firewalld reloads", func() {
		GinkgoT().Setenv("TMPDIR", "/tmp") // a directory for the bus that the node sees
		f := nstest.StartFirewalld(GinkgoTB(), n.NS)
		n.mustRun("sh", "-c", `mkdir -p /run/dbus && ln -s "$0" /run/dbus/system_bus_socket`, strings.TrimPrefix(strings.Split(f.Address, ",")[0], "unix:path="))
		n.chain(`{"type": "firewall"}`)
		a, b := c.startPods()
		outside := c.serveOutside()
		expectTraffic(c, a, b, outside)
		f.Call(GinkgoTB(), "reload")
		n.mustRun("/opt/cni/bin/firewall", "restore")
		expectTraffic(c, a, b, outside)
	})
})

// chain adds a plugin to the end of the node's list.
func (n *node) chain(plugin string) {
	GinkgoHelper()
	const path = "/etc/cni/net.d/pods.conflist"
	var list map[string]any
	Expect(json.Unmarshal([]byte(nstest.ReadFile(GinkgoTB(), n.path(path))), &list)).To(Succeed())
	list["plugins"] = append(list["plugins"].([]any), json.RawMessage(plugin))
	text, err := json.Marshal(list)
	Expect(err).NotTo(HaveOccurred())
	n.write(path, string(text), nil)
}
