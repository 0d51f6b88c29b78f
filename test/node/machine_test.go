package node

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A lan is the segment of the nodes' uplinks, and a host on it that is not a node.
type lan struct{ *nstest.NS }

func newLAN() lan {
	GinkgoHelper()
	l := lan{nstest.NewHost(GinkgoTB()).Named("outside")}
	l.SkipDAD(GinkgoTB())
	l.Batch(GinkgoTB(), "link add lan type bridge", "link set lan up", "addr add "+nstest.OutsideV4+"/24 dev lan", "addr add "+nstest.OutsideV6+"/64 dev lan")
	return l
}

// A machine is a host on a LAN with directories and namespaces of its own. Its daemons run until the machine is switched off.
type machine struct {
	name   string
	v4, v6 string // addresses on the LAN
	*nstest.NS
	lan    lan
	dir    string // survives a reboot
	init   *exec.Cmd
	daemon io.WriteCloser // starts daemons
	pid    string         // process 1 of the machine
}

// newMachine switches on a new machine with the number n.
func (l lan) newMachine(n int) *machine {
	GinkgoHelper()
	m := &machine{name: fmt.Sprint("node", n), v4: fmt.Sprint("198.18.0.1", n), v6: fmt.Sprint("2001:db8:18::1", n), lan: l, dir: GinkgoT().TempDir()}
	m.switchOn()
	DeferCleanup(m.switchOff)
	return m
}

// switchOn starts the machine with a new network namespace.
func (m *machine) switchOn() {
	GinkgoHelper()
	m.NS = nstest.NewHost(GinkgoTB()).Named(m.name)
	nstest.Join(GinkgoTB(), nstest.End{In: m.NS, Name: "eth0", Addrs: []string{m.v4 + "/24", m.v6 + "/64"}}, nstest.End{In: m.lan.NS, Name: m.name})
	m.lan.Batch(GinkgoTB(), "link set "+m.name+" master lan")
	m.Batch(GinkgoTB(), "route add default via "+nstest.OutsideV4, "route add default via "+nstest.OutsideV6)
	m.SetForwarding(GinkgoTB(), "1")

	m.init = exec.Command("bash", "machine.sh", m.dir, m.name)
	m.init.Stderr = GinkgoWriter
	var err error
	m.daemon, err = m.init.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	out, err := m.init.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(m.Start(m.init)).To(Succeed())
	line, err := bufio.NewReader(out).ReadString('\n')
	Expect(err).NotTo(HaveOccurred())
	Expect(line).To(Equal("ready\n"))
	children := nstest.ReadFile(GinkgoTB(), fmt.Sprintf("/proc/%d/task/%[1]d/children", m.init.Process.Pid))
	m.pid = strings.TrimSpace(children)
}

// switchOff ends all processes of the machine at once, and removes its control groups.
func (m *machine) switchOff() {
	GinkgoHelper()
	_ = m.daemon.Close()
	_ = m.init.Process.Kill() // of unshare, which kills process 1 of the machine
	_ = m.init.Wait()
	Eventually(func() string {
		out, _ := exec.Command("find", "/sys/fs/cgroup", "-depth", "-type", "d", "-path", "*/"+os.Getenv("PLUMB_CGROUP")+"-"+m.name+"*", "-exec", "rmdir", "{}", "+", "-print").CombinedOutput()
		return string(out)
	}).Should(BeEmpty())
	_, _ = m.lan.Exec("ip", "link", "delete", m.name) // it may have ended with the network namespace of the machine
	m.Remove(GinkgoTB())
}

// path returns the path by which this process reaches a file of the machine.
func (m *machine) path(name string) string { return filepath.Join("/proc", m.pid, "root", name) }

// write writes a file of the machine. The text is a template with these values.
func (m *machine) write(name, text string, values any) {
	GinkgoHelper()
	parsed, err := template.New(name).Option("missingkey=error").Parse(text)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.MkdirAll(filepath.Dir(m.path(name)), 0o755)).To(Succeed())
	f, err := os.OpenFile(m.path(name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	Expect(err).NotTo(HaveOccurred())
	Expect(parsed.Execute(f, values)).To(Succeed())
	Expect(f.Close()).To(Succeed())
}

// writeTemplate writes the file of the same name in testdata, in a directory of the machine.
func (m *machine) writeTemplate(dir, name string, values any) {
	GinkgoHelper()
	text := nstest.ReadFile(GinkgoTB(), filepath.Join("testdata", name))
	m.write(filepath.Join(dir, name), text, values)
}

// start starts a daemon. Its arguments must not contain spaces.
func (m *machine) start(name string, command ...string) {
	GinkgoHelper()
	_ = os.Remove(m.path("/run/" + name + ".pid"))
	_, err := fmt.Fprintln(m.daemon, name, strings.Join(command, " "))
	Expect(err).NotTo(HaveOccurred())
	Eventually(m.path("/run/" + name + ".pid")).Should(BeAnExistingFile())
}

// stop ends daemons with a signal, and waits until they have ended.
func (m *machine) stop(signal string, names ...string) {
	GinkgoHelper()
	for _, name := range names {
		pid := strings.TrimSpace(nstest.ReadFile(GinkgoTB(), m.path("/run/"+name+".pid")))
		m.mustRun("kill", "-"+signal, pid)
		Eventually(m.path("/proc/" + pid)).ShouldNot(BeAnExistingFile())
	}
}

// command returns a command in all namespaces of the machine.
func (m *machine) command(name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", m.pid, "--net", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--", name}, args...)...)
}

// run runs a command in all namespaces of the machine, and returns what it printed.
func (m *machine) run(name string, args ...string) (string, error) {
	out, err := m.command(name, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s on %s: %w\n%s", name, strings.Join(args, " "), m.name, err, out)
	}
	return string(out), err
}

// mustRun is run, but fails the spec on an error.
func (m *machine) mustRun(name string, args ...string) string {
	GinkgoHelper()
	out, err := m.run(name, args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// logs adds the last lines of all logs to the report of a failed spec.
func (m *machine) logs() {
	if !CurrentSpecReport().Failed() {
		return
	}
	files, _ := filepath.Glob(m.path("/var/log/*.log"))
	for _, f := range files {
		out, _ := exec.Command("tail", "-n", "15", f).CombinedOutput()
		GinkgoWriter.Printf("%s of %s:\n%s\n", filepath.Base(f), m.name, out)
	}
}
