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

// maxPeak is what a plugin may have resident, in KiB.
const maxPeak = 16 << 10

// alone are the executables that no network of climate starts as its first or a later
// plugin.
var alone = []struct{ name, plugins string }{
	{"loopback", `{"type": "loopback"}`},
	{"host-local", `{"type": "host-local", "ipam": {"type": "host-local", "dataDir": "DIR/large", "ranges": [[{"subnet": "10.8.0.0/16"}], [{"subnet": "fd00:8::/64"}]]}}`},
	{"static", `{"type": "static", "ipam": {"type": "static", "addresses": [{"address": "192.0.2.10/24"}, {"address": "2001:db8::10/64"}]}}`},
}

// newHouse is a storm's node that has the networks of alone besides.
func newHouse() *storm {
	GinkgoHelper()
	s := newStorm()
	nstest.Build(GinkgoTB(), "loopback", "static")
	for _, network := range alone {
		s.addNetwork(network.name, network.plugins)
	}
	return s
}

// through runs every verb over one attachment of a network, with libcni starting the
// plugins by e.
func (s *storm) through(e invoke.Exec, network int) error {
	GinkgoHelper()
	ctx, list, l := context.Background(), s.lists[network], s.life("all", network)
	conf := s.conf(l, l.legs[0])
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

// fill gives the network a pool in which so many have an address, reserved by the
// reference plugin: nothing but files.
func (s *storm) fill(network string, n int) {
	GinkgoHelper()
	dir := filepath.Join(s.dir, "large", network)
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	for i := range n {
		name := filepath.Join(dir, fmt.Sprintf("10.8.%d.%d", i>>8+1, i&255))
		Expect(os.WriteFile(name, fmt.Appendf(nil, "%064d\r\neth0", i), 0o600)).To(Succeed())
	}
}

// weighing starts plugins and notes what each call had resident at most.
type weighing struct {
	invoke.RawExec
	version.PluginDecoder
	node  *nstest.NS
	dir   string
	peaks map[string]int // "bridge ADD" → KiB
}

func (w *weighing) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	in, out := filepath.Join(w.dir, "in"), filepath.Join(w.dir, "out")
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
	err := w.node.Do(func() (err error) {
		kib, err = nstest.PeakMemory(path, environ, stdinFile, stdoutFile)
		return err
	})
	said, readErr := os.ReadFile(out)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(path), err, said)
	}
	call := filepath.Base(path) + " " + command(environ)
	w.peaks[call] = max(w.peaks[call], kib)
	return said, readErr
}

// command is CNI_COMMAND.
func command(environ []string) string {
	for _, v := range slices.Backward(environ) {
		if value, ok := strings.CutPrefix(v, "CNI_COMMAND="); ok {
			return value
		}
	}
	return ""
}

// frugal starts plugins that may have 64 open files, and sees that each leaves no
// process behind. What it starts has GOMAXPROCS as it is.
type frugal struct {
	invoke.RawExec
	version.PluginDecoder
	node *nstest.NS
}

func (f *frugal) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("/bin/sh", "-c", `ulimit -n 64 && exec "$0"`, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), &stdout, &stderr
	err := f.node.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", filepath.Base(path), err, &stdout, &stderr)
	}
	if left := children(); len(left) > 0 {
		return nil, fmt.Errorf("%s %s left processes: %v", filepath.Base(path), command(environ), left)
	}
	return stdout.Bytes(), nil
}

var _ = Describe("what a call takes of the node", func() {
	It("is less than 16 MiB of memory, whatever the verb", func() {
		reserved := 5_000
		if all() {
			reserved = 60_000
		}
		s := newHouse()
		w := &weighing{node: s.Node, dir: GinkgoTB().TempDir(), peaks: map[string]int{}}
		s.fill("host-local", reserved)
		for n := range s.lists {
			Expect(s.through(w, n)).To(Succeed(), s.lists[n].Name)
		}
		calls := slices.SortedFunc(maps.Keys(w.peaks), func(a, b string) int { return w.peaks[b] - w.peaks[a] })
		Expect(len(calls)).To(BeNumerically(">=", 5*8), "%v", calls)
		row := fmt.Sprintf("memory below 16 MiB (the most: %.1f MiB, %s)", float64(w.peaks[calls[0]])/1024, calls[0])
		for _, call := range calls {
			GinkgoWriter.Printf("%6d KiB  %s\n", w.peaks[call], call)
			tried(row, w.peaks[call] < maxPeak)
			Expect(w.peaks[call]).To(BeNumerically("<", maxPeak), call)
		}
	})

	It("is fewer than 64 open files, and no process afterwards", func() {
		nstest.LeakCheck(GinkgoTB())
		adoptOrphans()
		s := newHouse()
		for n := range s.lists {
			err := s.through(&frugal{node: s.Node}, n)
			tried("a life under RLIMIT_NOFILE 64, no process left", err == nil)
			Expect(err).NotTo(HaveOccurred(), s.lists[n].Name)
		}
	})

	DescribeTable("is not passed on to the programs that it starts", func(network, program string, path func(bin string) string, variable string) {
		s := newStorm()
		dir := GinkgoTB().TempDir()
		Expect(os.WriteFile(filepath.Join(dir, program), fmt.Appendf(nil, "#!/bin/sh\nls -l /proc/self/fd >>%s/list\nexec %s \"$@\"\n", dir, path(s.bin)), 0o755)).To(Succeed())

		n := s.network(network)
		c := s.first(n, s.life("a", n))
		for i, v := range c.Env {
			if value, ok := strings.CutPrefix(v, variable+"="); ok {
				c.Env[i] = variable + "=" + dir + ":" + value
			}
		}
		// What a careless runtime leaves open is no business of the plugin's.
		null, err := os.Open(os.DevNull)
		Expect(err).NotTo(HaveOccurred())
		defer null.Close()
		c.ExtraFiles = []*os.File{null, null}
		runtimes := exec.Command("ls", "-l", "/proc/self/fd")
		runtimes.ExtraFiles = c.ExtraFiles
		passed, err := runtimes.Output()
		Expect(err).NotTo(HaveOccurred())

		out, err := s.output(c)
		Expect(err).NotTo(HaveOccurred(), out)
		seen, err := os.ReadFile(filepath.Join(dir, "list"))
		Expect(err).NotTo(HaveOccurred())
		same := slices.Equal(descriptors(seen), descriptors(passed))
		tried("no descriptor handed to a program", same)
		Expect(descriptors(passed)).To(ContainElements("3 /dev/null", "4 /dev/null"))
		Expect(descriptors(seen)).To(Equal(descriptors(passed)))
	},
		Entry("an IPAM plugin", "dual", "host-local", func(bin string) string { return filepath.Join(bin, "host-local") }, "CNI_PATH"),
		Entry("iptables", "tables", "iptables-restore", func(string) string { return realProgram("iptables-restore") }, "PATH"),
	)

	DescribeTable("is nothing after a call that fails", func(spoil func(c *exec.Cmd)) {
		adoptOrphans()
		s := newStorm()
		s.calm()
		before := nstest.WaitStable(s.state)
		networks := []string{"dual", "routed"}
		if all() {
			networks = []string{"dual", "routed", "segment", "tables"}
		}
		for _, network := range networks {
			n := s.network(network)
			c := s.first(n, s.life("fails", n))
			spoil(c)
			out, err := s.output(c)
			running := children()
			Expect(err).To(HaveOccurred(), "%s: %s", network, out)
			left := nstest.WaitEqual(before, s.state)
			tried("a call that fails by its surroundings, nothing left", len(running) == 0 && left == "")
			Expect(running).To(BeEmpty(), "%s: processes; %s", network, out)
			Expect(left).To(BeEmpty(), "%s: left; %s", network, out)
		}
	},
		Entry("nobody reads its answer", func(c *exec.Cmd) {
			r, w, err := os.Pipe()
			Expect(errors.Join(err, r.Close())).To(Succeed())
			c.Stdout = closed(w)
		}),
		Entry("its answer does not fit", func(c *exec.Cmd) {
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			Expect(err).NotTo(HaveOccurred())
			c.Stdout = closed(full)
		}),
		Entry("nobody reads anything of it", func(c *exec.Cmd) {
			r, w, err := os.Pipe()
			Expect(errors.Join(err, r.Close())).To(Succeed())
			c.Stdout = closed(w)
			c.Stderr = w
		}),
		Entry("stdin is cut short", func(c *exec.Cmd) {
			conf, err := io.ReadAll(c.Stdin)
			Expect(err).NotTo(HaveOccurred())
			c.Stdin = bytes.NewReader(conf[:len(conf)/2])
		}),
		Entry("stdin is empty", func(c *exec.Cmd) { c.Stdin = nil }),
		Entry("the namespace is gone", func(c *exec.Cmd) { c.Env = append(c.Env, "CNI_NETNS=/does/not/exist") }),
		Entry("the IPAM plugin is missing", func(c *exec.Cmd) { c.Env = append(c.Env, "CNI_PATH=/nonexistent") }),
		Entry("the IPAM plugin fails", withIPAM(`exit 3`)),
		Entry("the IPAM plugin is killed", withIPAM(`kill -9 $$`)),
		Entry("the IPAM plugin talks nonsense", withIPAM(`echo '{"ips": 5}'`)),
	)
})

// descriptors are those of a listing of /proc/self/fd, each once, but for the three
// streams and the folder itself.
func descriptors(list []byte) []string {
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

// closed closes the file at the end of the spec.
func closed(f *os.File) *os.File {
	DeferCleanup(f.Close)
	return f
}

// withIPAM puts a script in the place of host-local's ADD.
func withIPAM(script string) func(c *exec.Cmd) {
	return func(c *exec.Cmd) {
		dir := GinkgoTB().TempDir()
		Expect(os.WriteFile(filepath.Join(dir, "host-local"),
			fmt.Appendf(nil, "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\n%s\n", script), 0o755)).To(Succeed())
		c.Env = append(c.Env, "CNI_PATH="+dir)
	}
}

// first is the ADD of the network's first plugin, as a process that is not started.
func (s *storm) first(network int, l *life) *exec.Cmd {
	GinkgoHelper()
	c := exec.Command(filepath.Join(s.bin, s.lists[network].Plugins[0].Network.Type))
	c.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + l.id, "CNI_IFNAME=eth0", "CNI_NETNS=" + l.pod.Path(),
		"CNI_PATH=" + s.bin, "PATH=" + os.Getenv("PATH"),
	}
	c.Stdin = s.stdin(network)
	return c
}

// output runs a process on the node and gives all that it wrote.
func (s *storm) output(c *exec.Cmd) (string, error) {
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
