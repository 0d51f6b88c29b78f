package main

import (
	"fmt"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestTCRedirectTap(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/tc-redirect-tap")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// mac is the MAC of the container's interface.
const mac = "02:00:00:00:00:02"

// A testbed is a host with one container, which has the interface eth0 of another plugin.
type testbed struct {
	*nstest.Bed
	container *nstest.NS
}

// newTestbed returns a testbed whose eth0 is the end of a veth pair.
func newTestbed() *testbed {
	GinkgoHelper()
	nstest.RequireTaps(GinkgoTB())
	host, container := nstest.NewHostAndContainer(GinkgoTB())
	b := &testbed{nstest.NewBedOn(GinkgoTB(), plugin(), host), container}
	nstest.Join(GinkgoTB(), nstest.End{In: host, Name: "veth0", Addrs: []string{"10.1.0.1/24", "fd00:1::1/64"}},
		nstest.End{In: container, Name: "eth0", Addrs: []string{"10.1.0.2/24", "fd00:1::2/64"}})
	container.Batch(GinkgoTB(), "link set eth0 address "+mac)
	return b
}

// call returns a call for eth0, with the result of the plugin that created it.
func (b *testbed) call(args string) nstest.Call {
	return nstest.Call{ContainerID: "vm1", Args: args, Host: b.Host, Container: b.container, Config: b.conf("1.1.0")}
}

// conf returns the configuration. Its prevResult is the result of the plugin that created eth0. The IPv6 address names no
// interface, as in the result of Cilium.
func (b *testbed) conf(version string) string {
	return nstest.WithPrevResult(nstest.Conf("tc-redirect-tap", version, "", ""), fmt.Sprintf(`{"cniVersion":"1.0.0",
		"interfaces":[{"name":"veth0"},{"name":"eth0","mac":%q,"sandbox":%q}], "routes":[{"dst":"0.0.0.0/0"}], "dns":{},
		"ips":[{"interface":1,"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64","gateway":"fd00:1::1"}]}`, mac, b.container.Path()))
}
