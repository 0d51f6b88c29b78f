package e2e

import (
	"context"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// sbrNetworks are the networks of one container: a default network, and two others with source based
// routing.
var sbrNetworks = []struct{ ifName, list string }{
	{"eth0", `{"cniVersion": "1.1.0", "name": "default", "plugins": [{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]}}]}`},
	{"net1", `{"cniVersion": "1.1.0", "name": "segment", "plugins": [{"type": "macvlan", "master": "uplink0", "optimisticDAD": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [
			[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100", "gateway": "198.18.0.2"}], [{"subnet": "2001:db8:18::/64", "rangeStart": "2001:db8:18::100", "gateway": "2001:db8:18::2"}]]}},
		{"type": "sbr"}]}`},
	{"net2", `{"cniVersion": "1.1.0", "name": "storage", "plugins": [{"type": "bridge", "bridge": "cni2", "isGateway": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.2.0.0/16"}], [{"subnet": "fd00:2::/64"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
		{"type": "sbr", "keepMain": "subnet"}]}`},
}

// A sbrContainer is a container with attachments to sbrNetworks.
type sbrContainer struct {
	pod         *pod
	node        *testNetwork
	lists       []*libcni.NetworkConfigList
	attachments []*libcni.RuntimeConf
}

func newSBRContainer() *sbrContainer {
	GinkgoHelper()
	c := &sbrContainer{pod: newPod("a"), node: newNetwork("1.1.0", `{"type": "bridge"}`)}
	dir := GinkgoTB().TempDir()
	c.node.cni = libcni.NewCNIConfigWithCacheDir([]string{nstest.Build(GinkgoTB(), "bridge", "macvlan", "host-local", "sbr")}, dir+"/cache", c.node.exec())
	for _, network := range sbrNetworks {
		c.lists = append(c.lists, parseList(strings.ReplaceAll(network.list, "DIR", dir)))
		rt := *c.pod.rt
		rt.IfName = network.ifName
		c.attachments = append(c.attachments, &rt)
	}
	return c
}

func (c *sbrContainer) add(i int) {
	GinkgoHelper()
	_, err := c.node.cni.AddNetworkList(context.Background(), c.lists[i], c.attachments[i])
	Expect(err).NotTo(HaveOccurred())
}

func (c *sbrContainer) del(i int) {
	GinkgoHelper()
	Expect(c.node.cni.DelNetworkList(context.Background(), c.lists[i], c.attachments[i])).To(Succeed())
}

func (c *sbrContainer) check(i int) {
	GinkgoHelper()
	Expect(c.node.cni.CheckNetworkList(context.Background(), c.lists[i], c.attachments[i])).To(Succeed())
}

var _ = DescribeTable("a container with three networks, two of them with sbr, works, and DELs leave nothing", func(order ...int) {
	nstest.LeakCheck(GinkgoTB())
	c := newSBRContainer()
	before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), c.pod.NS) })
	for i := range c.lists {
		c.add(i)
	}
	c.expectTraffic()
	for n, i := range order {
		for _, left := range order[n:] {
			c.check(left)
		}
		c.del(i)
	}
	Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), c.pod.NS) })).To(BeEmpty())
},
	func(order ...int) string { return fmt.Sprintf("in the order %v", order) },
	Entry(nil, 0, 1, 2), Entry(nil, 0, 2, 1), Entry(nil, 1, 0, 2), Entry(nil, 1, 2, 0), Entry(nil, 2, 0, 1), Entry(nil, 2, 1, 0),
)

// expectTraffic connects to the container through the macvlan from an address behind the router of that
// segment, and from the container to others through the default network.
func (c *sbrContainer) expectTraffic() {
	GinkgoHelper()
	tb := GinkgoTB()
	c.node.Outside.Batch(tb, "address add 203.0.113.5/32 dev uplink0", "route add 198.18.0.100/32 dev uplink0 src 203.0.113.5")
	nstest.MustDial(tb, c.node.Outside, nstest.ServeTCP(tb, c.pod.NS, "198.18.0.100:0").String(), "203.0.113.5")
	nstest.MustDial(tb, c.pod.NS, nstest.ServeTCP(tb, c.node.Node, "10.1.0.1:0").String(), "10.1.0.2")
	nstest.MustDial(tb, c.pod.NS, nstest.ServeTCP(tb, c.node.Node, "10.2.0.1:0").String(), "10.2.0.2")
	Expect(c.pod.Must(tb, "ip", "route", "get", "192.0.2.1")).To(ContainSubstring("via 10.1.0.1 dev eth0"))
	Expect(c.pod.Must(tb, "ip", "route", "get", "192.0.2.1", "from", "10.2.0.2")).To(ContainSubstring("via 10.2.0.1 dev net2"))
}
