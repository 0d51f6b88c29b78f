package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestSBR(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/sbr")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a container with the interfaces eth0 and net1, each with a router at the other end. The IPv4
// default routes go through eth0 and, with a higher metric, net1. The IPv6 default route goes through net1.
type testbed struct {
	*nstest.Bed
	container, first, second *nstest.NS
}

const (
	eth0Prev = `{"interface":0,"address":"10.77.0.2/24","gateway":"10.77.0.1"}`
	net1Prev = `{"interface":0,"address":"10.66.0.2/24","gateway":"10.66.0.1"},{"interface":0,"address":"fd66::2/64","gateway":"fd66::1"}`
)

func newTestbed() *testbed {
	GinkgoHelper()
	tb := GinkgoTB()
	host, container := nstest.NewHostAndContainer(tb)
	b := &testbed{nstest.NewBedOn(tb, plugin(), host), container, nstest.NewHost(tb).Named("first"), nstest.NewHost(tb).Named("second")}
	nstest.Join(tb, nstest.End{In: container, Name: "eth0", Addrs: []string{"10.77.0.2/24"}}, nstest.End{In: b.first, Name: "r0", Addrs: []string{"10.77.0.1/24"}})
	nstest.Join(tb, nstest.End{In: container, Name: "net1", Addrs: []string{"10.66.0.2/24", "fd66::2/64"}},
		nstest.End{In: b.second, Name: "r1", Addrs: []string{"10.66.0.1/24", "10.66.0.254/24", "fd66::1/64"}})
	container.Batch(tb, "route add default via 10.77.0.1", "route add default via 10.66.0.1 metric 100", "route add default via fd66::1", "route add 172.31.0.0/16 via 10.66.0.9")
	return b
}

// conf returns a configuration. keys is JSON text or empty, and ips is the list of IPs in prevResult.
func conf(keys, ips string) string { return confOf("1.1.0", "net1", keys, ips) }

func confOf(version, ifName, keys, ips string) string {
	return nstest.WithPrevResult(nstest.Conf("sbr", version, keys, ""),
		`{"cniVersion":"`+version+`","interfaces":[{"name":"`+ifName+`","sandbox":"/any"}],"ips":[`+ips+`]}`)
}

func (b *testbed) call(config string) nstest.Call { return b.callFor("net1", config) }

func (b *testbed) callFor(ifName, config string) nstest.Call {
	c := b.Call("test", b.container, config)
	c.IfName = ifName
	return c
}

// rules returns the rules of a family ("-4", "-6") that are not the kernel's.
func (b *testbed) rules(family string) []string {
	GinkgoHelper()
	lines := strings.Split(b.container.IP(family+" rule"), "\n")
	return slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "from all") })
}

// table returns the routes of a family in a table, without the plugin's record.
func (b *testbed) table(family string, number int) string {
	GinkgoHelper()
	lines := strings.Split(b.container.IP(fmt.Sprintf("%s route show table %d", family, number)), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, " proto 113") }), "\n")
}
