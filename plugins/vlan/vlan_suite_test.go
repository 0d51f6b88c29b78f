package main

import (
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestVLAN(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/vlan")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

type testbed struct{ *nstest.Bed }

func newTestbed() *testbed { return &testbed{nstest.NewBed(GinkgoTB(), plugin())} }

// newTaggedTestbed returns a testbed whose outside host has an interface in VLAN 100. It ends the spec if the
// kernel does not support VLAN interfaces.
func newTaggedTestbed() *testbed {
	GinkgoHelper()
	b := newTestbed()
	b.tagOutside("tagged", "id 100", outside4+"/24", outside6+"/64")
	return b
}

// tagOutside creates a VLAN interface with these addresses on the outside host.
func (b *testbed) tagOutside(name, options string, addrs ...string) {
	GinkgoHelper()
	_, err := b.Outside.Exec("ip", strings.Fields("link add link "+nstest.Uplink+" name "+name+" type vlan "+options)...)
	nstest.RequireFeature(GinkgoTB(), "8021q", err)
	b.Outside.Batch(GinkgoTB(), "link set "+name+" up")
	for _, addr := range addrs {
		line := "address add " + addr + " dev " + name
		if strings.Contains(addr, ":") {
			line += " nodad"
		}
		b.Outside.Batch(GinkgoTB(), line)
	}
}

// The addresses in VLAN 100.
const (
	container4, container6 = "198.18.100.50", "2001:db8:100::50"
	outside4, outside6     = "198.18.100.2", "2001:db8:100::2"
	staticDual             = `{"type":"static","addresses":[{"address":"198.18.100.50/24","gateway":"198.18.100.2"},{"address":"2001:db8:100::50/64","gateway":"2001:db8:100::2"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["198.18.100.53"]}}`
	in100                  = `"master":"uplink0","vlanId":100`
	inChain                = `"linkInContainer":true,"vlanId":100`
	noIPAM                 = ""
)

var static4 = nstest.Static(container4 + "/24")

func conf(version, keys, ipam string) string { return nstest.Conf("vlan", version, keys, ipam) }
