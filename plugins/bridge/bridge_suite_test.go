package main

import (
	"net/netip"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestBridge(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/bridge")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

type testbed struct{ *nstest.Bed }

func newTestbed() *testbed { return &testbed{nstest.NewBed(GinkgoTB(), plugin())} }

// newTestbedOn returns a testbed without an outside host.
func newTestbedOn(host *nstest.NS) *testbed {
	return &testbed{nstest.NewBedOn(GinkgoTB(), plugin(), host, "host-local")}
}

// Range sets for the IPAM configuration.
const (
	v4range = `[{"subnet":"10.9.0.0/24"}]`
	v6range = `[{"subnet":"fd00:9::/64"}]`
)

// conf returns a configuration. keys is empty, or JSON text that ends in a comma. Without
// ranges, the configuration contains no IPAM plugin.
func (b *testbed) conf(version, keys string, ranges ...string) string {
	ipam := ""
	if len(ranges) > 0 {
		ipam = b.HostLocal(ranges...)
	}
	return nstest.Conf("bridge", version, keys+`"bridge":"cni0"`, ipam)
}

func newContainer() *nstest.NS { return nstest.New(GinkgoTB()) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
