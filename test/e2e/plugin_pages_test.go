package e2e

import (
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// needs maps plugins to the kernel feature that their lists need.
var needs = map[string]string{"dummy": "dummy", "ipvlan": "ipvlan", "vlan": "8021q", "vrf": "vrf"}

// pageNetwork returns a network with the smallest list of the plugin's page, on a host with the network cards that the pages
// name. eth0 is the uplink's alternative name.
func pageNetwork(plugin string) *testNetwork {
	GinkgoHelper()
	network := newNetwork("1.0.0", `{"type": "loopback"}`)
	network.Use(nstest.Build(GinkgoTB(), "bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device", "loopback", "host-local", "static", "portmap", "bandwidth",
		"tuning", "firewall", "sbr", "route-override", "host-access", "tc-redirect-tap", "dummy", "tap", "vrf"), GinkgoTB().TempDir())
	nstest.Join(GinkgoTB(), nstest.End{In: network.Host, Name: "eth1", Addrs: []string{"192.0.2.1/24"}}, nstest.End{In: network.Outside, Name: "eth1"})
	page := nstest.ReadFile(GinkgoTB(), "../../plugins/"+plugin+"/README.md")
	network.List = cnitest.ParseList(strings.ReplaceAll(nstest.JSONBlocks(page)[0], `"type": "host-local"`,
		`"type": "host-local", "dataDir": "`+network.Dir+`/leases"`))
	return network
}

var _ = Describe("the smallest list of the page of", func() {
	mains, _ := filepath.Glob("../../plugins/*/main.go")
	for _, main := range mains {
		plugin := filepath.Base(filepath.Dir(main))
		if plugin == "dhcp" || plugin == "cluster-local" {
			continue // they need a server and a store
		}
		It(plugin+" works", labelsOf(needs[plugin]), func() {
			network := pageNetwork(plugin)
			network.requireFeature(needs[plugin])
			c := cnitest.NewContainer("one")
			goCNI(c)
			Expect(network.Add(c)).To(Succeed())
			Expect(network.Check(c)).To(Succeed())
			Expect(network.Del(c)).To(Succeed())
		})
	}
})
