// Package runtimes runs the built executables with real runtimes, which are containerd with runc
// through the CRI, and podman with its CNI backend. Each spec creates its own host, which is a
// network namespace, and starts a runtime there.
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

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestRuntimes(t *testing.T) {
	// Runtimes and plugins write to /run and /var/lib with any configuration.
	if _, err := os.Stat("/run/plumb-sandbox"); err != nil {
		t.Fatal("run test/runtimes/run.sh: the tests need test/runtimes/sandbox.sh")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "test/runtimes")
}

// These are the default directories of the plugins and of libcni. The tests use them, because the
// sandbox mounts its own /run and /var/lib.
const (
	stateDir   = "/var/lib/cni"
	leaseDir   = stateDir + "/networks"
	resultsDir = stateDir + "/results" // libcni's cache
	runDir     = "/run/cni"
)

// A host consists of the host's network namespace, an outside host, and a directory of plugins.
type host struct {
	nstest.Site
	dir string // the directory of the runtime's files
	bin string // the directory of the plugins
}

// newHost returns a new host with the built executables as plugins, and deletes the default
// directories.
func newHost() *host {
	GinkgoHelper()
	for _, dir := range []string{stateDir, runDir} {
		Expect(os.RemoveAll(dir)).To(Succeed())
	}
	bin := os.Getenv("PLUMB_BIN")
	Expect(bin).NotTo(BeEmpty(), "PLUMB_BIN must name a directory with the executables")
	return &host{Site: nstest.NewSite(GinkgoTB()), dir: GinkgoT().TempDir(), bin: bin}
}

// withWrappers replaces each plugin with wrapper.sh.
func (h *host) withWrappers() *host {
	GinkgoHelper()
	wrapper, err := filepath.Abs("testdata/wrapper.sh")
	Expect(err).NotTo(HaveOccurred())
	plugins, err := os.ReadDir(h.bin)
	Expect(err).NotTo(HaveOccurred())
	h.bin = filepath.Join(h.dir, "bin")
	Expect(os.Mkdir(h.bin, 0o755)).To(Succeed())
	for _, p := range plugins {
		Expect(os.Symlink(wrapper, filepath.Join(h.bin, p.Name()))).To(Succeed())
	}
	return h
}

// A call is a plugin call that wrapper.sh recorded.
type call struct{ Command, IfName, NetNS, Stdin string }

// calls returns the recorded calls of a plugin for a container.
func (h *host) calls(plugin, container string) []call {
	GinkgoHelper()
	text := nstest.ReadFile(GinkgoTB(), filepath.Join(h.bin, "calls"))
	var all []call
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if f[0] == plugin && f[2] == container {
			all = append(all, call{f[1], f[3], f[4], f[5]})
		}
	}
	return all
}

// state returns everything that plugins, libcni and the runtime may leave of a container. This is
// the state of the host, reservations, tuning's state files, libcni's cache, and named namespaces.
func (h *host) state() string {
	all := []string{nstest.Snapshot(GinkgoTB(), h.Host)}
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

// waitForProcesses waits until no command line of a process contains the runtime's directory,
// because runtimes start processes that clean up after the removal of a container.
func (h *host) waitForProcesses() {
	GinkgoHelper()
	Eventually(func() (all []string) {
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		Expect(err).NotTo(HaveOccurred())
		for _, f := range files {
			if line, _ := os.ReadFile(f); strings.Contains(string(line), h.dir) {
				all = append(all, strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
		return all
	}).Should(BeEmpty())
}

func reservations(network string) []string {
	GinkgoHelper()
	files, err := filepath.Glob(filepath.Join(leaseDir, network, "*"))
	Expect(err).NotTo(HaveOccurred())
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	return slices.DeleteFunc(files, func(f string) bool { _, err := netip.ParseAddr(f); return err != nil })
}
