package main

import (
	"fmt"
	"os"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestDummy(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/dummy")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a node with one container, and a folder for the reservations of host-local.
type testbed struct {
	node, pod *nstest.NS
	path      string // CNI_PATH with the real host-local and static
	leases    string // dataDir of host-local
}

func newTestbed() *testbed {
	GinkgoHelper()
	node, pod := nstest.NewNodeAndPod(GinkgoTB())
	return &testbed{node: node, pod: pod, path: nstest.Build(GinkgoTB(), "host-local", "static"), leases: GinkgoTB().TempDir()}
}

// requireDummy skips the test if the kernel has no dummy interfaces.
func requireDummy() {
	GinkgoHelper()
	_, err := nstest.New(GinkgoTB()).Exec("ip", "link", "add", "dummy0", "type", "dummy")
	nstest.RequireFeature(GinkgoTB(), "dummy", err)
}

const (
	metadata = `{"type":"static","addresses":[{"address":"169.254.169.254/32"},{"address":"fd00:ec2::254/128"}]}`
	static   = `{"type":"static","addresses":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64","gateway":"fd00:1::1"}],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["10.1.0.53"]}}`
	noIPAM = ""
)

// hostLocal returns the IPAM configuration of host-local with a range of each family.
func (b *testbed) hostLocal() string {
	return fmt.Sprintf(`{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}`, b.leases)
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
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"dummy"%s%s}`, version, keys, ipam)
}

// call returns a call for the container.
func (b *testbed) call(conf string) nstest.Call {
	return nstest.Call{ContainerID: "one", Node: b.node, Pod: b.pod, Path: b.path, Config: conf}
}

func run(c nstest.Call, command string) nstest.Reply { return nstest.Run(plugin(), c.With(command)) }

// mustRefuse runs an ADD that must fail with the code and the texts in its error, and leave the
// container as before.
func mustRefuse(c nstest.Call, code int, texts ...string) {
	GinkgoHelper()
	before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), c.Pod) })
	run(c, "ADD").RequireFailure(GinkgoTB(), code, texts...)
	Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), c.Pod) })).To(BeEmpty())
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

func readFile(path string) string {
	GinkgoHelper()
	b, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	return string(b)
}
