package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestMacvlan(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/macvlan")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a node whose uplink is the master, with a host outside it on the same segment,
// and a folder for the reservations of host-local.
type testbed struct {
	node    *nstest.NS
	outside *nstest.NS
	path    string // CNI_PATH with the real host-local and static
	leases  string // dataDir of host-local
}

func newTestbed() *testbed {
	site := nstest.NewSite(GinkgoTB())
	return &testbed{
		node: site.Node, outside: site.Outside,
		path: nstest.Build(GinkgoTB(), "host-local", "static"), leases: GinkgoTB().TempDir(),
	}
}

// The addresses that tests give containers are on the segment of nstest.Site.
const (
	pod4, pod6   = "198.18.0.50", "2001:db8:18::50"
	static4      = `{"type":"static","addresses":[{"address":"198.18.0.50/24"}]}`
	static6      = `{"type":"static","addresses":[{"address":"2001:db8:18::50/64"}]}`
	staticDual   = `{"type":"static","addresses":[{"address":"198.18.0.50/24","gateway":"198.18.0.2"},{"address":"2001:db8:18::50/64","gateway":"2001:db8:18::2"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["198.18.0.53"]}}`
	onUplink     = `"master":"uplink0"`
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
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"macvlan"%s%s}`, version, keys, ipam)
}

// call returns a call for the container with that ID.
func (b *testbed) call(id string, pod *nstest.NS, conf string) nstest.Call {
	return nstest.Call{ContainerID: id, Node: b.node, Pod: pod, Path: b.path, Config: conf}
}

func run(c nstest.Call, command string) nstest.Reply { return nstest.Run(plugin(), c.With(command)) }

// mustAdd runs an ADD that must succeed.
func mustAdd(c nstest.Call) *types.Result {
	GinkgoHelper()
	return run(c, "ADD").Result(GinkgoTB())
}

// mustRefuse runs an ADD that must fail with the code and the texts in its error, and leave the
// container as before.
func mustRefuse(c nstest.Call, code int, texts ...string) {
	GinkgoHelper()
	before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), c.Pod) })
	run(c, "ADD").RequireFailure(GinkgoTB(), code, texts...)
	Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), c.Pod) })).To(BeEmpty())
}

// newPod makes a container in which duplicate address detection sends nothing and ends at once.
func newPod() *nstest.NS {
	pod := newPodWithDAD()
	pod.SkipDAD(GinkgoTB())
	return pod
}

// newPodWithDAD makes a container with the defaults of the kernel.
func newPodWithDAD() *nstest.NS { return nstest.New(GinkgoTB()).Named("pod") }

// in runs a program in a namespace and returns its output.
func in(n *nstest.NS, line string) string {
	GinkgoHelper()
	return n.MustLine(GinkgoTB(), line)
}

// macOf returns the MAC of a link as ip prints it.
func macOf(n *nstest.NS, link string) string {
	GinkgoHelper()
	_, rest, _ := strings.Cut(in(n, "ip -o link show "+link), "link/ether ")
	mac, _, _ := strings.Cut(rest, " ")
	return mac
}

// reservations returns the addresses that host-local has reserved.
func (b *testbed) reservations() []string {
	GinkgoHelper()
	return nstest.Reservations(GinkgoTB(), b.leases, "net1")
}

// newIPAMScript writes an IPAM plugin that is a shell script, and returns its folder and its
// log. For each call, the log gets a line with the command and "link" or "no link", which says
// whether the interface CNI_IFNAME exists; body may append more to $LOG.
func newIPAMScript(name, body string) (dir, log string) {
	GinkgoHelper()
	return nstest.NewScriptPlugin(GinkgoTB(), name,
		"nsenter --net=$CNI_NETNS ip link show $CNI_IFNAME >/dev/null 2>&1 && state=link || state='no link'\n"+
			"echo $CNI_COMMAND: $state >>$LOG\n"+body)
}

func readFile(path string) string {
	GinkgoHelper()
	b, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	return string(b)
}
