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

	"github.com/plumb-cni/plumb/v2/test/faults/inject"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestMain(m *testing.M) {
	inject.Launch()
	os.Exit(m.Run())
}

// A pluginConfig is a plugin with one configuration.
type pluginConfig struct {
	name   string
	plugin string
	// keys contains the keys of the configuration except cniVersion, name, type and prevResult. DIR stands for a
	// directory for the plugin's files. PORT, VLAN, ADDRESS and DEVICE stand for a port number, a VLAN, an address and
	// an interface of the host that differ between the two containers.
	keys string
	// bridgeKeys contains the keys of the bridge plugin that runs before a chained plugin. It is empty if the plugin is
	// not chained.
	bridgeKeys string
	// needsNamespace means that the plugin can undo its changes in the container only with CNI_NETNS. DEL without
	// CNI_NETNS, and GC, need not undo them.
	needsNamespace bool
	// takesDevice means that the plugin moves DEVICE into the container. The kernel deletes the device with the
	// container's namespace, because the device is virtual.
	takesDevice bool
	// filesOnly means that the plugin changes only files, and nothing in a namespace.
	filesOnly bool
	// kind is the kind of link that the plugin creates, with its options, if some kernels lack it. The specs are
	// skipped on such a kernel, and run in test/vm.
	kind string
}

// A testHost is a host with a container, "tested", for which the tests call one plugin. Another container, "existing",
// is already attached, so that the objects that all containers share exist.
type testHost struct {
	nstest.TB
	pluginConfig
	dir             string
	bin             string
	host, container *nstest.NS
	prevResult      string // the result of the bridge plugin; empty if the plugin is not chained
	hostBefore      string // the state of the host before the container "tested" exists
	before          string // the state of host, container and files before the plugin is called
}

// newTestHost returns a host with an existing container. replaceContainer adds a container that is not attached.
func newTestHost(config pluginConfig) *testHost {
	GinkgoHelper()
	tb := GinkgoTB()
	n := &testHost{TB: tb, pluginConfig: config, dir: tb.TempDir(), bin: nstest.Build(tb, "bridge", "host-local", "static", config.plugin), host: nstest.NewHost(tb)}
	outside := nstest.NewHost(tb).Named("outside")
	nstest.Join(tb,
		nstest.End{In: n.host, Name: "uplink0", Addrs: []string{"198.18.0.1/24", "fd00:18::1/64"}},
		nstest.End{In: outside, Name: "uplink0", Addrs: []string{"198.18.0.2/24", "fd00:18::2/64"}})
	if config.takesDevice {
		for _, key := range []string{"accept_dad", "accept_ra"} { // for the interfaces that Join creates, and for moved ones
			n.host.SetSysctl(tb, "net/ipv6/conf/default/"+key, "0")
		}
		for i, device := range []string{"device1", "device2"} {
			addrs := []string{fmt.Sprintf("192.0.%d.1/24", 2+i), fmt.Sprintf("2001:db8:%d::1/64", 1+i)}
			nstest.Join(tb, nstest.End{In: n.host, Name: device, Addrs: addrs}, nstest.End{In: outside, Name: device})
			if strings.Contains(config.keys, "useInterfaceNetwork") {
				n.host.Batch(tb, fmt.Sprintf("route add 203.0.113.0/24 via 192.0.%d.2 table %d", 2+i, 100+i), fmt.Sprintf("rule add from 192.0.%d.1 iif %s lookup %d", 2+i, device, 100+i))
			}
		}
	}
	existing := nstest.New(tb)
	n.requireKind(existing)
	prevResult := n.addBridge("existing", existing)
	nstest.Exec(tb, n.program(), n.call("ADD", "existing", existing, prevResult)).OK(tb)
	n.hostBefore = nstest.WaitStable(n.hostState)
	return n
}

// replaceContainer replaces the container "tested" with a new one that is not attached. The new container exists until
// the end of the spec.
func (n *testHost) replaceContainer() {
	GinkgoHelper()
	if n.container != nil {
		n.delBridge("tested", n.container) // delete the interface first, because the kernel deletes a namespace asynchronously
		n.container.Remove(n)
	}
	n.container = nstest.New(n).Named("container")
	n.requireKind(n.container)
	n.prevResult = n.addBridge("tested", n.container)
	n.before = nstest.WaitStable(n.fullState)
}

// requireKind skips the spec if the kernel lacks links of the kind. It creates such a link in the container, where the
// rule that the kernel adds with the first VRF of a namespace and keeps does no harm, and deletes the link.
func (n *testHost) requireKind(container *nstest.NS) {
	GinkgoHelper()
	if n.kind == "" {
		return
	}
	container.Must(n, "ip", "link", "add", "first", "type", "veth", "peer", "name", "second")
	_, err := container.Exec("ip", strings.Fields("link add link first name tried type "+n.kind)...)
	nstest.RequireFeature(n, strings.Fields(n.kind)[0], err)
	container.Must(n, "ip", "link", "del", "tried")
	container.Must(n, "ip", "link", "del", "first")
}

// If the plugin is chained, addBridge calls ADD of the bridge plugin and returns the result.
func (n *testHost) addBridge(id string, container *nstest.NS) string {
	GinkgoHelper()
	if n.bridgeKeys == "" {
		return ""
	}
	return n.callBridge("ADD", id, container).Stdout
}

// If the plugin is chained, delBridge calls DEL of the bridge plugin.
func (n *testHost) delBridge(id string, container *nstest.NS) {
	GinkgoHelper()
	if n.bridgeKeys != "" {
		n.callBridge("DEL", id, container)
	}
}

func (n *testHost) callBridge(verb, id string, container *nstest.NS) nstest.Reply {
	GinkgoHelper()
	c := n.call(verb, id, container, "")
	c.Config = n.config("bridge", n.bridgeKeys, id, "")
	return nstest.Exec(n, filepath.Join(n.bin, "bridge"), c).OK(n)
}

func (n *testHost) program() string { return filepath.Join(n.bin, n.plugin) }

// config returns the configuration of the plugin for the container id.
func (n *testHost) config(plugin, keys, id, prevResult string) string {
	number := "2"
	if id == "existing" {
		number = "1"
	}
	keys = strings.NewReplacer("DIR", n.dir, "PORT", "808"+number, "VLAN", "10"+number, "ADDRESS", "10.1.0.1"+number, "DEVICE", "device"+number).Replace(keys)
	if prevResult != "" {
		keys += `, "prevResult": ` + prevResult
	}
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net1", "type": %q, %s}`, plugin, keys)
}

func (n *testHost) call(verb, id string, container *nstest.NS, prevResult string) nstest.Call {
	return nstest.Call{
		Command: verb, ContainerID: id, Host: n.host, Container: container, Path: n.bin,
		Config: n.config(n.plugin, n.keys, id, prevResult),
	}
}

func (n *testHost) addCall() nstest.Call { return n.call("ADD", "tested", n.container, n.prevResult) }

// delCall returns the DEL after an ADD with this result. result is empty if the ADD returned no result.
func (n *testHost) delCall(result string) nstest.Call {
	if result == "" {
		result = n.prevResult
	}
	return n.call("DEL", "tested", n.container, result)
}

// gcCall returns a GC for which only the existing container's attachment is valid.
func (n *testHost) gcCall() nstest.Call {
	c := n.call("GC", "", nil, "")
	c.Config = strings.Replace(c.Config, "{", `{"cni.dev/valid-attachments": [{"containerID": "existing", "ifname": "eth0"}], `, 1)
	c.Env = []string{"CNI_CONTAINERID=", "CNI_IFNAME="}
	return c
}

// state returns the state of the namespaces and of the plugin's files. It omits host-local's cursor, the records of released
// addresses (sticky), and the contents of the files in .plumb, which may change.
func (n *testHost) state(namespaces ...*nstest.NS) string {
	var parts []string
	if !n.filesOnly {
		parts = append(parts, nstest.Snapshot(n, namespaces...))
	}
	for line := range strings.SplitSeq(nstest.SnapshotDir(n, n.dir), "\n") {
		if strings.Contains(line, "last_reserved_ip.") || strings.Contains(line, ".plumb/.sticky") {
			continue
		}
		if strings.Contains(line, ".plumb/") {
			line = strings.Join(strings.Fields(line)[:2], " ")
		}
		parts = append(parts, line)
	}
	return strings.Join(parts, "\n")
}

func (n *testHost) fullState() string { return n.state(n.host, n.container) }
func (n *testHost) hostState() string { return n.state(n.host) }

// waitUnchanged waits until state returns want. After a time limit, it returns an error with the difference.
func waitUnchanged(want string, state func() string) error {
	if diff := nstest.WaitEqual(want, state); diff != "" {
		return fmt.Errorf("not as before:\n%s", diff)
	}
	return nil
}

// run calls the plugin without a fault. It returns an error if the call fails.
func (n *testHost) run(c nstest.Call) (nstest.Reply, error) {
	r := nstest.Exec(n, n.program(), c)
	if r.Exit != 0 {
		return r, fmt.Errorf("%s without a fault: %s%s", c.Command, r.Stdout, r.Stderr)
	}
	return r, nil
}

// processes selects the processes whose system calls are counted.
type processes int

const (
	// pluginAndIPAM selects the plugin and its IPAM plugin. It excludes the iptables programs, because iptables-save
	// prints a part of a table and exits with 0 if a request is refused.
	pluginAndIPAM processes = iota
	pluginOnly
	childrenOnly // the IPAM plugin and the iptables programs
)

func (p processes) includes(c *inject.Call) bool {
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
	calls      []inject.Syscall
	processes  processes
	callNumber int // the number of the system call, from 1
	verdict    inject.Verdict
	// allowLock, if not nil, delays an IPAM plugin that still runs after the fault. The IPAM plugin takes its lock only
	// after allowLock is closed.
	allowLock  chan struct{}
	callsSeen  int
	faultyCall string // a description of the system call; empty if there were fewer calls
}

// decide refuses or kills the call with the number callNumber, and lets all other calls pass.
func (f *fault) decide(c *inject.Call) inject.Verdict {
	if f.allowLock != nil && f.faultyCall != "" && c.Process > 0 && strings.HasSuffix(c.String(), " lock") {
		<-f.allowLock
	}
	if !f.processes.includes(c) {
		return inject.Pass()
	}
	if f.callsSeen++; f.callsSeen != f.callNumber {
		return inject.Pass()
	}
	f.faultyCall = c.String()
	return f.verdict
}

// callTimeout is the time limit for a plugin. It is long, because the machine may be busy.
const callTimeout = time.Minute

// runWithFault calls the plugin with the fault. The caller must wait for the process tree.
func (n *testHost) runWithFault(c nstest.Call, f *fault) (nstest.Reply, *inject.ProcessTree) {
	GinkgoHelper()
	var stdout, stderr bytes.Buffer
	cmd := c.Cmd(n.program())
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	tree, err := inject.Session{Calls: f.calls, Decide: f.decide, Start: c.Host.Start}.Run(cmd)
	if err != nil {
		Fail(err.Error())
	}
	var status *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &status) {
		Fail(err.Error())
	}
	return nstest.Reply{Stdout: stdout.String(), Stderr: stderr.String(), Exit: cmd.ProcessState.ExitCode()}, tree
}

// runTreeWithFault calls runWithFault and waits until all processes that the plugin started
// have ended.
func (n *testHost) runTreeWithFault(c nstest.Call, f *fault) nstest.Reply {
	GinkgoHelper()
	r, tree := n.runWithFault(c, f)
	if err := tree.Wait(callTimeout); err != nil {
		Fail(err.Error())
	}
	return r
}
