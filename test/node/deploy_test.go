package node

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// plumbImage is the image in deploy/.
const plumbImage = "registry.example/plumb:v2.0.0_dev"

var _ = Describe("a node with the DaemonSet and maintain", Label("deploy"), func() {
	It("restores lost rules and a bridge that was set down without a command", func() {
		c := newCluster(1, os.Getenv("PLUMB_BIN"))
		n := c.control()
		c.importPlumb()
		c.apply(chartDaemonSet("maintain.enabled=true"))
		c.kubectl("-n", "kube-system", "rollout", "status", "daemonset/plumb", "--timeout=300s")
		c.apply(manifest("a", hostPorts(18080, 18081)))
		a := c.ready("a")[0]
		hostPort := func() (string, error) { return clientOf(c.NS, n.v4+":18080") }
		expectClient(hostPort, nstest.OutsideV4, "outside to host port")

		for what, damage := range map[string][]string{"a flush of all rules": {"nft", "flush", "ruleset"}, "ip link set cni0 down": {"ip", "link", "set", "cni0", "down"}} {
			begin := time.Now()
			n.mustRun(damage[0], damage[1:]...)
			expectClient(hostPort, nstest.OutsideV4, "outside to host port after %s", what)
			expectClient(func() (string, error) { return clientOf(n.NS, a.v4+":8080") }, gatewayV4, "node to pod after %s", what)
			AddReportEntry(what, time.Since(begin).Round(10*time.Millisecond).String())
		}
		c.kubectl("-n", "kube-system", "delete", "daemonset", "plumb", "--timeout=300s")
		c.kubectl("delete", "pod", "a", "--timeout=300s")
		Eventually(n.attachments).Should(BeZero())
	})
})

// helm runs Helm, and returns its output.
func helm(args ...string) string {
	GinkgoHelper()
	var stderr strings.Builder
	cmd := exec.Command(program("HELM", "helm"), args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	Expect(err).NotTo(HaveOccurred(), "%v: %s%s", cmd, out, &stderr)
	return string(out)
}

// chartDaemonSet returns the DaemonSet of the chart with values in the form of Helm's flag --set.
func chartDaemonSet(values string) string {
	GinkgoHelper()
	return helm("template", "plumb", chart, "--namespace", "kube-system", "--show-only", "templates/daemonset.yaml", "--set", values)
}

// chart is the directory of the chart.
const chart = "../../deploy/chart"

var _ = Describe("the chart", Label("chart"), func() {
	It("passes Helm's checks, and renders the files of test/runtimes", func() {
		const golden = "../runtimes/testdata/chart"
		values, err := filepath.Glob(golden + "/*.yaml")
		Expect(err).NotTo(HaveOccurred())
		Expect(values).NotTo(BeEmpty())
		for _, file := range values {
			helm("lint", "--strict", "--values", file, chart)
			name := strings.TrimSuffix(filepath.Base(file), ".yaml")
			nstest.Golden(GinkgoTB(), "../"+golden+"/"+name, helm("template", "plumb", chart, "--namespace", "kube-system", "--values", file))
		}
		digest := sha256.Sum256([]byte(nstest.SnapshotDir(GinkgoTB(), chart)))
		nstest.Golden(GinkgoTB(), "../"+golden+"/digest", hex.EncodeToString(digest[:])+"\n")
	})

	It("contains the policy of cluster-local-kubernetes only if it is enabled", func() {
		kinds := func(policy string) int {
			return strings.Count(helm("template", chart, "--set", "clusterLocalKubernetes.enabled=true,clusterLocalKubernetes.policy="+policy), "\nkind: ")
		}
		Expect(kinds("true") - kinds("false")).To(Equal(2))
	})

	It("rejects unknown values", func() {
		out, err := exec.Command(program("HELM", "helm"), "template", chart, "--set", "tag=v2.9.0").CombinedOutput()
		Expect(err).To(HaveOccurred())
		Expect(string(out)).To(ContainSubstring("tag"))
	})
})
