// Package node runs the executables on Kubernetes nodes, which are kubelet, kube-proxy, containerd and a control plane in
// namespaces of this machine.
package node

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var (
	proxyMode  = flag.String("proxy", "nftables", "kube-proxy's mode, which is nftables, iptables or ipvs")
	containerd = flag.Int("containerd", 1, "the major version of containerd, which is 1 (Debian's) or 2")
	only       = flag.String("only", "", "a regular expression of the specs of Kubernetes' own tests to run, instead of all")
	keep       = flag.Bool("keep", false, "start a node with two pods, and keep it until the tests are interrupted")
)

func TestNode(t *testing.T) {
	if _, err := os.Stat("/run/plumb-sandbox"); err != nil {
		t.Fatal("run test/node/run.sh: the tests need test/runtimes/sandbox.sh")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "test/node")
}

// program returns the path of a program from the directory that an environment variable names. run.sh sets the variables.
func program(variable, name string) string {
	GinkgoHelper()
	path := filepath.Join(os.Getenv(variable), name)
	Expect(path).To(BeAnExistingFile(), "$%s", variable)
	return path
}

// must runs a command on this machine, and returns its output.
func must(name string, args ...string) string {
	GinkgoHelper()
	out, err := exec.Command(name, args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s %s: %s", name, strings.Join(args, " "), out)
	return string(out)
}
