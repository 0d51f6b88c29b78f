package main

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestDummy(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/dummy")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a host with one container.
type testbed struct {
	*nstest.Bed
	container *nstest.NS
}

func newTestbed() *testbed {
	GinkgoHelper()
	host, container := nstest.NewHostAndContainer(GinkgoTB())
	return &testbed{nstest.NewBedOn(GinkgoTB(), plugin(), host, "host-local", "static"), container}
}

// requireDummy skips the test if the kernel does not support dummy interfaces.
func requireDummy() {
	GinkgoHelper()
	_, err := nstest.New(GinkgoTB()).Exec("ip", "link", "add", "dummy0", "type", "dummy")
	nstest.RequireFeature(GinkgoTB(), "dummy", err)
}

const (
	metadata = `{"type":"static","addresses":[{"address":"169.254.169.254/32"},{"address":"fd00:ec2::254/128"}]}`
	static   = `{"type":"static","addresses":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64","gateway":"fd00:1::1"}],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["10.1.0.53"]}}`
	noIPAM = ""
)

func conf(version, keys, ipam string) string { return nstest.Conf("dummy", version, keys, ipam) }

func (b *testbed) call(conf string) nstest.Call { return b.Call("one", b.container, conf) }
