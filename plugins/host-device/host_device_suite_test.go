package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestHostDevice(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/host-device")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a node with a veth interface, whose other end is on a host outside, and folders for
// states, sysfs and the reservations of host-local.
type testbed struct {
	host
	node    *nstest.NS
	outside *nstest.NS
	path    string // CNI_PATH with the real host-local and static
	leases  string // dataDir of host-local
	devices int    // how many addDevice has made
}

const deviceMAC = "02:00:00:00:00:0d"

func newTestbed() *testbed {
	tb := GinkgoTB()
	b := &testbed{
		host: host{sys: sysfs(tb.TempDir()), states: filepath.Join(tb.TempDir(), "states")},
		node: nstest.NewNode(tb), outside: nstest.NewNode(tb).Named("outside"),
		path: nstest.Build(tb, "host-local", "static"), leases: tb.TempDir(),
	}
	b.addDevice("hd0", deviceMAC)
	b.outside.Batch(tb, "addr add 198.18.0.2/24 dev hd0", "addr add 2001:db8:18::2/64 dev hd0 nodad")
	return b
}

// addDevice makes a veth interface on the node, and its other end, of the same name, outside.
func (b *testbed) addDevice(name, mac string) {
	GinkgoHelper()
	b.devices++
	addDevice(GinkgoTB(), b.node, b.outside, fmt.Sprintf("%s address %s index %d", name, mac, 100+b.devices))
}

// addDevice makes a veth interface with the properties, which begin with its name. The index must not
// be that of the other end: the kernel takes such an interface for one without a lower one, and
// reports its carrier up to one second late (linkwatch_urgent_event).
func addDevice(tb nstest.TB, node, outside *nstest.NS, properties string) {
	tb.Helper()
	name, _, _ := strings.Cut(properties, " ")
	node.Batch(tb, fmt.Sprintf("link add %s mtu 1400 type veth peer name %s netns %s", properties, name, outside.Path()), "link set "+name+" up")
	outside.Batch(tb, "link set "+name+" up")
}

// The addresses that tests give containers are on the segment of the device.
const (
	pod4, pod6   = "198.18.0.50", "2001:db8:18::50"
	static4      = `{"type":"static","addresses":[{"address":"198.18.0.50/24"}]}`
	staticDual   = `{"type":"static","addresses":[{"address":"198.18.0.50/24","gateway":"198.18.0.2"},{"address":"2001:db8:18::50/64","gateway":"2001:db8:18::2"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["198.18.0.53"]}}`
	byDevice     = `"device":"hd0"`
	noIPAM       = ""
	hostLocal4   = `[{"subnet":"198.18.0.0/24","rangeStart":"198.18.0.100"}]`
	hostLocal6   = `[{"subnet":"2001:db8:18::/64","rangeStart":"2001:db8:18::100"}]`
	hostLocalAll = hostLocal4 + "," + hostLocal6
)

// hostLocal returns the IPAM configuration of host-local with these ranges.
func (b *testbed) hostLocal(ranges string) string {
	return fmt.Sprintf(`{"type":"host-local","dataDir":%q,"ranges":[%s]}`, b.leases, ranges)
}

// conf returns a configuration. keys is the JSON text of additional keys, ipam the JSON text of
// the IPAM configuration; each may be empty.
func conf(version, keys, ipam string) string {
	if keys != "" {
		keys = "," + keys
	}
	if ipam != "" {
		ipam = `,"ipam":` + ipam
	}
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"host-device"%s%s}`, version, keys, ipam)
}

// call returns a call for the container with that ID.
func (b *testbed) call(id string, pod *nstest.NS, conf string) nstest.Call {
	return nstest.Call{ContainerID: id, Node: b.node, Pod: pod, Path: b.path, Config: conf}
}

func (b *testbed) run(c nstest.Call, command string) nstest.Reply {
	return nstest.Run(b.plugin(), c.With(command))
}

// mustAdd runs an ADD that must succeed.
func (b *testbed) mustAdd(c nstest.Call) *types.Result {
	GinkgoHelper()
	return b.run(c, "ADD").Result(GinkgoTB())
}

// mustDel runs a DEL that must succeed.
func (b *testbed) mustDel(c nstest.Call) nstest.Reply {
	GinkgoHelper()
	return b.run(c, "DEL").OK(GinkgoTB())
}

// state returns the state of node, container, state files and reservations.
func (b *testbed) state(pod *nstest.NS) string {
	return strings.Join([]string{
		nstest.Snapshot(GinkgoTB(), b.node, pod), nstest.SnapshotDir(GinkgoTB(), b.states), strings.Join(b.reservations(), " "),
	}, "\n")
}

// mustRefuse runs an ADD that must fail with the code and the texts in its error, and leave node and
// container as before.
func (b *testbed) mustRefuse(c nstest.Call, code int, texts ...string) {
	GinkgoHelper()
	Expect(os.MkdirAll(b.states, 0o700)).To(Succeed()) // ADD leaves the folder
	state := func() string { return b.state(c.Pod) }
	before := nstest.WaitStable(state)
	b.run(c, "ADD").RequireFailure(GinkgoTB(), code, texts...)
	Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
}

// newPod makes a container in which duplicate address detection sends nothing and ends at once.
func newPod() *nstest.NS {
	pod := nstest.New(GinkgoTB()).Named("pod")
	pod.SkipDAD(GinkgoTB())
	return pod
}

// in runs a program in a namespace and returns its output.
func in(n *nstest.NS, line string) string {
	GinkgoHelper()
	return n.MustLine(GinkgoTB(), line)
}

// reservations returns the addresses that host-local has reserved.
func (b *testbed) reservations() []string {
	GinkgoHelper()
	return nstest.Reservations(GinkgoTB(), b.leases, "net1")
}

// stateFiles returns the names of the state files.
func (b *testbed) stateFiles() []string {
	GinkgoHelper()
	files, err := os.ReadDir(b.states)
	Expect(types.IgnoreNotExist(err)).To(Succeed())
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}
