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
	return nstest.WithPrevResult(nstest.Conf("vrf", version, keys, ""), `{"cniVersion":"`+version+`",
		"interfaces":[{"name":"eth0","sandbox":"/any"},{"name":"net1","sandbox":"/any"}],"ips":[`+ipOf(version)+`],"dns":{}}`)
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

// A testbed is a container with the interfaces eth0 and net1, which have the same subnets and a router each at the
// other end. The IPv4 default route goes through net1. There is an IPv6 default route through each interface.
type testbed struct {
	*nstest.Bed
	container *nstest.NS
}

// newEmptyTestbed returns a testbed without interfaces. It compares states without the order of routes,
// because the kernel orders routes of two interfaces to one destination by when the interfaces were set up.
func newEmptyTestbed() *testbed {
	GinkgoHelper()
	host, container := nstest.NewHostAndContainer(GinkgoTB())
	b := &testbed{nstest.NewBedOn(GinkgoTB(), plugin(), host), container}
	b.Sorted = true
	return b
}

func newTestbed() *testbed {
	GinkgoHelper()
	b, tb := newEmptyTestbed(), GinkgoTB()
	requireVRF(b.container)
	for i, name := range []string{"eth0", "net1"} {
		router := nstest.NewHost(tb).Named("router of " + name)
		nstest.Join(tb, nstest.End{In: b.container, Name: name, Addrs: []string{"10.1.0.2/24", "fd01::2/64"}},
			nstest.End{In: router, Name: "r0", Addrs: []string{"10.1.0.1/24", "fd01::1/64", fmt.Sprintf("203.0.113.%d/32", 1+i)}})
	}
	b.container.Batch(tb, "route add default via 10.1.0.1 dev net1", "route add 192.0.2.0/24 via 10.1.0.9 dev net1 mtu 1300 proto static", "route add 198.51.100.0/24 via 10.1.0.1 dev net1 table 77")
	for _, dev := range []string{"eth0", "net1"} {
		b.container.IP("-6 route append default via fd01::1 dev " + dev)
	}
	return b
}

// requireVRF ends the test if the kernel does not support VRFs. It also causes the kernel to add the rule
// that the first VRF of a namespace needs, and that stays.
func requireVRF(container *nstest.NS) {
	GinkgoHelper()
	_, err := container.Exec("ip", "link", "add", "first", "type", "vrf", "table", "9")
	nstest.RequireFeature(GinkgoTB(), "vrf", err)
	container.IP("link del first")
}

func (b *testbed) call(ifName, config string) nstest.Call {
	c := b.Call("test", b.container, config)
	c.IfName = ifName
	return c
}

// reaches reports whether a program that is bound to a VRF reaches an address.
func reaches(container *nstest.NS, vrf, address string) bool {
	_, err := container.Exec("ping", "-c", "1", "-W", "3", "-I", vrf, address)
	return err == nil
}
