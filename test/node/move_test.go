package node

import (
	"fmt"
	"os"
	"path/filepath"

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
		before := c.fleetPods()
		c.expectSound()

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
		Expect(c.fleetPods()).To(ContainElements(before))
		c.expectSound()
		c.deleteFleet()
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
