package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// maxMemoryKiB returns the maximum resident memory of a plugin, in KiB, beside this many
// reservations of others. GC, and the first call after the reference plugin has made
// reservations, hold the attachments of all of them in memory.
func maxMemoryKiB(reserved int) int { return 16<<10 + reserved*300/1024 }

// otherNetworks has a network for each plugin that is in no list of stressNetworks.
var otherNetworks = []struct{ name, plugins string }{
	{"loopback", `{"type": "loopback"}`},
	{"host-local", `{"type": "host-local", "ipam": {"type": "host-local", "dataDir": "DIR/large", "ranges": [[{"subnet": "10.8.0.0/16"}], [{"subnet": "fd00:8::/64"}]]}}`},
	{"static", `{"type": "static", "ipam": {"type": "static", "addresses": [{"address": "192.0.2.10/24"}, {"address": "2001:db8::10/64"}]}}`},
}

// newStressNodeWithAllPlugins returns a node with stressNetworks and otherNetworks.
func newStressNodeWithAllPlugins() *stressNode {
	GinkgoHelper()
	s := newStressNode()
	nstest.Build(GinkgoTB(), "loopback", "static")
	for _, network := range otherNetworks {
		s.addNetwork(network.name, network.plugins)
	}
	return s
}

// runAllVerbs calls every verb for one attachment of a network. e starts the plugins.
func (s *stressNode) runAllVerbs(e invoke.Exec, network int) error {
	GinkgoHelper()
	ctx, list, c := context.Background(), s.lists[network], s.newContainer("all", network)
	conf := s.runtimeConf(c, c.attachments[0])
	if list.Name == "loopback" {
		conf.IfName = "lo"
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{s.bin}, s.cache, e)
	if err := cni.GetStatusNetworkList(ctx, list); err != nil {
		return fmt.Errorf("STATUS: %w", err)
	}
	if _, err := cni.AddNetworkList(ctx, list, conf); err != nil {
		return fmt.Errorf("ADD: %w", err)
	}
	if err := cni.CheckNetworkList(ctx, list, conf); err != nil {
		return fmt.Errorf("CHECK: %w", err)
	}
	valid := []cnitypes.GCAttachment{{ContainerID: conf.ContainerID, IfName: conf.IfName}}
	if err := cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
		return fmt.Errorf("GC: %w", err)
	}
	if err := cni.DelNetworkList(ctx, list, conf); err != nil {
		return fmt.Errorf("DEL: %w", err)
	}
	return nil
}

// fillPool writes n reservations of the reference plugin for the network.
func (s *stressNode) fillPool(network string, n int) {
	GinkgoHelper()
	dir := filepath.Join(s.dir, "large", network)
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	for i := range n {
		name := filepath.Join(dir, fmt.Sprintf("10.8.%d.%d", i>>8+1, i&255))
		Expect(os.WriteFile(name, fmt.Appendf(nil, "%064d\r\neth0", i), 0o600)).To(Succeed())
	}
}

// A memoryMeter makes libcni start the plugins on the node, and records their peak resident
// memory.
type memoryMeter struct {
	invoke.RawExec
	version.PluginDecoder
	node  *nstest.NS
	dir   string
	peaks map[string]int // "bridge ADD" → KiB
}

func (m *memoryMeter) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	in, out := filepath.Join(m.dir, "in"), filepath.Join(m.dir, "out")
	if err := errors.Join(os.WriteFile(in, stdin, 0o600), os.WriteFile(out, nil, 0o600)); err != nil {
		return nil, err
	}
	stdinFile, inErr := os.Open(in)
	stdoutFile, outErr := os.OpenFile(out, os.O_WRONLY, 0)
	if err := errors.Join(inErr, outErr); err != nil {
		return nil, err
	}
	defer stdinFile.Close()
	defer stdoutFile.Close()
	var kib int
	err := m.node.Do(func() (err error) {
		kib, err = nstest.PeakMemory(path, environ, stdinFile, stdoutFile)
		return err
	})
	output, readErr := os.ReadFile(out)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(path), err, output)
	}
	call := filepath.Base(path) + " " + commandOf(environ)
	m.peaks[call] = max(m.peaks[call], kib)
	return output, readErr
}

// commandOf returns the value of CNI_COMMAND.
func commandOf(environ []string) string {
	for _, v := range slices.Backward(environ) {
		if value, ok := strings.CutPrefix(v, "CNI_COMMAND="); ok {
			return value
		}
	}
	return ""
}

// execWithFileLimit makes libcni start the plugins with at most 64 open files. It returns an
// error if a plugin leaves a process running.
type execWithFileLimit struct {
	invoke.RawExec
	version.PluginDecoder
	node *nstest.NS
}

func (e *execWithFileLimit) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("/bin/sh", "-c", `ulimit -n 64 && exec "$0"`, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), &stdout, &stderr
	err := e.node.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", filepath.Base(path), err, &stdout, &stderr)
	}
	if left := childPIDs(); len(left) > 0 {
		return nil, fmt.Errorf("%s %s left processes: %v", filepath.Base(path), commandOf(environ), left)
	}
	return stdout.Bytes(), nil
}

var _ = Describe("a plugin call", func() {
	It("needs less than 16 MiB of memory for each verb, and 300 bytes more for each reservation of others", func() {
		reserved := 5_000
		if allFaults() {
			reserved = 60_000
		}
		s := newStressNodeWithAllPlugins()
		m := &memoryMeter{node: s.Node, dir: GinkgoTB().TempDir(), peaks: map[string]int{}}
		s.fillPool("host-local", reserved)
		for n := range s.lists {
			Expect(s.runAllVerbs(m, n)).To(Succeed(), s.lists[n].Name)
		}
		calls := slices.SortedFunc(maps.Keys(m.peaks), func(a, b string) int { return m.peaks[b] - m.peaks[a] })
		Expect(len(calls)).To(BeNumerically(">=", 5*8), "%v", calls)
		limit := maxMemoryKiB(reserved)
		row := fmt.Sprintf("memory below %.1f MiB beside %d reservations (maximum: %.1f MiB, %s)",
			float64(limit)/1024, reserved, float64(m.peaks[calls[0]])/1024, calls[0])
		for _, call := range calls {
			GinkgoWriter.Printf("%6d KiB  %s\n", m.peaks[call], call)
			record(row, m.peaks[call] < limit)
			Expect(m.peaks[call]).To(BeNumerically("<", limit), call)
		}
	})

	It("needs fewer than 64 open files, and leaves no process running", func() {
		nstest.LeakCheck(GinkgoTB())
		adoptOrphans()
		s := newStressNodeWithAllPlugins()
		for n := range s.lists {
			err := s.runAllVerbs(&execWithFileLimit{node: s.Node}, n)
			record("all verbs with RLIMIT_NOFILE 64, no process left", err == nil)
			Expect(err).NotTo(HaveOccurred(), s.lists[n].Name)
		}
	})

	DescribeTable("does not pass open files to the programs that it starts", func(network, program string, path func(bin string) string, variable string) {
		s := newStressNode()
		dir := GinkgoTB().TempDir()
		Expect(os.WriteFile(filepath.Join(dir, program), fmt.Appendf(nil, "#!/bin/sh\nls -l /proc/self/fd >>%s/list\nexec %s \"$@\"\n", dir, path(s.bin)), 0o755)).To(Succeed())

		n := s.networkIndex(network)
		c := s.firstPluginADD(n, s.newContainer("a", n))
		for i, v := range c.Env {
			if value, ok := strings.CutPrefix(v, variable+"="); ok {
				c.Env[i] = variable + "=" + dir + ":" + value
			}
		}
		// The plugin does not close the files that the runtime passes to it.
		null, err := os.Open(os.DevNull)
		Expect(err).NotTo(HaveOccurred())
		defer null.Close()
		c.ExtraFiles = []*os.File{null, null}
		runtimes := exec.Command("ls", "-l", "/proc/self/fd")
		runtimes.ExtraFiles = c.ExtraFiles
		passed, err := runtimes.Output()
		Expect(err).NotTo(HaveOccurred())

		out, err := s.runOnNode(c)
		Expect(err).NotTo(HaveOccurred(), out)
		seen, err := os.ReadFile(filepath.Join(dir, "list"))
		Expect(err).NotTo(HaveOccurred())
		same := slices.Equal(parseDescriptors(seen), parseDescriptors(passed))
		record("no descriptor passed to a program", same)
		Expect(parseDescriptors(passed)).To(ContainElements("3 /dev/null", "4 /dev/null"))
		Expect(parseDescriptors(seen)).To(Equal(parseDescriptors(passed)))
	},
		Entry("an IPAM plugin", "bridge", "host-local", func(bin string) string { return filepath.Join(bin, "host-local") }, "CNI_PATH"),
		Entry("iptables", "iptables", "iptables-restore", func(string) string { return findProgram("iptables-restore") }, "PATH"),
	)

	DescribeTable("leaves nothing if it fails because", func(cause func(c *exec.Cmd)) {
		adoptOrphans()
		s := newStressNode()
		s.runOnePerNetwork()
		before := nstest.WaitStable(s.state)
		networks := []string{"bridge", "ptp"}
		if allFaults() {
			networks = []string{"bridge", "ptp", "macvlan", "iptables"}
		}
		for _, network := range networks {
			n := s.networkIndex(network)
			c := s.firstPluginADD(n, s.newContainer("fails", n))
			cause(c)
			out, err := s.runOnNode(c)
			running := childPIDs()
			Expect(err).To(HaveOccurred(), "%s: %s", network, out)
			left := nstest.WaitEqual(before, s.state)
			record("a call that fails because of its environment, nothing left", len(running) == 0 && left == "")
			Expect(running).To(BeEmpty(), "%s: processes; %s", network, out)
			Expect(left).To(BeEmpty(), "%s: left; %s", network, out)
		}
	},
		Entry("stdout is a closed pipe", func(c *exec.Cmd) {
			r, w, err := os.Pipe()
			Expect(errors.Join(err, r.Close())).To(Succeed())
			c.Stdout = closeAfterSpec(w)
		}),
		Entry("stdout is /dev/full", func(c *exec.Cmd) {
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			Expect(err).NotTo(HaveOccurred())
			c.Stdout = closeAfterSpec(full)
		}),
		Entry("stdout and stderr are a closed pipe", func(c *exec.Cmd) {
			r, w, err := os.Pipe()
			Expect(errors.Join(err, r.Close())).To(Succeed())
			c.Stdout = closeAfterSpec(w)
			c.Stderr = w
		}),
		Entry("stdin ends early", func(c *exec.Cmd) {
			conf, err := io.ReadAll(c.Stdin)
			Expect(err).NotTo(HaveOccurred())
			c.Stdin = bytes.NewReader(conf[:len(conf)/2])
		}),
		Entry("stdin is empty", func(c *exec.Cmd) { c.Stdin = nil }),
		Entry("the namespace does not exist", func(c *exec.Cmd) { c.Env = append(c.Env, "CNI_NETNS=/does/not/exist") }),
		Entry("the IPAM plugin is missing", func(c *exec.Cmd) { c.Env = append(c.Env, "CNI_PATH=/nonexistent") }),
		Entry("the IPAM plugin fails", replaceIPAM(`exit 3`)),
		Entry("the IPAM plugin is killed", replaceIPAM(`kill -9 $$`)),
		Entry("the IPAM plugin prints an invalid result", replaceIPAM(`echo '{"ips": 5}'`)),
	)
})

// parseDescriptors returns the descriptors in a listing of /proc/self/fd, without duplicates,
// the standard streams and the folder itself.
func parseDescriptors(list []byte) []string {
	var all []string
	for line := range strings.Lines(string(list)) {
		field := strings.Fields(line)
		if i := slices.Index(field, "->"); i > 0 && !slices.Contains([]string{"0", "1", "2"}, field[i-1]) && !strings.HasPrefix(field[i+1], "/proc/") {
			all = append(all, field[i-1]+" "+field[i+1])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// closeAfterSpec returns the file, which is closed at the end of the spec.
func closeAfterSpec(f *os.File) *os.File {
	DeferCleanup(f.Close)
	return f
}

// replaceIPAM makes the plugin run a script instead of host-local's ADD.
func replaceIPAM(script string) func(c *exec.Cmd) {
	return func(c *exec.Cmd) {
		dir := GinkgoTB().TempDir()
		Expect(os.WriteFile(filepath.Join(dir, "host-local"),
			fmt.Appendf(nil, "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\n%s\n", script), 0o755)).To(Succeed())
		c.Env = append(c.Env, "CNI_PATH="+dir)
	}
}

// firstPluginADD returns an ADD of the network's first plugin that is not started.
func (s *stressNode) firstPluginADD(network int, c *stressContainer) *exec.Cmd {
	GinkgoHelper()
	cmd := exec.Command(filepath.Join(s.bin, s.lists[network].Plugins[0].Network.Type))
	cmd.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + c.id, "CNI_IFNAME=eth0", "CNI_NETNS=" + c.pod.Path(),
		"CNI_PATH=" + s.bin, "PATH=" + os.Getenv("PATH"),
	}
	cmd.Stdin = s.firstPluginConfig(network)
	return cmd
}

// runOnNode runs a process on the node and returns its output.
func (s *stressNode) runOnNode(c *exec.Cmd) (string, error) {
	var out bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &out
	}
	if c.Stderr == nil {
		c.Stderr = &out
	}
	err := s.Node.Start(c)
	if err == nil {
		err = c.Wait()
	}
	return out.String(), err
}
