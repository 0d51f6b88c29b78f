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

// A bed is a node with room for pods, and a place for leases.
type bed struct {
	node    *nstest.NS
	outside *nstest.NS
	path    string // CNI_PATH with the real host-local
	leases  string // dataDir
}

func newBed() *bed {
	site := nstest.NewSite(GinkgoTB())
	b := newBedOn(site.Node)
	b.outside = site.Outside
	return b
}

// newBedOn is a bed without an outside.
func newBedOn(node *nstest.NS) *bed {
	return &bed{node: node, path: nstest.Build(GinkgoTB(), "host-local"), leases: GinkgoTB().TempDir()}
}

// ranges of the IPAM configuration in tests.
const (
	v4range = `[{"subnet":"10.9.0.0/24"}]`
	v6range = `[{"subnet":"fd00:9::/64"}]`
)

// conf writes a configuration: keys is JSON text that ends in a comma, or nothing.
func (b *bed) conf(version, keys string, ranges ...string) string {
	ipam := ""
	if len(ranges) > 0 {
		ipam = fmt.Sprintf(`,"ipam":{"type":"host-local","dataDir":%q,"ranges":[%s]}`, b.leases, strings.Join(ranges, ","))
	}
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"bridge",%s"bridge":"cni0"%s}`, version, keys, ipam)
}

// call is a call for a pod of that container ID.
func (b *bed) call(id string, pod *nstest.NS, conf string) nstest.Call {
	return nstest.Call{ContainerID: id, Node: b.node, Pod: pod, Path: b.path, Config: conf}
}

func run(c nstest.Call, command string) nstest.Reply { return nstest.Run(plugin(), c.With(command)) }

// add runs an ADD that has to succeed.
func add1(c nstest.Call) *types.Result {
	GinkgoHelper()
	return run(c, "ADD").Result(GinkgoTB())
}

// withPrev puts the result of an ADD into the configuration of a later call.
func withPrev(conf string, reply nstest.Reply) string {
	return strings.TrimSuffix(conf, "}") + `,"prevResult":` + reply.Stdout + "}"
}

func newPod() *nstest.NS { return nstest.New(GinkgoTB()) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
