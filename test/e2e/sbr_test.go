package e2e

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// sbrNetworks lists the networks of one container, with its interfaces and their plugins. They are a default network
// and two networks with source-based routing.
var sbrNetworks = []struct{ ifName, plugins string }{
	{"eth0", `{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]}}`},
	{"net1", `{"type": "macvlan", "master": "uplink0", "optimisticDAD": true, "ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [
			[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100", "gateway": "198.18.0.2"}], [{"subnet": "2001:db8:18::/64", "rangeStart": "2001:db8:18::100", "gateway": "2001:db8:18::2"}]]}},
		{"type": "sbr"}, {"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400}, {"type": "firewall"}, {"type": "portmap"}, {"type": "host-access"}`},
	{"net2", `{"type": "bridge", "bridge": "cni2", "isGateway": true, "ipam": {"type": "host-local", "dataDir": "DIR/leases",
			"ranges": [[{"subnet": "10.2.0.0/16"}], [{"subnet": "fd00:2::/64"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
		{"type": "sbr", "keepMain": "subnet"}`},
}

// An sbrAttachment is an interface of the container in one of its networks.
type sbrAttachment struct {
	cnitest.Network
	container container
}

// newSBRAttachments returns the attachments of a new container to sbrNetworks.
func newSBRAttachments() (all []sbrAttachment) {
	GinkgoHelper()
	site, container := newNetwork("1.1.0", `{"type": "bridge"}`), cnitest.NewContainer("a")
	for _, network := range sbrNetworks {
		a := sbrAttachment{*site.Network, *container}
		a.SetList("1.1.0", network.ifName, network.plugins)
		rt := *container.RT
		rt.IfName = network.ifName
		a.container.RT = &rt
		all = append(all, a)
	}
	return all
}

var _ = DescribeTable("a container with three networks, two of them with sbr, works, and each DEL removes everything", func(order ...int) {
	nstest.LeakCheck(GinkgoTB())
	attachments := newSBRAttachments()
	state := func() string { return nstest.Snapshot(GinkgoTB(), attachments[0].container.NS) }
	before := nstest.WaitStable(state)
	for _, a := range attachments {
		Expect(a.Add(&a.container)).To(Succeed())
	}
	attachments[0].expectSBRTraffic()
	for n, i := range order {
		for _, left := range order[n:] {
			Expect(attachments[left].Check(&attachments[left].container)).To(Succeed())
		}
		Expect(attachments[i].Del(&attachments[i].container)).To(Succeed())
	}
	Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
},
	func(order ...int) string { return fmt.Sprintf("in the order %v", order) },
	Entry(nil, 0, 1, 2), Entry(nil, 1, 2, 0), Entry(nil, 2, 0, 1), // each network is detached before and after each other network
)

// expectSBRTraffic connects to the container through the macvlan from an address behind the router of that segment, and
// from the container to other hosts through the default network. With host-access, the host and the macvlan's address connect.
func (a *sbrAttachment) expectSBRTraffic() {
	GinkgoHelper()
	tb := GinkgoTB()
	a.Outside.Batch(tb, "address add 203.0.113.5/32 dev uplink0", "route add 198.18.0.100/32 dev uplink0 src 203.0.113.5")
	nstest.MustDial(tb, a.Outside, nstest.ServeTCP(tb, a.container.NS, "198.18.0.100:0").String(), "203.0.113.5")
	nstest.MustDial(tb, a.Host, nstest.ServeTCP(tb, a.container.NS, "198.18.0.100:0").String(), "198.18.0.1")
	nstest.MustDial(tb, a.container.NS, nstest.ServeTCP(tb, a.Host, "198.18.0.1:0").String(), "198.18.0.100")
	nstest.MustDial(tb, a.container.NS, nstest.ServeTCP(tb, a.Host, "10.1.0.1:0").String(), "10.1.0.2")
	nstest.MustDial(tb, a.container.NS, nstest.ServeTCP(tb, a.Host, "10.2.0.1:0").String(), "10.2.0.2")
	Expect(a.container.Must(tb, "ip", "route", "get", "192.0.2.1")).To(ContainSubstring("via 10.1.0.1 dev eth0"))
	Expect(a.container.Must(tb, "ip", "route", "get", "192.0.2.1", "from", "10.2.0.2")).To(ContainSubstring("via 10.2.0.1 dev net2"))
}
