package node

import (
	"encoding/json"
	"maps"
	"os"
	"strings"
	"text/template"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.yaml.in/yaml/v3"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// plumbImage is the image in deploy/.
const plumbImage = "registry.example/plumb:v2.0.0_dev"

var _ = Describe("a node with the DaemonSet and maintain", Label("deploy"), func() {
	It("restores lost rules and a bridge that was set down without a command", func() {
		c := newCluster(1, os.Getenv("PLUMB_BIN"))
		n := c.control()
		c.importPlumb()
		c.apply(chartDaemonSet(map[string]map[string]any{"maintain": {"enabled": true}}))
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

// chartDaemonSet returns the DaemonSet of the chart with these values, which are objects.
func chartDaemonSet(changed map[string]map[string]any) string {
	GinkgoHelper()
	parsed, err := template.New("daemonset.yaml").Funcs(template.FuncMap{"toJson": func(v any) (string, error) {
		text, err := json.Marshal(v)
		return string(text), err
	}}).ParseFiles("../../deploy/chart/templates/daemonset.yaml")
	Expect(err).NotTo(HaveOccurred())
	text, err := os.ReadFile("../../deploy/chart/values.yaml")
	Expect(err).NotTo(HaveOccurred())
	values := map[string]any{}
	Expect(yaml.Unmarshal(text, &values)).To(Succeed())
	for name, value := range changed {
		maps.Copy(values[name].(map[string]any), value)
	}
	var b strings.Builder
	Expect(parsed.Execute(&b, map[string]any{"Values": values, "Release": map[string]string{"Namespace": "kube-system", "Name": "plumb", "Service": "Helm"},
		"Chart": map[string]string{"Name": "plumb", "AppVersion": "v2.0.0_dev"}})).To(Succeed())
	return b.String()
}
