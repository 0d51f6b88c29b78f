package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/test/faults/inject"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestMain(m *testing.M) {
	inject.Launch()
	os.Exit(m.Run())
}

// A subject is a plugin under one configuration.
type subject struct {
	name   string
	plugin string
	// keys are those of the configuration beside cniVersion, name, type and prevResult.
	// DIR in them is a folder for the plugin's files, PORT a number that differs from
	// container to container.
	keys string
	// below are the keys of the bridge that a chained plugin comes after; empty: none.
	below string
	// needsNamespace: the plugin can undo its changes in the container only with the
	// namespace. A DEL without the namespace and a GC need not undo them.
	needsNamespace bool
	// filesOnly: the plugin changes files, and nothing in a namespace.
	filesOnly bool
}

// A bed is a node and a container to test with. Another container, "warm", is already
// attached, so that the objects that containers share exist.
type bed struct {
	nstest.TB
	subject
	dir       string
	bin       string
	node, pod *nstest.NS
	prev      string // what the plugin below gave; empty: it is the first
	without   string // the node's state without the container
	before    string // the state of all before the plugin is called
}

func newBed(s subject) *bed {
	GinkgoHelper()
	tb := GinkgoTB()
	b := &bed{TB: tb, subject: s, dir: tb.TempDir(), bin: nstest.Build(tb, "bridge", "host-local", "static", s.plugin), node: nstest.NewNode(tb)}
	outside := nstest.NewNode(tb).Named("outside")
	nstest.Join(tb,
		nstest.End{In: b.node, Name: "uplink0", Addrs: []string{"198.18.0.1/24", "fd00:18::1/64"}},
		nstest.End{In: outside, Name: "uplink0", Addrs: []string{"198.18.0.2/24", "fd00:18::2/64"}})
	warm := nstest.New(tb)
	prev := b.attach("warm", warm)
	nstest.Exec(tb, b.program(), b.call("ADD", "warm", warm, prev)).OK(tb)
	b.without = nstest.WaitStable(func() string { return b.state(b.node) })
	b.renew()
	return b
}

// renew gives the bed a fresh container to be served.
func (b *bed) renew() {
	GinkgoHelper()
	if b.pod != nil {
		b.detach("swept", b.pod) // the kernel takes its time to end a namespace
		b.pod.Remove(b)
	}
	b.pod = nstest.New(b).Named("pod")
	b.prev = b.attach("swept", b.pod)
	b.before = nstest.WaitStable(b.fullState)
}

// attach runs the plugin below.
func (b *bed) attach(id string, pod *nstest.NS) string {
	GinkgoHelper()
	if b.below == "" {
		return ""
	}
	return b.bridge("ADD", id, pod).Stdout
}

func (b *bed) detach(id string, pod *nstest.NS) {
	GinkgoHelper()
	if b.below != "" {
		b.bridge("DEL", id, pod)
	}
}

func (b *bed) bridge(verb, id string, pod *nstest.NS) nstest.Reply {
	GinkgoHelper()
	c := b.call(verb, id, pod, "")
	c.Config = b.config("bridge", b.below, id, "")
	return nstest.Exec(b, filepath.Join(b.bin, "bridge"), c).OK(b)
}

func (b *bed) program() string { return filepath.Join(b.bin, b.plugin) }

// config is the plugin's, of the container.
func (b *bed) config(plugin, keys, id, prev string) string {
	number := "2"
	if id == "warm" {
		number = "1"
	}
	keys = strings.NewReplacer("DIR", b.dir, "PORT", "808"+number, "ADDRESS", "10.1.0.1"+number).Replace(keys)
	if prev != "" {
		keys += `, "prevResult": ` + prev
	}
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "swept", "type": %q, %s}`, plugin, keys)
}

func (b *bed) call(verb, id string, pod *nstest.NS, prev string) nstest.Call {
	return nstest.Call{
		Command: verb, ContainerID: id, Node: b.node, Pod: pod, Path: b.bin,
		Config: b.config(b.plugin, b.keys, id, prev),
	}
}

func (b *bed) add() nstest.Call { return b.call("ADD", "swept", b.pod, b.prev) }

// del is the DEL of what an ADD gave; empty: it gave nothing.
func (b *bed) del(result string) nstest.Call {
	if result == "" {
		result = b.prev
	}
	return b.call("DEL", "swept", b.pod, result)
}

// gc keeps the warm container.
func (b *bed) gc() nstest.Call {
	c := b.call("GC", "", nil, "")
	c.Config = strings.Replace(c.Config, "{", `{"cni.dev/valid-attachments": [{"containerID": "warm", "ifname": "eth0"}], `, 1)
	c.Env = []string{"CNI_CONTAINERID=", "CNI_IFNAME="}
	return c
}

// state is that of the namespaces, and of the files. What host-local keeps for its own
// speed, and its cursor, may move.
func (b *bed) state(namespaces ...*nstest.NS) string {
	var parts []string
	if !b.filesOnly {
		parts = append(parts, nstest.Snapshot(b, namespaces...))
	}
	for line := range strings.SplitSeq(nstest.SnapshotDir(b, b.dir), "\n") {
		if strings.Contains(line, "last_reserved_ip.") {
			continue
		}
		if strings.Contains(line, ".plumb/") {
			line = strings.Join(strings.Fields(line)[:2], " ")
		}
		parts = append(parts, line)
	}
	return strings.Join(parts, "\n")
}

func (b *bed) fullState() string { return b.state(b.node, b.pod) }
func (b *bed) nodeState() string { return b.state(b.node) }

// waitUnchanged waits until state returns want, or returns an error with the difference.
func waitUnchanged(want string, state func() string) error {
	if diff := nstest.WaitEqual(want, state); diff != "" {
		return fmt.Errorf("not as before:\n%s", diff)
	}
	return nil
}

// run is a call without a fault, which has to succeed.
func (b *bed) run(c nstest.Call) (nstest.Reply, error) {
	r := nstest.Exec(b, b.program(), c)
	if r.Exit != 0 {
		return r, fmt.Errorf("%s without a fault: %s%s", c.Command, r.Stdout, r.Stderr)
	}
	return r, nil
}

// processes selects the processes whose calls are counted.
type processes int

const (
	// pluginAndIPAM selects the plugin and its IPAM plugin, not the iptables programs: if
	// a request is refused, iptables-save prints a part of a table and exits with 0.
	pluginAndIPAM processes = iota
	pluginOnly
	childrenOnly // the IPAM plugin and the iptables programs
)

func (p processes) has(c *inject.Call) bool {
	switch p {
	case pluginOnly:
		return c.Process == 0
	case childrenOnly:
		return c.Process > 0
	}
	return !strings.Contains(c.Program, "tables")
}

// A fault is injected at one system call of a plugin.
type fault struct {
	calls     []inject.Syscall
	processes processes
	at        int // the number of the call, from 1
	verdict   inject.Verdict
	// allowLock, if not nil, delays an IPAM plugin that still runs after the fault: it
	// takes its lock only after allowLock is closed.
	allowLock chan struct{}
	seen      int
	call      string // the call with the fault; empty: there were fewer calls than at
}

func (s *fault) decide(c *inject.Call) inject.Verdict {
	if s.allowLock != nil && s.call != "" && c.Process > 0 && strings.HasSuffix(c.String(), " lock") {
		<-s.allowLock
	}
	if !s.processes.has(c) {
		return inject.Pass()
	}
	if s.seen++; s.seen != s.at {
		return inject.Pass()
	}
	s.call = c.String()
	return s.verdict
}

// patience is how long a plugin may take on a machine that has much else to do.
const patience = time.Minute

// exec calls the plugin with the fault. The caller must wait for the tree.
func (b *bed) exec(c nstest.Call, s *fault) (nstest.Reply, *inject.Tree) {
	GinkgoHelper()
	var stdout, stderr bytes.Buffer
	cmd := c.Cmd(b.program())
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	tree, err := inject.Session{Calls: s.calls, Decide: s.decide, Start: c.Node.Start}.Run(cmd)
	if err != nil {
		Fail(err.Error())
	}
	var status *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &status) {
		Fail(err.Error())
	}
	return nstest.Reply{Stdout: stdout.String(), Stderr: stderr.String(), Exit: cmd.ProcessState.ExitCode()}, tree
}

// execAll is exec, and waits until all processes that the plugin started have ended.
func (b *bed) execAll(c nstest.Call, s *fault) nstest.Reply {
	GinkgoHelper()
	r, tree := b.exec(c, s)
	if err := tree.Wait(patience); err != nil {
		Fail(err.Error())
	}
	return r
}
