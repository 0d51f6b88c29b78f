package main

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestRouteOverride(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/route-override")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a container with the interface eth0, which has the routes of prev, and the interface net1, which has a
// default route with a higher metric.
type testbed struct {
	*nstest.Bed
	container *nstest.NS
}

const (
	ips    = `{"interface":0,"address":"10.66.0.2/24","gateway":"10.66.0.1"},{"interface":0,"address":"fd66::2/64","gateway":"fd66::1"}`
	routes = `{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"fd66::1"},{"dst":"10.9.0.0/16"},{"dst":"10.8.0.0/16","gw":"10.9.0.1","mtu":1400},{"dst":"fd09::/64"},{"dst":"10.7.0.0/16","gw":"0.0.0.0"}`
)

// kernelRoutes are the routes of eth0 for ip(8).
var kernelRoutes = []string{
	"route add default via 10.66.0.1", "route add default via fd66::1", "route add 10.9.0.0/16 via 10.66.0.1",
	"route add 10.8.0.0/16 via 10.9.0.1 dev eth0 onlink mtu 1400", "route add fd09::/64 via fd66::1", "route add 10.7.0.0/16 dev eth0",
}

func newTestbed() *testbed {
	GinkgoHelper()
	tb := GinkgoTB()
	host, container := nstest.NewHostAndContainer(tb)
	router := nstest.NewHost(tb).Named("router")
	nstest.Join(tb, nstest.End{In: container, Name: "eth0", Addrs: []string{"10.66.0.2/24", "fd66::2/64"}},
		nstest.End{In: router, Name: "r0", Addrs: []string{"10.66.0.1/24", "10.66.0.254/24", "fd66::1/64", "fd66::fe/64"}})
	nstest.Join(tb, nstest.End{In: container, Name: "net1", Addrs: []string{"10.77.0.2/24"}}, nstest.End{In: router, Name: "r1", Addrs: []string{"10.77.0.1/24"}})
	container.Batch(tb, append(kernelRoutes, "route add default via 10.77.0.1 metric 100", "route add 10.5.0.0/16 via 10.77.0.1")...)
	return &testbed{nstest.NewBedOn(tb, plugin(), host), container}
}

func conf(keys string) string { return confOf("1.1.0", keys) }

func confOf(version, keys string) string {
	return nstest.WithPrevResult(confWithoutPrev(version, keys), fmt.Sprintf(
		`{"cniVersion":%q,"interfaces":[{"name":"eth0","sandbox":"/any"}],"ips":[%s],"routes":[%s],"key":"kept"}`, version, ips, routes))
}

func confWithoutPrev(version, keys string) string {
	return nstest.Conf("route-override", version, keys, "")
}

// attach calls ADD, and returns the call with the result as prevResult.
func (b *testbed) attach(keys string) nstest.Call {
	GinkgoHelper()
	result := b.OK("ADD", b.call(conf(keys))).Stdout
	return b.call(nstest.WithPrevResult(confWithoutPrev("1.1.0", keys), result))
}

func (b *testbed) call(config string) nstest.Call { return b.Call("test", b.container, config) }

// routes returns the routes in the main table, without the routes of the kernel and of net1. The gateways of a multipath
// route are separate lines.
func (b *testbed) routes() []string {
	GinkgoHelper()
	var all []string
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.SplitSeq(b.container.IP(family+" route show"), "\n") {
			line = strings.NewReplacer(" dev eth0", "", " pref medium", "", " metric 1024", "", " weight 1", "").Replace(line)
			if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, "net1") && !strings.Contains(line, "proto kernel") {
				all = append(all, line)
			}
		}
	}
	return all
}
