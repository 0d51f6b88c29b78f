package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// The spec follows the steps of plugins/cluster-local/operate.md.
var _ = Describe("two nodes that move from whereabouts to cluster-local-kubernetes", Label("move"), func() {
	It("keep the addresses of running pods, and assign none of them again", func() {
		c := newCluster(2, os.Getenv("PLUMB_BIN"))
		c.installWhereabouts()
		c.scale(6)
		Expect(c.expectUniqueAddresses(6)).To(HaveLen(2), "nodes with pods")
		before := c.addresses()
		for _, n := range c.nodes {
			Expect(n.plumb("doctor")).To(ContainSubstring("nothing found"))
		}

		By("step 0 and 1: installing cluster-local, and writing the new list")
		c.importPlumb()
		c.startClusterLocal()
		const list = "/etc/plumb/pods.conflist"
		for _, n := range c.nodes {
			n.writeTemplate(filepath.Dir(list), "lan.conflist", map[string]string{"CNIVersion": cniVersion()})
			n.mustRun("mv", "/etc/plumb/lan.conflist", list)
		}
		By("step 2 and 3: freezing the segment, and replacing the list")
		c.ipam("freeze", "--config", list)
		for _, n := range c.nodes {
			n.mustRun("cp", list, "/etc/cni/net.d/new")
			n.mustRun("mv", "/etc/cni/net.d/new", "/etc/cni/net.d/whereabouts.conflist")
		}
		c.apply(fmt.Sprintf(fleet, 12))
		Eventually(func() string { return c.kubectl("get", "events", "-o", "jsonpath={.items[*].message}") }, "3m").Should(ContainSubstring("frozen"))

		By("step 4 and 5: importing, checking and thawing")
		for _, n := range c.nodes {
			Expect(n.plumb("ipam", "import", "--config", list)).To(MatchRegexp(`imported [1-9][0-9]* addresses`))
		}
		for _, n := range c.nodes {
			n.plumb("ipam", "check", "--config", list)
		}
		c.ipam("thaw", "--config", list, "--kubeconfig", "/etc/kubernetes/admin.conf")

		c.scale(12)
		c.expectUniqueAddresses(12)
		after := c.addresses()
		for pod, addresses := range before {
			Expect(after).To(HaveKeyWithValue(pod, addresses))
		}
		for _, n := range c.nodes {
			Expect(n.plumb("doctor")).To(ContainSubstring("nothing found"))
		}
		By("deleting all pods")
		c.kubectl("delete", "deployment", "fleet", "--cascade=foreground", "--timeout=300s")
		for _, n := range c.nodes {
			Eventually(n.attachments).Should(BeZero())
			Expect(n.reservations()).To(BeEmpty())
			Expect(n.plumb("ipam", "check")).To(ContainSubstring("node " + n.name + " owns"))
		}
	})
})

// installWhereabouts replaces the nodes' list by one with whereabouts.
func (c *cluster) installWhereabouts() {
	GinkgoHelper()
	crds, err := filepath.Glob(program("WHEREABOUTS_SOURCE", "doc/crds") + "/whereabouts.cni.cncf.io_*.yaml")
	Expect(err).NotTo(HaveOccurred())
	for _, crd := range crds {
		c.apply(nstest.ReadFile(GinkgoTB(), crd))
	}
	c.kubectl("wait", "--for=condition=Established", "customresourcedefinition", "--all", "--timeout=60s")
	admin := nstest.ReadFile(GinkgoTB(), c.control().path("/etc/kubernetes/admin.conf"))
	for _, n := range c.nodes {
		n.installPlugins(os.Getenv("WHEREABOUTS"))
		n.write("/etc/kubernetes/whereabouts.kubeconfig", admin, nil)
		n.write("/etc/kubernetes/whereabouts.conf", `{"kubernetes": {"kubeconfig": "/etc/kubernetes/whereabouts.kubeconfig"}}`, nil)
		n.writeTemplate("/etc/cni/net.d", "whereabouts.conflist", map[string]string{"CNIVersion": cniVersion()})
		n.mustRun("rm", "/etc/cni/net.d/pods.conflist")
	}
}

// addresses returns the addresses of the deployment's pods, by pod.
func (c *cluster) addresses() map[string]string {
	GinkgoHelper()
	all := map[string]string{}
	for line := range strings.Lines(c.kubectl("get", "pods", "-l", "app=fleet", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.podIPs[*].ip}{"\n"}{end}`)) {
		pod, addresses, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[pod] = addresses
	}
	return all
}
