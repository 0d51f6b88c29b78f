package node

import (
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("a node with faults", Ordered, Label("faults"), func() {
	var (
		c      *cluster
		n      *node
		before string
	)
	BeforeAll(func() {
		c = newCluster(1, os.Getenv("PLUMB_BIN"))
		n = c.control()
		before = n.state()
	})
	AfterEach(func() {
		Expect(nstest.WaitEqual(before, n.state)).To(BeEmpty())
		Expect(n.plumb("doctor")).To(ContainSubstring("nothing found"))
	})

	It("starts 30 pods although containerd and kubelet are killed in between", func() {
		c.kubectl("create", "deployment", "many", "--image="+agnhost, "--replicas=30", "--", "/agnhost", "pause")
		for i := range 3 {
			seen := 5 * (i + 1) // pods whose ADD has begun
			Eventually(func() int { return len(n.reservations()) }).Should(BeNumerically(">=", 2*seen))
			n.stop("KILL", "containerd", "kubelet")
			n.startContainerd()
			n.startKubelet()
		}
		c.kubectl("rollout", "status", "deployment/many", "--timeout=600s")
		c.deleteMany()
		n.removeNamespaces()
	})

	It("keeps connections without the API server, and starts pods when it is back", func() {
		a, b := c.startPods()
		outside := c.serveOutside()
		n.stop("KILL", "kube-apiserver")
		for _, at := range []string{n.v4, n.v6} {
			expectClient(func() (string, error) { return get(c.NS, hostURL(at, 18080)) }, "a", "outside to host port")
		}
		c.startControlPlane()
		expectTraffic(c, a, b, outside)
		c.kubectl("delete", "pod/a", "pod/b", "service/a", "--timeout=300s")
	})

	It("starts a pod once its disk is no longer full", func() {
		n.mustRun("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/var/lib/cni")
		_, _ = n.run("sh", "-c", "cat /dev/zero >/var/lib/cni/full")
		c.apply(manifest("a", hostPorts(18080, 18081)))
		Eventually(func() string { return c.kubectl("get", "events", "-o", "jsonpath={.items[*].message}") }, "3m").Should(ContainSubstring("no space left on device"))
		Expect(nstest.WaitEqual(before, n.state)).To(BeEmpty())
		n.mustRun("rm", "/var/lib/cni/full")
		c.ready("a")
		c.kubectl("delete", "pod/a", "--timeout=300s")
		Eventually(n.reservations).Should(BeEmpty())
		n.mustRun("umount", "/var/lib/cni")
	})
})

var _ = Describe("30 pods at once", Label("speed"), func() {
	It("are ready after a time that the report compares with the reference plugins", func() {
		c := newCluster(1, os.Getenv("PLUMB_BIN"))
		times := map[string][]time.Duration{}
		for range 2 {
			for name, dir := range map[string]string{"plumb": os.Getenv("PLUMB_BIN"), "reference": os.Getenv("REFERENCE")} {
				c.control().installPlugins(dir)
				times[name] = append(times[name], c.startMany(30))
				c.deleteMany()
			}
		}
		AddReportEntry("30 pods ready", times)
	})
})
