package main

import (
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

// Whatever a spec does, the calls leave nothing in this process.
var _ = BeforeEach(func() { nstest.LeakCheck(GinkgoTB()) })

func TestExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error {
		_, err := parse(r)
		return err
	})
}

// A bed is a node as far as the plugin sees one: a data folder, a boot, a clock.
type bed struct {
	dataDir string
	bootID  string // path
	clock   time.Duration
	wait    time.Duration
	steps   []string // of the last call
}

func newBed() *bed {
	dir := GinkgoT().TempDir()
	b := &bed{dataDir: filepath.Join(dir, "networks"), bootID: filepath.Join(dir, "boot_id"), clock: time.Hour, wait: time.Minute}
	b.boot("6f1e8a52-0000-4000-8000-000000000001")
	return b
}

// boot starts the node anew.
func (b *bed) boot(id string) {
	GinkgoHelper()
	Expect(os.WriteFile(b.bootID, []byte(id+"\n"), 0o600)).To(Succeed())
}

func (b *bed) plugin() skel.Plugin {
	return host{bootID: b.bootID, wait: b.wait, now: func() time.Duration { return b.clock }}.plugin()
}

// A try is one call: what differs from the usual.
type try struct {
	ipam    string // the members of ipam but type and dataDir
	more    string // members of the configuration: `"runtimeConfig": {…}`
	args    string // CNI_ARGS
	ifName  string
	version string // empty: 1.1.0
	network string // empty: net
}

const subnet = `"subnet": "10.1.2.0/24"`

func (b *bed) config(t try) string {
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	if t.more != "" {
		t.more = ", " + t.more
	}
	return fmt.Sprintf(`{"cniVersion": %q, "name": %q, "type": "bridge"%s, "ipam": {"type": "host-local", "dataDir": %q, %s}}`,
		or(t.version, "1.1.0"), or(t.network, "net"), t.more, b.dataDir, or(t.ipam, subnet))
}

func (b *bed) call(id string, t try) nstest.Call {
	return nstest.Call{ContainerID: id, IfName: t.ifName, NetNS: "/dev/null", Args: t.args, Config: b.config(t)}
}

func (b *bed) run(command, id string, t try) nstest.Reply {
	b.steps = nil
	c := b.call(id, t).With(command)
	c.Before = func(step string) error { b.steps = append(b.steps, step); return nil }
	return nstest.Run(b.plugin(), c)
}

// add gives the addresses of a successful ADD.
func (b *bed) add(id string, t try) string {
	GinkgoHelper()
	var ips []string
	for _, ip := range b.run("ADD", id, t).Result(GinkgoTB()).IPs {
		ips = append(ips, ip.Address.String())
	}
	return strings.Join(ips, " ")
}

func (b *bed) ok(command, id string, t try) {
	GinkgoHelper()
	b.run(command, id, t).OK(GinkgoTB())
}

func (b *bed) fails(command, id string, t try) nstest.Failure {
	GinkgoHelper()
	return b.run(command, id, t).Failure(GinkgoTB())
}

func (b *bed) net(name string) string { return filepath.Join(b.dataDir, "net", name) }

// put writes a file of the network by hand.
func (b *bed) put(name, content string) {
	GinkgoHelper()
	Expect(os.MkdirAll(b.net(""), 0o755)).To(Succeed())
	Expect(os.WriteFile(b.net(name), []byte(content), 0o600)).To(Succeed())
}

// reserved lists the reservations: "10.1.2.2 c1/eth0".
func (b *bed) reserved() []string {
	GinkgoHelper()
	files, err := os.ReadDir(b.net(""))
	Expect(err).NotTo(HaveOccurred())
	all := []string{}
	for _, f := range files {
		if _, ok := parseName(f.Name()); ok {
			content, err := os.ReadFile(b.net(f.Name()))
			Expect(err).NotTo(HaveOccurred())
			all = append(all, f.Name()+" "+strings.Replace(string(content), "\r\n", "/", 1))
		}
	}
	slices.Sort(all)
	return all
}

// likeReference changes the network's folder as the reference does: under the lock,
// create first and write then.
func (b *bed) likeReference(f func()) {
	GinkgoHelper()
	Expect(os.MkdirAll(b.net(""), 0o755)).To(Succeed())
	lock, err := os.OpenFile(b.net("lock"), os.O_RDONLY|os.O_CREATE, 0o750)
	Expect(err).NotTo(HaveOccurred())
	defer func() { Expect(lock.Close()).To(Succeed()) }()
	Expect(unix.Flock(int(lock.Fd()), unix.LOCK_EX)).To(Succeed())
	f()
}

func (b *bed) referenceAdd(ip, id string) {
	GinkgoHelper()
	b.likeReference(func() {
		f, err := os.OpenFile(b.net(ip), os.O_RDWR|os.O_EXCL|os.O_CREATE, 0o600)
		Expect(err).NotTo(HaveOccurred())
		_, err = f.WriteString(id + "\r\neth0")
		Expect(err).NotTo(HaveOccurred())
		Expect(f.Close()).To(Succeed())
		Expect(os.WriteFile(b.net("last_reserved_ip.0"), []byte(ip), 0o600)).To(Succeed())
	})
}

// walked reports whether the last call read all reservations.
func (b *bed) walked() bool {
	return slices.ContainsFunc(b.steps, func(s string) bool { return strings.HasPrefix(s, "read reservations") })
}
