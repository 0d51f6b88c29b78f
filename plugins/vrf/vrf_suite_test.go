package main

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestVRF(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/vrf")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// conf returns a configuration. keys is JSON text.
func conf(keys string) string { return confOf("1.1.0", keys) }

func confOf(version, keys string) string {
	return `{"cniVersion":"` + version + `","name":"net","type":"vrf",` + keys + `,"prevResult":{"cniVersion":"` + version + `",
		"interfaces":[{"name":"eth0","sandbox":"/any"},{"name":"net1","sandbox":"/any"}],"ips":[` + ipOf(version) + `],"dns":{}}}`
}

// ipOf returns the IP of prevResult in the form of a version.
func ipOf(version string) string {
	ip := `{"interface":1,"address":"10.1.0.2/24","gateway":"10.1.0.1"}`
	if version < "1" {
		ip = strings.Replace(ip, "{", `{"version":"4",`, 1)
	}
	return ip
}

const blue = `"vrfname":"blue"`

// A testbed is a container with the interfaces eth0 and net1. Both have the same subnets, and a router at the
// other end. The default routes of the container are those through net1 and, for IPv6, both.
type testbed struct {
	node, pod, first, second *nstest.NS
}

func newTestbed(tb nstest.TB) *testbed {
	tb.Helper()
	node, pod := nstest.NewNodeAndPod(tb)
	requireVRF(tb, pod)
	b := &testbed{node: node, pod: pod, first: nstest.NewNode(tb).Named("first"), second: nstest.NewNode(tb).Named("second")}
	nstest.Join(tb, nstest.End{In: pod, Name: "eth0", Addrs: []string{"10.1.0.2/24", "fd01::2/64"}}, nstest.End{In: b.first, Name: "r0", Addrs: []string{"10.1.0.1/24", "fd01::1/64", "203.0.113.1/32"}})
	nstest.Join(tb, nstest.End{In: pod, Name: "net1", Addrs: []string{"10.1.0.2/24", "fd01::2/64"}}, nstest.End{In: b.second, Name: "r1", Addrs: []string{"10.1.0.1/24", "fd01::1/64", "203.0.113.2/32"}})
	pod.Batch(tb, "route add default via 10.1.0.1 dev net1", "route add 192.0.2.0/24 via 10.1.0.9 dev net1 mtu 1300 proto static", "route add 198.51.100.0/24 via 10.1.0.1 dev net1 table 77")
	for _, dev := range []string{"eth0", "net1"} {
		pod.Must(tb, "ip", "-6", "route", "append", "default", "via", "fd01::1", "dev", dev)
	}
	return b
}

// requireVRF ends the test if the kernel has no VRFs. The first VRF of a namespace makes the kernel add a rule, which stays.
func requireVRF(tb nstest.TB, pod *nstest.NS) {
	tb.Helper()
	_, err := pod.Exec("ip", "link", "add", "first", "type", "vrf", "table", "9")
	nstest.RequireFeature(tb, "vrf", err)
	pod.Must(tb, "ip", "link", "del", "first")
}

// call returns a call for an interface.
func (b *testbed) call(ifName, config string) nstest.Call {
	return nstest.Call{Node: b.node, Pod: b.pod, IfName: ifName, Config: config}
}

func run(c nstest.Call, command string) nstest.Reply { return nstest.Run(plugin(), c.With(command)) }

func added(c nstest.Call) *types.Result {
	GinkgoHelper()
	return run(c, "ADD").Result(GinkgoTB())
}

// refused runs an ADD that has to fail with that code and say those texts, and to change nothing.
func refused(c nstest.Call, code int, texts ...string) {
	GinkgoHelper()
	before := snapshot(c.Pod)
	run(c, "ADD").RequireFailure(GinkgoTB(), code, texts...)
	Expect(restored(before, c.Pod)).To(BeEmpty())
}

// snapshot returns the state of a container. It is sorted: where two interfaces have a route to the same
// destination, the order of the routes is that in which the interfaces were set up.
func snapshot(n *nstest.NS) string {
	return nstest.WaitStable(func() string { return sorted(n) })
}

func sorted(n *nstest.NS) string {
	lines := strings.Split(nstest.Snapshot(GinkgoTB(), n), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// restored returns the difference to a snapshot.
func restored(before string, n *nstest.NS) string {
	return nstest.WaitEqual(before, func() string { return sorted(n) })
}

// ip returns what ip prints in the container, without the spaces at the ends of lines.
func (b *testbed) ip(args string) string {
	GinkgoHelper()
	out := b.pod.Must(GinkgoTB(), "ip", strings.Fields(args)...)
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n")
}

// reaches reports whether a program that is bound to a VRF reaches an address.
func (b *testbed) reaches(vrf, address string) bool {
	_, err := b.pod.Exec("ping", "-c", "1", "-W", "3", "-I", vrf, address)
	return err == nil
}
