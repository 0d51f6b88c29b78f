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

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// maxMemoryKiB returns the limit for the resident memory of a plugin, in KiB, with this number of reservations
// for other containers. GC, and the first call after reservations by the reference plugin, hold the attachments
// of all reservations in memory.
func maxMemoryKiB(reserved int) int { return 16<<10 + reserved*300/1024 }

// otherNetworks contains a network for each plugin that is missing from stressNetworks.
var otherNetworks = []struct{ name, plugins string }{
	{"loopback", `{"type": "loopback"}`},
	{"host-local", `{"type": "host-local", "ipam": {"type": "host-local", "dataDir": "DIR/large", "ranges": [[{"subnet": "10.8.0.0/16"}], [{"subnet": "fd00:8::/64"}]]}}`},
	{"static", `{"type": "static", "ipam": {"type": "static", "addresses": [{"address": "192.0.2.10/24"}, {"address": "2001:db8::10/64"}]}}`},
}

// newStressHostWithAllPlugins returns a host with stressNetworks and otherNetworks.
func newStressHostWithAllPlugins() *stressHost {
	GinkgoHelper()
	s := newStressHost()
	nstest.Build(GinkgoTB(), "loopback", "static")
	for _, network := range otherNetworks {
		s.addNetwork(network.name, network.plugins)
	}
	return s
}

// runAllVerbs calls every verb for one attachment of a network. The plugins are started with e.
func (s *stressHost) runAllVerbs(e invoke.Exec, network int) error {
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
func (s *stressHost) fillPool(network string, n int) {
	GinkgoHelper()
	dir := filepath.Join(s.dir, "large", network)
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	for i := range n {
		name := filepath.Join(dir, fmt.Sprintf("10.8.%d.%d", i>>8+1, i&255))
		Expect(os.WriteFile(name, fmt.Appendf(nil, "%064d\r\neth0", i), 0o600)).To(Succeed())
	}
}

// A meter starts libcni's plugins on the host, with at most 64 open files. It records their peak resident
// memory, and returns an error if a plugin leaves a process running.
type meter struct {
	invoke.RawExec
	version.PluginDecoder
	host  *nstest.NS
	peaks map[string]int // from a call, for example "bridge ADD", to KiB
}

func (m *meter) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) (output []byte, err error) {
	var kib int
	err = m.host.Do(func() (err error) {
		kib, output, err = nstest.PeakMemory(environ, stdin, "/bin/sh", "-c", `ulimit -n 64 && exec "$0"`, path)
		return err
	})
	call := filepath.Base(path) + " " + commandOf(environ)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", call, err, output)
	}
	if left := childPIDs(); len(left) > 0 {
		return nil, fmt.Errorf("%s left running processes: %v", call, left)
	}
	m.peaks[call] = max(m.peaks[call], kib)
	return output, nil
}

func commandOf(environ []string) string {
	for _, v := range slices.Backward(environ) {
		if value, ok := strings.CutPrefix(v, "CNI_COMMAND="); ok {
			return value
		}
	}
	return ""
}

var _ = Describe("a plugin call", func() {
	It("needs few open files, less than 16 MiB of memory plus 300 bytes per reservation, and leaves no process running", func() {
		nstest.LeakCheck(GinkgoTB())
		adoptOrphans()
		reserved := fullOrCI(60_000, 5_000)
		s := newStressHostWithAllPlugins()
		m := &meter{host: s.Host, peaks: map[string]int{}}
		s.fillPool("host-local", reserved)
		for n := range s.lists {
			err := s.runAllVerbs(m, n)
			record("all verbs with RLIMIT_NOFILE 64, no process left", err == nil)
			Expect(err).NotTo(HaveOccurred(), s.lists[n].Name)
		}
		calls := slices.SortedFunc(maps.Keys(m.peaks), func(a, b string) int { return m.peaks[b] - m.peaks[a] })
		Expect(len(calls)).To(BeNumerically(">=", 5*8), "%v", calls)
		limit := maxMemoryKiB(reserved)
		row := fmt.Sprintf("memory below %.1f MiB with %d other reservations (maximum: %.1f MiB, %s)",
			float64(limit)/1024, reserved, float64(m.peaks[calls[0]])/1024, calls[0])
		for _, call := range calls {
			GinkgoWriter.Printf("%6d KiB  %s\n", m.peaks[call], call)
			record(row, m.peaks[call] < limit)
			Expect(m.peaks[call]).To(BeNumerically("<", limit), call)
		}
	})

	DescribeTable("does not pass open files to the programs that it starts", func(network, program string, path func(bin string) string, variable string) {
		s := newStressHost()
		dir := GinkgoTB().TempDir()
		Expect(os.WriteFile(filepath.Join(dir, program), fmt.Appendf(nil, "#!/bin/sh\nls -l /proc/self/fd >>%s/list\nexec %s \"$@\"\n", dir, path(s.bin)), 0o755)).To(Succeed())

		n := s.networkIndex(network)
		c := s.firstPluginADD(n, s.newContainer("a", n))
		for i, v := range c.Env {
			if value, ok := strings.CutPrefix(v, variable+"="); ok {
				c.Env[i] = variable + "=" + dir + ":" + value
			}
		}
		// The programs inherit the runtime's descriptors, because the plugin does not close them.
		null, err := os.Open(os.DevNull)
		Expect(err).NotTo(HaveOccurred())
		defer null.Close()
		c.ExtraFiles = []*os.File{null, null}
		runtimes := exec.Command("ls", "-l", "/proc/self/fd")
		runtimes.ExtraFiles = c.ExtraFiles
		passed, err := runtimes.Output()
		Expect(err).NotTo(HaveOccurred())

		out, err := s.runOnHost(c)
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

	It("leaves nothing behind if its environment causes a failure", func() {
		adoptOrphans()
		s := newStressHost()
		s.runOnePerNetwork()
		before := nstest.WaitStable(s.state)
		for what, cause := range failureCauses {
			for _, network := range []string{"bridge", "ptp", "macvlan", "iptables"}[:fullOrCI(4, 2)] {
				n := s.networkIndex(network)
				c := s.firstPluginADD(n, s.newContainer("fails", n))
				cause(c)
				out, err := s.runOnHost(c)
				running := childPIDs()
				Expect(err).To(HaveOccurred(), "%s: %s: %s", what, network, out)
				left := nstest.WaitEqual(before, s.state)
				record("a call that fails because of its environment, nothing left", len(running) == 0 && left == "")
				Expect(running).To(BeEmpty(), "%s: %s: processes; %s", what, network, out)
				Expect(left).To(BeEmpty(), "%s: %s: left; %s", what, network, out)
			}
		}
	})
})

// failureCauses maps names to changes of a call's environment with which the call fails.
var failureCauses = map[string]func(c *exec.Cmd){
	"stdout is a closed pipe":            func(c *exec.Cmd) { c.Stdout = closedPipe() },
	"stdout and stderr are closed pipes": func(c *exec.Cmd) { c.Stdout, c.Stderr = closedPipe(), closedPipe() },
	"stdout is /dev/full": func(c *exec.Cmd) {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(full.Close)
		c.Stdout = full
	},
	"stdin ends early": func(c *exec.Cmd) {
		conf, err := io.ReadAll(c.Stdin)
		Expect(err).NotTo(HaveOccurred())
		c.Stdin = bytes.NewReader(conf[:len(conf)/2])
	},
	"stdin is empty":                           func(c *exec.Cmd) { c.Stdin = nil },
	"the namespace does not exist":             func(c *exec.Cmd) { c.Env = append(c.Env, "CNI_NETNS=/does/not/exist") },
	"the IPAM plugin is missing":               func(c *exec.Cmd) { c.Env = append(c.Env, "CNI_PATH=/nonexistent") },
	"the IPAM plugin fails":                    replaceIPAM(`exit 3`),
	"the IPAM plugin is killed":                replaceIPAM(`kill -9 $$`),
	"the IPAM plugin prints an invalid result": replaceIPAM(`echo '{"ips": 5}'`),
}

// parseDescriptors returns the distinct descriptors in a listing of /proc/self/fd, except the standard streams
// and the directory itself.
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

// closedPipe returns the writing end of a pipe that no process reads.
func closedPipe() *os.File {
	GinkgoHelper()
	r, w, err := os.Pipe()
	Expect(errors.Join(err, r.Close())).To(Succeed())
	DeferCleanup(w.Close)
	return w
}

// replaceIPAM returns a cause with which the plugin runs a script instead of host-local's ADD.
func replaceIPAM(script string) func(c *exec.Cmd) {
	return func(c *exec.Cmd) {
		dir := GinkgoTB().TempDir()
		Expect(os.WriteFile(filepath.Join(dir, "host-local"),
			fmt.Appendf(nil, "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\n%s\n", script), 0o755)).To(Succeed())
		c.Env = append(c.Env, "CNI_PATH="+dir)
	}
}

// firstPluginADD returns an ADD of the network's first plugin without starting it.
func (s *stressHost) firstPluginADD(network int, c *stressContainer) *exec.Cmd {
	GinkgoHelper()
	cmd := exec.Command(filepath.Join(s.bin, s.lists[network].Plugins[0].Network.Type))
	cmd.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + c.id, "CNI_IFNAME=eth0", "CNI_NETNS=" + c.container.Path(),
		"CNI_PATH=" + s.bin, "PATH=" + os.Getenv("PATH"),
	}
	cmd.Stdin = s.firstPluginConfig(network)
	return cmd
}

// runOnHost runs a process on the host and returns its output.
func (s *stressHost) runOnHost(c *exec.Cmd) (string, error) {
	var out bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &out
	}
	if c.Stderr == nil {
		c.Stderr = &out
	}
	err := s.Host.Start(c)
	if err == nil {
		err = c.Wait()
	}
	return out.String(), err
}
