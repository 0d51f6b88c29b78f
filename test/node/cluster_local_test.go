package node

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// fleet is a deployment whose pods listen on port 8080.
const fleet = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: fleet}
spec:
  replicas: %d
  selector: {matchLabels: {app: fleet}}
  strategy: {rollingUpdate: {maxSurge: 50%%, maxUnavailable: 50%%}}
  template:
    metadata: {labels: {app: fleet}}
    spec:
      terminationGracePeriodSeconds: 0
      tolerations: [{operator: Exists, effect: NoExecute}]
      containers:
        - name: server
          image: ` + agnhost + `
          args: [netexec]
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`

var _ = Describe("two nodes whose pods share a LAN and the addresses of cluster-local-kubernetes", Label("cluster-local"), func() {
	It("never assigns an address twice, and loses none", func() {
		bin := os.Getenv("PLUMB_BIN")
		c := newCluster(2, bin)
		one, two := c.nodes[0], c.nodes[1]
		for _, n := range c.nodes {
			n.joinLAN()
		}
		c.importPlumb()
		c.startClusterLocal()

		By("scaling a deployment")
		for _, replicas := range []int{10, 2, 16, 4, 12} {
			c.scale(replicas)
			c.expectUniqueAddresses(replicas)
		}
		Expect(c.ipam("list")).To(ContainSubstring("2 nodes, "))

		By("using the token of a node for another node")
		c.expectTokenOnlyFor(one, two)

		By("draining, removing and replacing a node")
		c.kubectl("drain", two.name, "--ignore-daemonsets", "--force", "--timeout=300s")
		c.expectUniqueAddresses(12)
		two.switchOff()
		c.kubectl("delete", "node", two.name, "--timeout=120s")
		Expect(c.ipam("remove-node", "--yes", "--kubeconfig=/etc/kubernetes/admin.conf", two.name)).NotTo(BeEmpty())
		Expect(c.ipam("list")).To(ContainSubstring("1 node, "))
		Expect(os.RemoveAll(two.dir)).To(Succeed())
		Expect(os.Mkdir(two.dir, 0o755)).To(Succeed())
		two.switchOn()
		two.install(bin)
		two.joinLAN()
		two.startContainerd()
		c.importPlumb()
		c.writeKubeconfigs()
		two.join()
		c.scale(20)
		Expect(c.expectUniqueAddresses(20)).To(HaveKey(two.name), "the new node runs pods")

		By("losing the power of both nodes")
		for _, n := range c.nodes {
			n.switchOff()
		}
		for _, n := range c.nodes {
			n.switchOn()
		}
		c.boot()
		c.scale(12)
		c.expectUniqueAddresses(12)
		// The API server deletes a pod before the node has deleted the container.
		Eventually(func() int { return one.attachments() + two.attachments() }).Should(Equal(12))
		for _, n := range c.nodes {
			Expect(n.plumb("ipam", "check")).To(ContainSubstring("node " + n.name + " owns"))
		}
		c.expectSound()
		c.deleteFleet()
	})
})

// expectSound expects that doctor finds nothing on the nodes.
func (c *cluster) expectSound() {
	GinkgoHelper()
	for _, n := range c.nodes {
		Expect(n.plumb("doctor")).To(ContainSubstring("nothing found"))
	}
}

// deleteFleet deletes the deployment, and expects that the nodes keep no attachment and no reservation of its pods.
func (c *cluster) deleteFleet() {
	GinkgoHelper()
	By("deleting all pods")
	c.kubectl("delete", "deployment", "fleet", "--cascade=foreground", "--timeout=300s")
	for _, n := range c.nodes {
		Eventually(n.attachments).Should(BeZero())
		Expect(n.reservations()).To(BeEmpty())
		Expect(n.plumb("ipam", "check")).To(ContainSubstring("node " + n.name + " owns"))
	}
}

// fleetPods returns a line for each pod of the deployment: its name, its node and its two addresses.
func (c *cluster) fleetPods() (pods [][]string) {
	GinkgoHelper()
	out := c.kubectl("get", "pods", "-l", "app=fleet", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} {.status.podIPs[*].ip}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		pod := strings.Fields(line)
		Expect(pod).To(HaveLen(4), out)
		pods = append(pods, pod)
	}
	return pods
}

// joinLAN installs a list whose pods are on the LAN of the nodes.
func (n *node) joinLAN() {
	GinkgoHelper()
	Expect(os.Remove(n.path("/etc/cni/net.d/pods.conflist"))).To(Succeed())
	n.writeTemplate("/etc/cni/net.d", "lan.conflist", map[string]string{"CNIVersion": cniVersion()})
}

// startClusterLocal installs the custom resources, rights and policy of cluster-local-kubernetes, and the DaemonSet that writes
// the nodes' credentials.
func (c *cluster) startClusterLocal() {
	GinkgoHelper()
	for _, name := range []string{"crds", "rbac", "policy"} {
		c.apply(nstest.ReadFile(GinkgoTB(), "../../plugins/cluster-local/deploy/"+name+".yaml"))
	}
	c.apply(chartDaemonSet("clusterLocalKubernetes.enabled=true,clusterLocalKubernetes.server=https://" + c.control().v4 + ":6443"))
	c.kubectl("-n", "kube-system", "rollout", "status", "daemonset/plumb", "--timeout=300s")
	for _, n := range c.nodes {
		Eventually(n.path("/etc/plumb/kubeconfig")).Should(BeAnExistingFile())
	}
}

// scale sets the number of pods of the deployment, and waits until all are ready and no other pod exists.
func (c *cluster) scale(replicas int) {
	GinkgoHelper()
	c.apply(fmt.Sprintf(fleet, replicas))
	c.kubectl("rollout", "status", "deployment/fleet", "--timeout=600s")
	Eventually(func() []string { return strings.Fields(c.kubectl("get", "pods", "-l", "app=fleet", "-o", "name")) }, "3m").Should(HaveLen(replicas))
}

// expectUniqueAddresses expects that the deployment has this many pods, that each pod answers at its own addresses, and that
// these are in the ranges. It returns the number of pods by node.
func (c *cluster) expectUniqueAddresses(pods int) map[string]int {
	GinkgoHelper()
	c.kubectl("rollout", "status", "deployment/fleet", "--timeout=600s")
	owners, nodes := map[netip.Addr]string{}, map[string]int{}
	all := c.fleetPods()
	out := fmt.Sprint(all)
	for _, f := range all {
		nodes[f[1]]++
		for _, text := range f[2:] {
			addr := netip.MustParseAddr(text)
			Expect(owners).NotTo(HaveKey(addr), out)
			owners[addr] = f[0]
			first, last := netip.MustParseAddr("2001:db8:18::100"), netip.MustParseAddr("2001:db8:18::13f")
			if addr.Is4() {
				first, last = netip.MustParseAddr("198.18.0.100"), netip.MustParseAddr("198.18.0.139")
			}
			Expect(addr.Compare(first) >= 0 && addr.Compare(last) <= 0).To(BeTrue(), out)
			Eventually(func() (string, error) { return get(c.NS, hostURL(text, 8080)) }).Should(Equal(f[0]), "%s of %s", text, out)
		}
	}
	Expect(owners).To(HaveLen(2*pods), out)
	By(fmt.Sprint("finding the pods on ", nodes))
	return nodes
}

// ipam runs plumb ipam on the node of the control plane.
func (c *cluster) ipam(args ...string) string {
	GinkgoHelper()
	return c.control().plumb(append([]string{"ipam"}, args...)...)
}

// expectTokenOnlyFor expects that the token of a node can read the registration of another node, but neither change nor delete
// it.
func (c *cluster) expectTokenOnlyFor(own, other *node) {
	GinkgoHelper()
	token := func(stdin string, args ...string) (string, error) {
		return own.ExecInput(stdin, program("KUBERNETES", "kubectl"), append([]string{"--kubeconfig", own.path("/etc/plumb/kubeconfig")}, args...)...)
	}
	name, err := token("", "get", "segmentnodes", "-o", fmt.Sprintf("jsonpath={.items[?(@.spec.node==%q)].metadata.name}", other.name))
	Expect(err).NotTo(HaveOccurred())
	registration, err := token("", "get", "segmentnode", name, "-o", "json")
	Expect(err).NotTo(HaveOccurred())
	stolen := regexp.MustCompile(`"epoch": "[^"]*"`).ReplaceAllString(registration, `"epoch": "stolen"`)
	Expect(stolen).NotTo(Equal(registration))
	_, err = token(stolen, "replace", "-f", "-")
	Expect(err).To(MatchError(ContainSubstring("ValidatingAdmissionPolicy")))
	_, err = token("", "delete", "segmentnode", name)
	Expect(err).To(MatchError(ContainSubstring("forbidden")))
}
