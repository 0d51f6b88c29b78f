package main

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestPTP(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/ptp")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

type testbed struct{ *nstest.Bed }

func newTestbed() *testbed { return &testbed{nstest.NewBed(GinkgoTB(), plugin())} }

// The ranges and the routes of the IPAM configurations.
const (
	v4range       = `[{"subnet":"10.1.2.0/24"}]`
	v6range       = `[{"subnet":"fd00:1::/64"}]`
	defaultRoutes = `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]`
)

// conf returns a configuration with host-local. keys is JSON text that ends with a comma, or empty.
func (b *testbed) conf(version, keys string, ranges ...string) string {
	routes := ""
	if len(ranges) > 1 {
		routes = defaultRoutes
	} else if ranges[0] == v4range {
		routes = `,"routes":[{"dst":"0.0.0.0/0"}]`
	} else if ranges[0] == v6range {
		routes = `,"routes":[{"dst":"::/0"}]`
	}
	return withIPAM(version, keys, strings.TrimSuffix(strings.TrimPrefix(b.HostLocal(ranges...), "{"), "}")+routes)
}

// static returns a configuration with the IPAM plugin static and these addresses. rest is
// JSON text that begins with a comma, or empty.
func static(addresses, rest string) string {
	return withIPAM("1.1.0", "", `"type":"static","addresses":[`+addresses+`]`+rest)
}

func withIPAM(version, keys, ipam string) string {
	return nstest.Conf("ptp", version, strings.TrimSuffix(keys, ","), "{"+ipam+"}")
}

func newContainer() *nstest.NS { return nstest.New(GinkgoTB()) }

// retransmissions returns the number of TCP segments that the namespace has retransmitted.
func retransmissions(n *nstest.NS) string {
	GinkgoHelper()
	var names []string
	for line := range strings.Lines(n.Must(GinkgoTB(), "cat", "/proc/net/snmp")) {
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
