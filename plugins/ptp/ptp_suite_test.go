package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestPTP(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/ptp")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a node, with a host outside it, and a folder for the reservations of
// host-local.
type testbed struct {
	node    *nstest.NS
	outside *nstest.NS
	path    string // CNI_PATH with the real IPAM plugins
	leases  string // dataDir of host-local
}

func newTestbed() *testbed {
	site := nstest.NewSite(GinkgoTB())
	return &testbed{
		node: site.Node, outside: site.Outside,
		path: nstest.Build(GinkgoTB(), "host-local", "static"), leases: GinkgoTB().TempDir(),
	}
}

// The ranges and the routes of the IPAM configurations.
const (
	v4range  = `[{"subnet":"10.1.2.0/24"}]`
	v6range  = `[{"subnet":"fd00:1::/64"}]`
	defaults = `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]`
)

// conf returns a configuration with host-local. keys is JSON text that ends in a comma, or
// empty.
func (b *testbed) conf(version, keys string, ranges ...string) string {
	routes := ""
	if len(ranges) > 1 {
		routes = defaults
	} else if ranges[0] == v4range {
		routes = `,"routes":[{"dst":"0.0.0.0/0"}]`
	} else if ranges[0] == v6range {
		routes = `,"routes":[{"dst":"::/0"}]`
	}
	ipam := fmt.Sprintf(`"type":"host-local","dataDir":%q,"ranges":[%s]%s`, b.leases, strings.Join(ranges, ","), routes)
	return withIPAM(version, keys, ipam)
}

// static returns a configuration with the IPAM plugin static and these addresses. rest is
// JSON text that begins with a comma, or empty.
func static(addresses, rest string) string {
	return withIPAM("1.1.0", "", `"type":"static","addresses":[`+addresses+`]`+rest)
}

func withIPAM(version, keys, ipam string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"ptp",%s"ipam":{%s}}`, version, keys, ipam)
}

// call returns a call for the container with that ID.
func (b *testbed) call(id string, pod *nstest.NS, conf string) nstest.Call {
	return nstest.Call{ContainerID: id, Node: b.node, Pod: pod, Path: b.path, Config: conf}
}

// snapshot returns a function that returns the state of the node, the pods and the
// reservations.
func (b *testbed) snapshot(pods ...*nstest.NS) func() string {
	return func() string {
		return nstest.Snapshot(GinkgoTB(), append(pods, b.node)...) + "\n" + b.reservations()
	}
}

// reservations returns the reservations, without the other files of host-local: the folder, the
// lock, and the round-robin cursors.
func (b *testbed) reservations() string {
	lines := strings.Split(nstest.SnapshotDir(GinkgoTB(), filepath.Join(b.leases, "net1")), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "d") || strings.Contains(line, " lock ") || strings.Contains(line, " last_reserved_ip")
	}), "\n")
}

func run(c nstest.Call, command string) nstest.Reply { return nstest.Run(plugin(), c.With(command)) }

// mustAdd runs an ADD that must succeed.
func mustAdd(c nstest.Call) *types.Result {
	GinkgoHelper()
	return run(c, "ADD").Result(GinkgoTB())
}

func newPod() *nstest.NS { return nstest.New(GinkgoTB()) }

// in runs a program in a namespace and returns its output.
func in(n *nstest.NS, line string) string {
	GinkgoHelper()
	return n.MustLine(GinkgoTB(), line)
}

// retransmissions returns the number of TCP segments that the namespace has retransmitted.
func retransmissions(n *nstest.NS) string {
	GinkgoHelper()
	var names []string
	for line := range strings.Lines(in(n, "cat /proc/net/snmp")) {
		words := strings.Fields(line)
		if words[0] != "Tcp:" {
			continue
		}
		if names != nil {
			return words[slices.Index(names, "RetransSegs")]
		}
		names = words
	}
	return "no counters"
}

// newIPAMStub makes an IPAM plugin "stub" in a new folder, and returns the folder. The plugin
// runs the given shell text for ADD and DEL, and appends each command to the file "log".
func newIPAMStub(onADD, onDEL string) string {
	GinkgoHelper()
	dir, _ := nstest.NewScriptPlugin(GinkgoTB(), "stub", fmt.Sprintf("echo $CNI_COMMAND >>$LOG\ncase $CNI_COMMAND in\nADD) %s ;;\nDEL) %s ;;\nesac", onADD, onDEL))
	return dir
}

// calls returns the commands that the stub in the folder has received, with spaces between.
func calls(dir string) string {
	GinkgoHelper()
	b, err := os.ReadFile(filepath.Join(dir, "log"))
	Expect(err).NotTo(HaveOccurred())
	return strings.Join(strings.Fields(string(b)), " ")
}
