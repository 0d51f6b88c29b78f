package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/test/nstest"
	"golang.org/x/sys/unix"
)

func TestHostLocal(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/host-local")
}

// No call may leave a descriptor, a goroutine, a child process or a thread in another network namespace.
var _ = BeforeEach(func() { nstest.LeakCheck(GinkgoTB()) })

func TestExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error {
		_, err := parse(r)
		return err
	})
}

// A testNode has what the plugin needs from a node: a data folder, a boot ID and a clock.
type testNode struct {
	dataDir string
	bootID  string // path
	clock   time.Duration
	wait    time.Duration
	steps   []string // of the last call
}

func newTestNode() *testNode {
	dir := GinkgoT().TempDir()
	node := &testNode{dataDir: filepath.Join(dir, "networks"), bootID: filepath.Join(dir, "boot_id"), clock: time.Hour, wait: time.Minute}
	node.boot("6f1e8a52-0000-4000-8000-000000000001")
	return node
}

// boot sets the boot ID, as a reboot does.
func (node *testNode) boot(id string) {
	GinkgoHelper()
	Expect(os.WriteFile(node.bootID, []byte(id+"\n"), 0o600)).To(Succeed())
}

func (node *testNode) plugin() skel.Plugin {
	return host{machine{bootID: node.bootID, wait: node.wait, now: func() time.Duration { return node.clock }}}.plugin()
}

// A variant has what differs from the default configuration and environment of a call.
type variant struct {
	ipam    string // the members of ipam except type and dataDir; empty: a subnet
	more    string // further members of the configuration: `"runtimeConfig": {…}`
	args    string // CNI_ARGS
	ifName  string
	version string // empty: 1.1.0
	network string // empty: net
}

const subnet = `"subnet": "10.1.2.0/24"`

// config returns the configuration of a call.
func (node *testNode) config(t variant) string {
	if t.more != "" {
		t.more = ", " + t.more
	}
	return fmt.Sprintf(`{"cniVersion": %q, "name": %q, "type": "bridge"%s, "ipam": {"type": "host-local", "dataDir": %q, %s}}`,
		cmp.Or(t.version, "1.1.0"), cmp.Or(t.network, "net"), t.more, node.dataDir, cmp.Or(t.ipam, subnet))
}

func (node *testNode) call(id string, t variant) nstest.Call {
	return nstest.Call{ContainerID: id, IfName: t.ifName, NetNS: "/dev/null", Args: t.args, Config: node.config(t)}
}

// run calls the plugin and records the steps.
func (node *testNode) run(command, id string, t variant) nstest.Reply {
	node.steps = nil
	c := node.call(id, t).With(command)
	c.Before = func(step string) error { node.steps = append(node.steps, step); return nil }
	return nstest.Run(node.plugin(), c)
}

// add calls ADD, which must succeed, and returns the addresses, separated by spaces.
func (node *testNode) add(id string, t variant) string {
	GinkgoHelper()
	var ips []string
	for _, ip := range node.run("ADD", id, t).Result(GinkgoTB()).IPs {
		ips = append(ips, ip.Address.String())
	}
	return strings.Join(ips, " ")
}

// ok calls the plugin, which must succeed.
func (node *testNode) ok(command, id string, t variant) {
	GinkgoHelper()
	node.run(command, id, t).OK(GinkgoTB())
}

// fails calls the plugin, which must fail, and returns its error.
func (node *testNode) fails(command, id string, t variant) nstest.Failure {
	GinkgoHelper()
	return node.run(command, id, t).Failure(GinkgoTB())
}

// net returns the path of a file in the folder of the network.
func (node *testNode) net(name string) string { return filepath.Join(node.dataDir, "net", name) }

// put writes a file in the folder of the network, without the plugin.
func (node *testNode) put(name, content string) {
	GinkgoHelper()
	Expect(os.MkdirAll(node.net(""), 0o755)).To(Succeed())
	Expect(os.WriteFile(node.net(name), []byte(content), 0o600)).To(Succeed())
}

// reserved returns the reservations, for example "10.1.2.2 c1/eth0".
func (node *testNode) reserved() []string {
	GinkgoHelper()
	files, err := os.ReadDir(node.net(""))
	Expect(err).NotTo(HaveOccurred())
	all := []string{}
	for _, f := range files {
		if _, ok := parseName(f.Name()); ok {
			content, err := os.ReadFile(node.net(f.Name()))
			Expect(err).NotTo(HaveOccurred())
			all = append(all, f.Name()+" "+strings.Replace(string(content), "\r\n", "/", 1))
		}
	}
	slices.Sort(all)
	return all
}

// withReferenceLock calls f while it holds the lock of the network, as the reference plugin changes the
// folder.
func (node *testNode) withReferenceLock(f func()) {
	GinkgoHelper()
	Expect(os.MkdirAll(node.net(""), 0o755)).To(Succeed())
	lock, err := os.OpenFile(node.net("lock"), os.O_RDONLY|os.O_CREATE, 0o750)
	Expect(err).NotTo(HaveOccurred())
	defer func() { Expect(lock.Close()).To(Succeed()) }()
	Expect(unix.Flock(int(lock.Fd()), unix.LOCK_EX)).To(Succeed())
	f()
}

// referenceAdd reserves ip as the reference plugin does: it creates the file first and then writes it.
func (node *testNode) referenceAdd(ip, id string) {
	GinkgoHelper()
	node.withReferenceLock(func() {
		f, err := os.OpenFile(node.net(ip), os.O_RDWR|os.O_EXCL|os.O_CREATE, 0o600)
		Expect(err).NotTo(HaveOccurred())
		_, err = f.WriteString(id + "\r\neth0")
		Expect(err).NotTo(HaveOccurred())
		Expect(f.Close()).To(Succeed())
		Expect(os.WriteFile(node.net("last_reserved_ip.0"), []byte(ip), 0o600)).To(Succeed())
	})
}

// readAll reports whether the last call read all reservations.
func (node *testNode) readAll() bool {
	return slices.ContainsFunc(node.steps, func(s string) bool { return strings.HasPrefix(s, "read reservations") })
}
