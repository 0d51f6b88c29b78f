package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestBridge(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/bridge")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a node, with a host outside it, and a folder for the reservations of
// host-local.
type testbed struct {
	node    *nstest.NS
	outside *nstest.NS
	path    string // CNI_PATH with the real host-local
	leases  string // dataDir of host-local
}

func newTestbed() *testbed {
	site := nstest.NewSite(GinkgoTB())
	b := newTestbedOn(site.Node)
	b.outside = site.Outside
	return b
}

// newTestbedOn returns a testbed without a host outside.
func newTestbedOn(node *nstest.NS) *testbed {
	return &testbed{node: node, path: nstest.Build(GinkgoTB(), "host-local"), leases: GinkgoTB().TempDir()}
}

// The ranges of the IPAM configurations.
const (
	v4range = `[{"subnet":"10.9.0.0/24"}]`
	v6range = `[{"subnet":"fd00:9::/64"}]`
)

// conf returns a configuration. keys is JSON text that ends in a comma, or empty. Without
// ranges there is no IPAM plugin.
func (b *testbed) conf(version, keys string, ranges ...string) string {
	ipam := ""
	if len(ranges) > 0 {
		ipam = fmt.Sprintf(`,"ipam":{"type":"host-local","dataDir":%q,"ranges":[%s]}`, b.leases, strings.Join(ranges, ","))
	}
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"bridge",%s"bridge":"cni0"%s}`, version, keys, ipam)
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

func newPod() *nstest.NS { return nstest.New(GinkgoTB()) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// in runs a program in a namespace and returns its output.
func in(n *nstest.NS, line string) string {
	GinkgoHelper()
	return n.MustLine(GinkgoTB(), line)
}
