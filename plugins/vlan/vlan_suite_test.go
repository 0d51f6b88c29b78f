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

func TestVLAN(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/vlan")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a node whose uplink is the master, with a host outside it on the same segment,
// and a folder for the reservations of host-local.
type testbed struct {
	nstest.Site
	path   string // CNI_PATH with the real host-local and static
	leases string // dataDir of host-local
}

func newTestbed() *testbed {
	return &testbed{Site: nstest.NewSite(GinkgoTB()), path: nstest.Build(GinkgoTB(), "host-local", "static"), leases: GinkgoTB().TempDir()}
}

// newTaggedTestbed is newTestbed with an interface of the outside host in VLAN 100. The spec is
// skipped if the kernel has no VLAN interfaces.
func newTaggedTestbed() *testbed {
	GinkgoHelper()
	b := newTestbed()
	b.tagOutside("tagged", "id 100", outside4+"/24", outside6+"/64")
	return b
}

// tagOutside makes a VLAN interface of the outside host with the addresses.
func (b *testbed) tagOutside(name, options string, addrs ...string) {
	GinkgoHelper()
	_, err := b.Outside.Exec("ip", strings.Fields("link add link "+nstest.Uplink+" name "+name+" type vlan "+options)...)
	nstest.RequireFeature(GinkgoTB(), "8021q", err)
	b.Outside.Batch(GinkgoTB(), "link set "+name+" up")
	for _, addr := range addrs {
		line := "address add " + addr + " dev " + name
		if strings.Contains(addr, ":") {
			line += " nodad"
		}
		b.Outside.Batch(GinkgoTB(), line)
	}
}

// The addresses in VLAN 100.
const (
	pod4, pod6         = "198.18.100.50", "2001:db8:100::50"
	outside4, outside6 = "198.18.100.2", "2001:db8:100::2"
	static4            = `{"type":"static","addresses":[{"address":"198.18.100.50/24"}]}`
	staticDual         = `{"type":"static","addresses":[{"address":"198.18.100.50/24","gateway":"198.18.100.2"},{"address":"2001:db8:100::50/64","gateway":"2001:db8:100::2"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["198.18.100.53"]}}`
	in100              = `"master":"uplink0","vlanId":100`
	inChain            = `"linkInContainer":true,"vlanId":100`
	noIPAM             = ""
	hostLocalAll       = `[{"subnet":"198.18.100.0/24","rangeStart":"198.18.100.100"}],[{"subnet":"2001:db8:100::/64","rangeStart":"2001:db8:100::100"}]`
)

// hostLocal returns the IPAM configuration of host-local with ranges of both families.
func (b *testbed) hostLocal() string {
	return fmt.Sprintf(`{"type":"host-local","dataDir":%q,"ranges":[%s]}`, b.leases, hostLocalAll)
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
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"vlan"%s%s}`, version, keys, ipam)
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
// container and the reservations as before.
func (b *testbed) mustRefuse(c nstest.Call, code int, texts ...string) {
	GinkgoHelper()
	state := func() string { return nstest.Snapshot(GinkgoTB(), c.Pod) }
	before, reserved := nstest.WaitStable(state), b.reservations()
	run(c, "ADD").RequireFailure(GinkgoTB(), code, texts...)
	Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
	Expect(b.reservations()).To(Equal(reserved))
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
	for _, c := range []struct{ pod, outside string }{{pod4, outside4}, {"[" + pod6 + "]", "[" + outside6 + "]"}} {
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

func readFile(path string) string {
	GinkgoHelper()
	b, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	return string(b)
}
