package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestPlumb(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "cmd/plumb")
}

// A testbed is a host with its own directories, a runtime that uses libcni as containerd does, and the
// executable plumb.
type testbed struct {
	host *nstest.NS
	dir  string // contains conf, cache, data and state
	bin  string // contains plumb and the plugins
	cni  *libcni.CNIConfig
}

// newTestbed returns a host without networks.
func newTestbed() *testbed {
	GinkgoHelper()
	tb := GinkgoTB()
	b := &testbed{host: nstest.NewHost(tb), dir: tb.TempDir()}
	b.bin = nstest.Build(tb, "plumb", "bridge", "host-local", "portmap", "tuning", "loopback", "macvlan", "bandwidth", "static", "tc-redirect-tap", "host-access")
	b.cni = cnitest.New(b.host, b.path("cache"), b.bin)
	for _, dir := range []string{"conf", "cache", "data"} {
		Expect(os.Mkdir(b.path(dir), 0o755)).To(Succeed())
	}
	return b
}

func (b *testbed) path(name string) string { return filepath.Join(b.dir, name) }

// run runs the tool on the host, with its directories and this stdin.
func (b *testbed) run(stdin string, args ...string) nstest.Reply {
	GinkgoHelper()
	cmd := exec.Command(filepath.Join(b.bin, "plumb"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	return b.wait(cmd)
}

// runAs is run for another user than root.
func (b *testbed) runAs(user uint32, args ...string) nstest.Reply {
	GinkgoHelper()
	nstest.RequireRoot(GinkgoTB(), "to start programs of another user")
	cmd := exec.Command(filepath.Join(b.bin, "plumb"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	return b.wait(cmd)
}

// wait runs a command on the host. If cmd.Env is empty, wait sets variables that name the testbed's
// directories.
func (b *testbed) wait(cmd *exec.Cmd) nstest.Reply {
	GinkgoHelper()
	if cmd.Env == nil {
		cmd.Env = append(os.Environ(), "NETCONFPATH="+b.path("conf"), "CNI_PATH="+b.bin)
	}
	var stdout, stderr strings.Builder
	if cmd.Stdout == nil {
		cmd.Stdout = io.MultiWriter(&stdout, GinkgoWriter)
	}
	cmd.Stderr = io.MultiWriter(&stderr, GinkgoWriter)
	fmt.Fprintln(GinkgoWriter, "$ plumb", strings.Join(cmd.Args[1:], " "))
	err := b.host.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if status := (*exec.ExitError)(nil); err != nil && !errors.As(err, &status) {
		Expect(err).NotTo(HaveOccurred())
	}
	return nstest.Reply{Stdout: stdout.String(), Stderr: stderr.String(), Exit: cmd.ProcessState.ExitCode()}
}

// plumb runs a command that reads the host and must succeed. It returns stdout.
func (b *testbed) plumb(args ...string) string {
	GinkgoHelper()
	reply := b.run("", append(args, b.directories()...)...)
	Expect(reply.Exit).To(Equal(0), reply.Stderr)
	return reply.Stdout
}

// directories returns the flags that name the testbed's directories.
func (b *testbed) directories() []string {
	return []string{"--cache-dir", b.path("cache"), "--data-dir", b.path("data")}
}

// inventory returns the output of list as an Inventory.
func (b *testbed) inventory() *node.Inventory {
	GinkgoHelper()
	inv := &node.Inventory{}
	Expect(json.Unmarshal([]byte(b.plumb("list", "-o", "json")), inv)).To(Succeed())
	return inv
}

// chain is a network configuration for containerd.
const chain = `{
	"cniVersion": "1.1.0",
	"name": "pods",
	"plugins": [
		{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipam": {
			"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1:2::/64"}]]}},
		{"type": "portmap", "capabilities": {"portMappings": true}},
		{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400}
	]
}`

// network writes a configuration and returns it. DIR stands for the directory of the testbed.
func (b *testbed) network(file, text string) *libcni.NetworkConfigList {
	GinkgoHelper()
	path := filepath.Join(b.path("conf"), file)
	Expect(os.WriteFile(path, []byte(strings.ReplaceAll(text, "DIR", b.dir)), 0o644)).To(Succeed())
	var conf struct{ Name string }
	Expect(json.Unmarshal([]byte(text), &conf)).To(Succeed())
	list, err := libcni.LoadNetworkConf(b.path("conf"), conf.Name)
	Expect(err).NotTo(HaveOccurred())
	return list
}

// A container is a container that a runtime attaches.
type container = cnitest.Container

// newContainer returns a container with a host port for each of ports. If the container loses its namespace, no other
// suite may use the ID, because plumb looks for the container's links in the namespaces of all processes.
func newContainer(id string, ports ...int) *container {
	GinkgoHelper()
	p := cnitest.NewContainer(id)
	var mappings []map[string]any
	for _, port := range ports {
		mappings = append(mappings, map[string]any{"hostPort": port, "containerPort": 80, "protocol": "tcp"})
	}
	p.RT.CapabilityArgs = map[string]any{"portMappings": mappings}
	return p
}

func (b *testbed) add(list *libcni.NetworkConfigList, p *container) {
	GinkgoHelper()
	_, err := b.cni.AddNetworkList(context.Background(), list, p.RT)
	Expect(err).NotTo(HaveOccurred())
}

// startProcess starts a process in the container, and returns its PID.
func startProcess(p *container) int {
	GinkgoHelper()
	cmd := exec.Command("sleep", "infinity")
	Expect(p.Start(cmd)).To(Succeed())
	DeferCleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// state returns the state of the host and of all files.
func (b *testbed) state() string {
	GinkgoHelper()
	return nstest.Snapshot(GinkgoTB(), b.host) + nstest.SnapshotDir(GinkgoTB(), b.dir) + nstest.SnapshotDir(GinkgoTB(), "/run/cni")
}

// id returns an ID like containerd's, with 64 hexadecimal digits.
func id(first string) string { return first + strings.Repeat("0", 64-len(first)) }
