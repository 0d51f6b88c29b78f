package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"

	current "github.com/containernetworking/cni/pkg/types/100"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// nomadPlugins contains the plugins of Nomad's built-in bridge network (nomadCNIConfigTemplate in
// client/allocrunner/networking_bridge_linux.go). Unlike Nomad's list, it names a directory for the
// reservations, and its portmap does not need Nomad's iptables chain. The test replaces FIREWALL with
// a plugin or with "".
const nomadPlugins = `
	{"type": "loopback"},
	{"type": "bridge", "bridge": "nomad", "ipMasq": true, "isGateway": true, "forceAddress": true, "hairpinMode": false,
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "172.26.64.0/20"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
	FIREWALL
	{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}`

const nomadFirewall = `{"type": "firewall", "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN"},`

var _ = Describe("the plugin chain of Nomad's bridge network", func() {
	DescribeTable("works from ADD to DEL", func(firewall string) {
		nstest.LeakCheck(GinkgoTB())
		network := newNetwork("0.4.0", strings.Replace(nomadPlugins, "FIREWALL", firewall, 1))
		if firewall != "" { // the host drops packets, except for the chain that Nomad creates
			for _, args := range []string{"-P FORWARD DROP", "-N NOMAD-ADMIN", "-A NOMAD-ADMIN -o nomad -d 172.26.64.0/20 -j ACCEPT"} {
				network.Host.Must(GinkgoTB(), "iptables", strings.Fields(args)...)
			}
		}
		bin, cache := nstest.Build(GinkgoTB(), "plumb"), GinkgoT().TempDir()
		network.Use(bin, cache)
		p := cnitest.NewContainer("alloc")
		p.RT.CapabilityArgs = map[string]any{"portMappings": []portMapping{{8080, 80, "tcp", ""}, {8080, 80, "udp", ""}}}
		result, err := network.CNI.AddNetworkList(context.Background(), network.List, p.RT)
		Expect(err).NotTo(HaveOccurred())

		By("the result contains only the addresses of eth0")
		parsed, err := current.NewResultFromResult(result)
		Expect(err).NotTo(HaveOccurred())
		Expect(addressesOf(parsed, "eth0", p.Path())).To(Equal([]string{"172.26.64.2/20"}))
		Expect(parsed.IPs).To(HaveLen(1))

		By("traffic")
		nstest.ServeTCP(GinkgoTB(), p.NS, "172.26.64.2:80")
		nstest.MustDial(GinkgoTB(), network.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
		nstest.ServeTCP(GinkgoTB(), network.Outside, nstest.OutsideV4+":81")
		nstest.MustDial(GinkgoTB(), p.NS, nstest.OutsideV4+":81", nstest.HostV4)
		Expect(network.Check(p)).To(Succeed())

		By("a restart of the client, which calls CHECK, after another program has deleted the table")
		task := exec.Command("sleep", "infinity")
		Expect(p.Start(task)).To(Succeed())
		defer func() {
			_ = task.Process.Kill()
			_ = task.Wait() // returns the signal
		}()
		network.Host.Must(GinkgoTB(), "nft", "delete", "table", "inet", "plumb")
		Expect(network.Check(p)).NotTo(Succeed())
		network.Host.Must(GinkgoTB(), filepath.Join(bin, "plumb"), "repair", "--cni-path", bin, "--cache-dir", cache)
		Expect(network.Check(p)).To(Succeed())
		nstest.MustDial(GinkgoTB(), network.Outside, nstest.HostV4+":8080", nstest.OutsideV4)

		By("DEL")
		Expect(network.Del(p)).To(Succeed())
		Expect(network.reservations()).To(BeEmpty())
		Expect(nstest.Snapshot(GinkgoTB(), network.Host)).NotTo(Or(ContainSubstring("e2e/alloc/eth0"), ContainSubstring("172.26.64.2")))
	},
		Entry("without firewall", ""),
		Entry("with firewall, on a host that drops forwarded packets", nomadFirewall),
	)
})

// addressesOf lists the addresses of an interface in a sandbox, in the way go-cni reads them.
func addressesOf(result *current.Result, name, sandbox string) []string {
	var all []string
	for _, ip := range result.IPs {
		if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(result.Interfaces) {
			continue
		}
		if in := result.Interfaces[*ip.Interface]; in.Name == name && in.Sandbox == sandbox {
			all = append(all, ip.Address.String())
		}
	}
	return all
}
