package node

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A result is what a run of Kubernetes' own tests showed. The nightly run writes results to the file $REPORT.
type result struct {
	Kubernetes, Runtime, Proxy, Date, Specs string
	Nodes, Passed, Seconds                  int
	Skipped                                 map[string]string // the reasons by spec
}

var _ = Describe("Kubernetes' own tests", func() {
	// These specs need the Internet, another version of iperf, an image with another program, a cloud's load balancers, a network
	// policy, another operating system, kernel modules, or host ports of kube-proxy on loopback addresses, which its mode nftables
	// does not have.
	const others = `\[Feature:(LoadBalancer|IPVS|SCTP.*|NetworkPolicy|PerformanceDNS|Networking-(IPv[46]|DNS|Performance)|LocalhostNodePorts|Windows)\]|\[Disruptive\]|\[Slow\]|\[Serial\]|invalid conntrack state bug`
	DescribeTable("succeed", func(specs string, nodes int, focus, skip string) {
		c := newCluster(nodes, os.Getenv("PLUMB_BIN"))
		c.startDNS()
		if *only != "" {
			focus = *only
		}
		c.runSpecs(specs, focus, skip)
	},
		Entry("for conformance of the network", Label("conformance"), "sig-network, conformance", 1, `\[sig-network\].*\[Conformance\]`, ""),
		Entry("for everything else of the network that one node can run", Label("wide"), "sig-network, others", 1, `\[sig-network\]`, `\[Conformance\]|`+others),
		Entry("for everything of the network that two nodes can run", Label("two-nodes"), "sig-network", 2, `\[sig-network\]`, others),
	)
})

// startDNS starts the cluster's DNS server, and imports the images of Kubernetes' own tests.
func (c *cluster) startDNS() {
	GinkgoHelper()
	archive := filepath.Join(c.dir, "coredns.tar")
	Expect(writeProgramImage("plumb.test/coredns:1", archive, program("COREDNS", "coredns"))).To(Succeed())
	archives := append(specImages(c.dir), archive)
	for _, n := range c.nodes {
		for _, a := range archives {
			n.importImages(a)
		}
	}
	c.apply(nstest.ReadFile(GinkgoTB(), "testdata/coredns.yaml"))
	c.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=300s")
}

// specImages writes archives of the images that Kubernetes' own tests use, and returns their paths. All have Debian's programs.
func specImages(dir string) []string {
	GinkgoHelper()
	listed := must(program("KUBERNETES", "e2e.test"), "--list-images")
	archive := filepath.Join(dir, "agnhost.tar")
	layer := filepath.Join(dir, "layer.tar")
	// agnhost's image contains the certificate with which it serves https, and CoreDNS.
	must("cp", program("KUBERNETES", "agnhost"), program("COREDNS", "coredns"), program("PORTER", "localhost.crt"), program("PORTER", "localhost.key"), os.Getenv("ROOTFS"))
	must("tar", "-C", os.Getenv("ROOTFS"), "-cf", layer, ".")
	images := map[string]v1.Config{}
	for _, name := range regexp.MustCompile(`(?m)^\S*/(agnhost|busybox|distroless-iptables|glibc-dns-testing|pause):\S+$`).FindAllString(listed, -1) {
		images[name] = v1.Config{}
		if strings.Contains(name, "agnhost") || strings.Contains(name, "/pause:") {
			images[name] = v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
		}
	}
	Expect(len(images)).To(BeNumerically(">=", 3), listed)
	content, err := os.ReadFile(layer)
	Expect(err).NotTo(HaveOccurred())
	Expect(writeArchive(archive, content, images)).To(Succeed())
	return []string{archive}
}

// runSpecs runs the specs that match focus and not skip, four at a time. All must succeed.
func (c *cluster) runSpecs(specs, focus, skip string) {
	GinkgoHelper()
	begin, dir := time.Now(), GinkgoT().TempDir()
	args := []string{"--procs=4", "--no-color", "--silence-skips", "--timeout=2h", "--poll-progress-after=0", "--focus=" + focus, "--output-dir=" + dir, "--json-report=report.json"}
	if skip != "" {
		args = append(args, "--skip="+skip)
	}
	args = append(args, program("KUBERNETES", "e2e.test"), "--", "--kubeconfig="+c.control().path("/etc/kubernetes/admin.conf"), "--provider=skeleton",
		fmt.Sprint("--num-nodes=", len(c.nodes)), "--kubectl-path="+program("KUBERNETES", "kubectl"), "--disable-log-dump")
	cmd := exec.Command(program("KUBERNETES", "ginkgo"), args...)
	cmd.Stdout, cmd.Stderr = GinkgoWriter, GinkgoWriter
	Expect(c.control().Start(cmd)).To(Succeed())
	failed := cmd.Wait()

	var reports []types.Report
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	Expect(err).NotTo(HaveOccurred())
	Expect(json.Unmarshal(text, &reports)).To(Succeed())
	r := c.result(specs, reports[0])
	r.Seconds = int(time.Since(begin).Seconds())
	AddReportEntry(specs, fmt.Sprintf("%d passed, %d skipped, in %d s", r.Passed, len(r.Skipped), r.Seconds))
	Expect(failed).NotTo(HaveOccurred())
	Expect(r.Passed).NotTo(BeZero())
	if path := os.Getenv("REPORT"); path != "" {
		line, err := json.Marshal(r)
		Expect(err).NotTo(HaveOccurred())
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		Expect(err).NotTo(HaveOccurred())
		_, err = fmt.Fprintf(f, "%s\n", line)
		Expect(err).NotTo(HaveOccurred())
		Expect(f.Close()).To(Succeed())
	}
}

// result returns the result of specs, and prints those that failed.
func (c *cluster) result(specs string, report types.Report) result {
	GinkgoHelper()
	r := result{Proxy: *proxyMode, Date: time.Now().UTC().Format(time.DateOnly), Specs: specs, Nodes: len(c.nodes), Skipped: map[string]string{}}
	r.Kubernetes = strings.TrimSpace(strings.TrimPrefix(must(program("KUBERNETES", "kubelet"), "--version"), "Kubernetes "))
	r.Runtime = "containerd " + regexp.MustCompile(`(?s)Server:.*?Version:\s+(\S+)`).FindStringSubmatch(c.control().mustRun("ctr", "version"))[1]
	for _, spec := range report.SpecReports {
		name := spec.FullText()
		switch {
		case spec.LeafNodeType != types.NodeTypeIt || spec.State == types.SpecStatePending:
		case spec.State == types.SpecStatePassed:
			r.Passed++
		case spec.State == types.SpecStateSkipped && spec.Failure.Message != "":
			r.Skipped[name], _, _ = strings.Cut(spec.Failure.Message, "\n")
		case spec.State != types.SpecStateSkipped:
			fmt.Printf("%s: %s\n%s\n", spec.State, name, spec.Failure.Message)
		}
	}
	return r
}
