package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestIPVlan(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/ipvlan")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a node whose uplink is the master, with a host outside it on the same segment,
// and a folder for the reservations of host-local.
type testbed struct {
	nstest.Site
	path    string // CNI_PATH with the real host-local and static
	leases  string // dataDir of host-local
	records string // dataDir
}

func newTestbed() *testbed {
	return &testbed{Site: nstest.NewSite(GinkgoTB()), path: nstest.Build(GinkgoTB(), "host-local", "static"), leases: GinkgoTB().TempDir(), records: filepath.Join(GinkgoTB().TempDir(), "new")}
}

// newIPVlanTestbed is newTestbed. The spec is skipped if the kernel has no ipvlans.
func newIPVlanTestbed() *testbed {
	GinkgoHelper()
	b := newTestbed()
	_, err := b.Outside.Exec("ip", "link", "add", "link", nstest.Uplink, "name", "try0", "type", "ipvlan")
	nstest.RequireFeature(GinkgoTB(), "ipvlan", err)
	b.Outside.Batch(GinkgoTB(), "link del try0")
	return b
}

// The addresses that tests give containers are on the segment of nstest.Site.
const (
	pod4, pod6   = "198.18.0.50", "2001:db8:18::50"
	static4      = `{"type":"static","addresses":[{"address":"198.18.0.50/24"}]}`
	staticDual   = `{"type":"static","addresses":[{"address":"198.18.0.50/24","gateway":"198.18.0.2"},{"address":"2001:db8:18::50/64","gateway":"2001:db8:18::2"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["198.18.0.53"]}}`
	onUplink     = `"master":"uplink0"`
	noIPAM       = ""
	hostLocalAll = `[{"subnet":"198.18.0.0/24","rangeStart":"198.18.0.100"}],[{"subnet":"2001:db8:18::/64","rangeStart":"2001:db8:18::100"}]`
)

// hostLocal returns the IPAM configuration of host-local with ranges of both families.
func (b *testbed) hostLocal() string {
	return fmt.Sprintf(`{"type":"host-local","dataDir":%q,"ranges":[%s]}`, b.leases, hostLocalAll)
}

// conf returns a configuration. keys is the JSON text of additional keys, ipam the JSON text of
// the IPAM configuration; each may be empty.
func (b *testbed) conf(version, keys, ipam string) string {
	if keys != "" {
		keys = "," + keys
	}
	if ipam != "" {
		ipam = `,"ipam":` + ipam
	}
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"ipvlan","dataDir":%q%s%s}`, version, b.records, keys, ipam)
}

// call returns a call for the container with that ID.
func (b *testbed) call(id string, pod *nstest.NS, conf string) nstest.Call {
	return nstest.Call{ContainerID: id, Node: b.Node, Pod: pod, Path: b.path, Config: conf}
}

func run(c nstest.Call, command string) nstest.Reply { return nstest.Run(plugin(), c.With(command)) }

// mustAdd runs an ADD that must succeed.
func mustAdd(c nstest.Call) *types.Result {
	GinkgoHelper()
	return run(c, "ADD").Result(GinkgoTB())
}

// attached runs an ADD that must succeed, and returns the call with its result as prevResult.
func attached(c nstest.Call) nstest.Call {
	GinkgoHelper()
	c.Config = nstest.WithPrevResult(c.Config, run(c, "ADD").OK(GinkgoTB()).Stdout)
	return c
}

// mustRefuse runs an ADD that must fail with the code and the texts in its error, and leave the
// container, the reservations and the records as before.
func (b *testbed) mustRefuse(c nstest.Call, code int, texts ...string) {
	GinkgoHelper()
	state := func() string { return nstest.Snapshot(GinkgoTB(), c.Pod) }
	before, files := nstest.WaitStable(state), append(b.reservations(), b.recordFiles()...)
	run(c, "ADD").RequireFailure(GinkgoTB(), code, texts...)
	Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
	Expect(append(b.reservations(), b.recordFiles()...)).To(Equal(files))
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

// expectTraffic connects between the pod and the outside host, from both sides and with both families.
func (b *testbed) expectTraffic(pod *nstest.NS) {
	GinkgoHelper()
	for _, c := range []struct{ pod, outside string }{{pod4, nstest.OutsideV4}, {"[" + pod6 + "]", "[" + nstest.OutsideV6 + "]"}} {
		nstest.ServeTCP(GinkgoTB(), pod, c.pod+":80")
		nstest.ServeTCP(GinkgoTB(), b.Outside, c.outside+":80")
		nstest.MustDial(GinkgoTB(), pod, c.outside+":80", strings.Trim(c.pod, "[]"))
		nstest.MustDial(GinkgoTB(), b.Outside, c.pod+":80", strings.Trim(c.outside, "[]"))
	}
}

// reservations returns the addresses that host-local has reserved.
func (b *testbed) reservations() []string {
	GinkgoHelper()
	return nstest.Reservations(GinkgoTB(), b.leases, "net1")
}

// recordFiles returns the names of the records of modes.
func (b *testbed) recordFiles() []string {
	GinkgoHelper()
	files, err := filepath.Glob(filepath.Join(b.records, "*"))
	Expect(err).NotTo(HaveOccurred())
	return files
}
