package node

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// service is a Service for the pod a, with a port on each node.
const service = `
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {selector: {app: a}, type: NodePort, ipFamilyPolicy: RequireDualStack, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
`

// The addresses of the bridge, from which pods see connections that are masqueraded.
const gatewayV4, gatewayV6 = "10.88.0.1", "fd00:88::1"

var _ = Describe("a node", Ordered, Label("checks"), func() {
	var (
		c       *cluster
		n       *node
		a, b    *pod
		outside string
		before  string
	)
	BeforeAll(func() {
		c = newCluster(1, os.Getenv("PLUMB_BIN"))
		n, outside = c.control(), c.serveOutside()
		before = n.state()
		a, b = c.startPods()
	})

	It("connects pods, host ports, Services and the outside", func() {
		expectTraffic(c, a, b, outside)
	})

	It("is sound", func() {
		Expect(n.plumb("doctor")).To(ContainSubstring("nothing found"))
		Expect(n.attachments()).To(Equal(2))
	})

	It("keeps the pods and their connections when kubelet and containerd restart", func() {
		n.stop("TERM", "kubelet", "containerd")
		n.startContainerd()
		n.startKubelet()
		pods := c.ready("a", "b")
		Expect(pods[0].v4).To(Equal(a.v4))
		Expect(c.kubectl("get", "pod", "a", "-o", "jsonpath={.status.containerStatuses[0].restartCount}")).To(Equal("0"))
		expectTraffic(c, a, b, outside)
	})

	It("loses host ports with a flush of all rules, and plumb repair restores them", func() {
		n.mustRun("nft", "flush", "ruleset")
		_, err := clientOf(c.NS, n.v4+":18080")
		Expect(err).To(HaveOccurred(), "a host port without rules")
		_, err = n.run("/opt/plumb/plumb", "doctor")
		Expect(err).To(MatchError(ContainSubstring("plumb repair")))

		Expect(n.plumb("repair")).To(MatchRegexp(`repaired [2-9], left 0, `))
		n.stop("TERM", "kube-proxy")
		n.startKubeProxy()
		expectTraffic(c, a, b, outside)
		Expect(n.plumb("doctor")).To(ContainSubstring("nothing found"))
	})

	It("runs 20 pods that start at the same time, and keeps nothing after the deletion of all pods", func() {
		AddReportEntry("20 pods ready", c.startMany(20).String())
		c.kubectl("delete", "deployment/many", "pod/a", "pod/b", "service/a", "--cascade=foreground", "--grace-period=1")
		c.kubectl("wait", "--for=delete", "pod", "--all", "--timeout=300s")
		Expect(nstest.WaitEqual(before, n.state)).To(BeEmpty())
		Expect(n.attachments()).To(Equal(0))
		Expect(n.plumb("doctor")).To(ContainSubstring("nothing found"))
	})
})

// startMany starts a deployment with the name many, and returns the time until all pods are ready.
func (c *cluster) startMany(pods int) time.Duration {
	GinkgoHelper()
	begin := time.Now()
	c.kubectl("create", "deployment", "many", "--image="+agnhost, fmt.Sprint("--replicas=", pods), "--", "/agnhost", "pause")
	c.kubectl("rollout", "status", "deployment/many", "--timeout=600s")
	return time.Since(begin).Round(100 * time.Millisecond)
}

// deleteMany deletes the deployment many, and waits until its pods are gone.
func (c *cluster) deleteMany() {
	GinkgoHelper()
	c.kubectl("delete", "deployment/many", "--cascade=foreground", "--timeout=600s")
	c.kubectl("wait", "--for=delete", "pod", "--selector=app=many", "--timeout=600s")
}

// plumb runs the tool plumb on the node, which must succeed, and returns what it printed.
func (n *node) plumb(args ...string) string {
	GinkgoHelper()
	return n.mustRun("/opt/plumb/plumb", args...)
}

// attachments returns how many attachments of pods plumb lists.
func (n *node) attachments() int {
	GinkgoHelper()
	return strings.Count(n.plumb("list"), " eth0 ")
}

// reservations returns the files of reserved addresses.
func (n *node) reservations() []string {
	GinkgoHelper()
	files, err := filepath.Glob(n.path("/var/lib/cni/networks/*/[0-9a-f]*[.:]*"))
	Expect(err).NotTo(HaveOccurred())
	return files
}

// state returns what plugins and libcni leave of pods: interfaces, nftables elements, reservations, results and namespaces.
func (n *node) state() string {
	GinkgoHelper()
	var all []string
	for _, family := range []string{"inet", "bridge"} {
		table, _ := n.run("nft", "list", "table", family, "plumb") // fails if there is none
		all = append(all, regexp.MustCompile(`[^{},]* comment "pods/[^,}]*`).FindAllString(table, -1)...)
	}
	for line := range strings.Lines(n.mustRun("ip", "-o", "link", "show", "type", "veth")) {
		if f := strings.Fields(line); strings.HasSuffix(f[0], ":") { // ip also prints warnings
			all = append(all, f[1])
		}
	}
	for _, pattern := range []string{"/var/lib/cni/networks/*/*[.:]*", "/var/lib/cni/results/*", "/run/cni/*/*", "/run/netns/*"} {
		files, err := filepath.Glob(n.path(pattern))
		Expect(err).NotTo(HaveOccurred())
		for _, f := range files {
			if !strings.Contains(f, "last_reserved_ip") {
				all = append(all, strings.TrimPrefix(f, n.path("/")))
			}
		}
	}
	return strings.Join(all, "\n")
}

// expectTraffic connects to the pods, to the host ports 18080 and 18081 and to the Service of a, from all sides.
func expectTraffic(c *cluster, a, b *pod, outside string) {
	GinkgoHelper()
	n := a.node
	for _, f := range []struct{ family, node, outside, gateway, a, b, service string }{
		{"IPv4", n.v4, nstest.OutsideV4, gatewayV4, a.v4, b.v4, c.kubectl("get", "service", "a", "-o", "jsonpath={.spec.clusterIPs[0]}")},
		{"IPv6", n.v6, nstest.OutsideV6, gatewayV6, a.v6, b.v6, c.kubectl("get", "service", "a", "-o", "jsonpath={.spec.clusterIPs[1]}")},
	} {
		for _, t := range []struct {
			what           string
			from           *nstest.NS // or pod
			pod            *pod
			protocol       string
			to, port, seen string
		}{
			{"pod to pod", nil, b, "http", f.a, "8080", f.b},
			{"node to pod", n.NS, nil, "", f.a, "8080", f.gateway},
			{"outside to host port", c.NS, nil, "", f.node, "18080", f.outside},
			{"node to its host port", n.NS, nil, "", f.node, "18080", ""},
			{"pod to host port", nil, b, "http", f.node, "18080", ""},
			{"pod to its own host port", nil, a, "http", f.node, "18080", f.gateway},
			{"pod to UDP host port", nil, b, "udp", f.node, "18081", ""},
			{"outside to node port", c.NS, nil, "", f.node, "30080", ""},
			{"pod to Service", nil, b, "http", f.service, "80", f.b},
			{"pod to its own Service", nil, a, "http", f.service, "80", ""},
			{"node to Service", n.NS, nil, "", f.service, "80", ""},
			{"pod to outside", nil, b, "http", f.outside, outside, f.node},
		} {
			at := net.JoinHostPort(t.to, t.port)
			request := func() (string, error) { return clientOf(t.from, at) }
			if t.pod != nil {
				request = func() (string, error) { return t.pod.clientOf(t.protocol, at) }
			}
			expectClient(request, t.seen, "%s: %s, %s", f.family, t.what, at)
		}
	}
	expectClient(func() (string, error) { return clientOf(n.NS, "127.0.0.1:18080") }, gatewayV4, "loopback to host port")
}
