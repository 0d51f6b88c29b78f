// Package runtimes drives the built executables by the real runtimes: containerd with
// runc through the CRI, and podman with its CNI backend. Each spec has a node of its
// own, which is a network namespace, and a runtime of its own on it.
package runtimes

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

func TestRuntimes(t *testing.T) {
	// Runtimes and plugins write below /run and /var/lib, whatever they are told.
	if _, err := os.Stat("/run/plumb-sandbox"); err != nil {
		t.Fatal("run this by test/runtimes/run.sh: it has to be inside test/runtimes/sandbox.sh")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "test/runtimes")
}

// Where plugins and libcni keep their state unless they are told otherwise. It is
// used here as it stands: the sandbox has these folders for itself.
const (
	stateDir   = "/var/lib/cni"
	leaseDir   = stateDir + "/networks"
	resultsDir = stateDir + "/results" // libcni's
	runDir     = "/run/cni"
)

// A node is a network namespace with a host outside, and a folder of plugins.
type node struct {
	nstest.Site
	dir string // for what the runtime keeps
	bin string // the plugins
}

// newNode makes a node with empty state, whose plugins are the executables.
func newNode() *node {
	GinkgoHelper()
	for _, dir := range []string{stateDir, runDir} {
		Expect(os.RemoveAll(dir)).To(Succeed())
	}
	bin := os.Getenv("PLUMB_BIN")
	Expect(bin).NotTo(BeEmpty(), "PLUMB_BIN: a folder with the executables")
	return &node{Site: nstest.NewSite(GinkgoTB()), dir: GinkgoT().TempDir(), bin: bin}
}

// relayed puts relay.sh in the place of each plugin.
func (n *node) relayed() *node {
	GinkgoHelper()
	relay, err := filepath.Abs("testdata/relay.sh")
	Expect(err).NotTo(HaveOccurred())
	plugins, err := os.ReadDir(n.bin)
	Expect(err).NotTo(HaveOccurred())
	n.bin = filepath.Join(n.dir, "bin")
	Expect(os.Mkdir(n.bin, 0o755)).To(Succeed())
	for _, p := range plugins {
		Expect(os.Symlink(relay, filepath.Join(n.bin, p.Name()))).To(Succeed())
	}
	return n
}

// A call is a line of relay.sh.
type call struct{ Command, IfName, NetNS, Stdin string }

// calls are those that relay.sh has seen of plugin about the container.
func (n *node) calls(plugin, container string) []call {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(n.bin, "calls"))
	Expect(err).NotTo(HaveOccurred())
	var all []call
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if f[0] == plugin && f[2] == container {
			all = append(all, call{f[1], f[3], f[4], f[5]})
		}
	}
	return all
}

// state is all that plugins, libcni and the runtime may have left for a container:
// the node with its links, rules and settings, the leases, what tuning has saved,
// what libcni has cached, and the namespaces.
func (n *node) state() string {
	all := []string{nstest.Snapshot(GinkgoTB(), n.Node)}
	for _, dir := range []string{leaseDir + "/*", resultsDir, runDir + "/*", "/run/netns"} {
		files, err := filepath.Glob(dir + "/*")
		Expect(err).NotTo(HaveOccurred())
		for _, f := range files {
			if _, err := netip.ParseAddr(filepath.Base(f)); err == nil || !strings.HasPrefix(f, leaseDir) {
				all = append(all, "file "+f)
			}
		}
	}
	return strings.Join(all, "\n")
}

// quiet returns when no process works on the runtime's files any more: runtimes leave
// some, which clean up, behind a removal.
func (n *node) quiet() {
	GinkgoHelper()
	Eventually(func() (all []string) {
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		Expect(err).NotTo(HaveOccurred())
		for _, f := range files {
			if line, _ := os.ReadFile(f); strings.Contains(string(line), n.dir) {
				all = append(all, strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
		return all
	}).Should(BeEmpty())
}

// leases are the addresses that host-local has given out in the network.
func leases(network string) []string {
	GinkgoHelper()
	files, err := filepath.Glob(filepath.Join(leaseDir, network, "*"))
	Expect(err).NotTo(HaveOccurred())
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	return slices.DeleteFunc(files, func(f string) bool { _, err := netip.ParseAddr(f); return err != nil })
}
