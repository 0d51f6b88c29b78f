package e2e

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// uplinkIPAM is an IPAM configuration with addresses on the segment of the uplink.
const uplinkIPAM = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [
	[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}], [{"subnet": "2001:db8:18::/64", "rangeStart": "2001:db8:18::100"}]]}`

// features maps kernel features to the kind of a link that needs the feature.
var features = map[string]string{
	"dummy": "dummy", "ipvlan": "ipvlan", "8021q": "vlan id 5", "vrf": "vrf table 5000", "VLAN filtering of bridges": "bridge vlan_filtering 1",
}

// requireFeature ends the spec if the kernel lacks the feature, which may be "".
func (network *testNetwork) requireFeature(feature string) {
	GinkgoHelper()
	if feature == "" {
		return
	}
	_, err := network.Outside.Exec("ip", strings.Fields("link add link "+nstest.Uplink+" name try0 type "+features[feature])...)
	nstest.RequireFeature(GinkgoTB(), feature, err)
	network.Outside.IP("link del try0")
}

// labelsOf returns the labels of a spec that needs the feature, which may be "".
func labelsOf(feature string) Labels {
	if feature == "" {
		return nil
	}
	return Label(nstest.Kernel)
}

// moveDevice creates the device that the configuration of host-device names. It is connected to the outside host.
func (network *testNetwork) moveDevice() {
	GinkgoHelper()
	nstest.Join(GinkgoTB(), nstest.End{In: network.Host, Name: "dev0"}, nstest.End{In: network.Outside, Name: "dev0"})
}

// useReferenceMacvlan makes libcni call the reference plugin macvlan, and plumb's other plugins.
func (network *testNetwork) useReferenceMacvlan() {
	GinkgoHelper()
	dir := GinkgoTB().TempDir()
	executables, err := filepath.Glob(network.CNI.Path[0] + "/*")
	Expect(err).NotTo(HaveOccurred())
	for _, file := range executables {
		if name := filepath.Base(file); name == "macvlan" {
			file = filepath.Join(nstest.Reference(GinkgoTB()), name)
		}
		Expect(os.Symlink(file, filepath.Join(dir, filepath.Base(file)))).To(Succeed())
	}
	network.Use(dir, GinkgoTB().TempDir())
}

// expectHostAccess connects in both directions between the host and the container.
func (network *testNetwork) expectHostAccess(c *container) {
	GinkgoHelper()
	tb := GinkgoTB()
	for _, f := range []struct{ host, container string }{{nstest.HostV4, c.V4.String()}, {nstest.HostV6, c.V6.String()}} {
		nstest.MustDial(tb, network.Host, nstest.ServeTCP(tb, c.NS, withAnyPort(f.container)).String(), f.host)
		nstest.MustDial(tb, c.NS, nstest.ServeTCP(tb, network.Host, withAnyPort(f.host)).String(), f.container)
	}
}

// expectHostPort connects from the host to the host port of the container, at each of the host's addresses.
func (network *testNetwork) expectHostPort(c *container) {
	GinkgoHelper()
	nstest.ServeTCP(GinkgoTB(), c.NS, c.V4.String()+":80")
	for _, addr := range []string{"127.0.0.1:8080", nstest.HostV4 + ":8080"} {
		_, err := nstest.Dial(network.Host, addr)
		Expect(err).NotTo(HaveOccurred(), addr)
	}
}

var _ = DescribeTable("host-access connects the host and the container after", func(plugins string, prepare func(*testNetwork), traffic func(*testNetwork, *container)) {
	nstest.LeakCheck(GinkgoTB())
	network := newNetwork("1.1.0", plugins)
	if prepare != nil {
		prepare(network)
	}
	warm, c := cnitest.NewContainer("warm"), cnitest.NewContainer("a")
	for _, each := range []*container{warm, c} {
		each.RT.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	}
	Expect(network.add(warm)).To(Succeed())
	Expect(network.Del(warm)).To(Succeed())
	before, inContainer := nstest.WaitStable(network.state), nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), c.NS) })
	Expect(network.Status()).To(Succeed())
	Expect(network.add(c)).To(Succeed())
	network.expectHostAccess(c)
	if traffic != nil {
		traffic(network, c)
	}
	Expect(network.Check(c)).To(Succeed())
	Expect(network.GC(c)).To(Succeed())
	network.expectHostAccess(c)
	Expect(network.Del(c)).To(Succeed())
	Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty())
	Expect(nstest.WaitEqual(inContainer, func() string { return nstest.Snapshot(GinkgoTB(), c.NS) })).To(BeEmpty())
},
	Entry("macvlan", `{"type": "macvlan", "master": "uplink0", "optimisticDAD": true, `+uplinkIPAM+`}, {"type": "host-access"}`, nil, nil),
	Entry("ipvlan", Label(nstest.Kernel), `{"type": "ipvlan", "master": "uplink0", "mode": "l3", "dataDir": "DIR/ipvlan", "optimisticDAD": true, `+uplinkIPAM+`}, {"type": "host-access"}`,
		func(network *testNetwork) { network.requireFeature("ipvlan") }, nil),
	Entry("vlan", Label(nstest.Kernel), `{"type": "vlan", "master": "uplink0", "vlanId": 5, "optimisticDAD": true, `+uplinkIPAM+`}, {"type": "host-access"}`,
		func(network *testNetwork) { network.requireFeature("8021q") }, nil),
	Entry("host-device", `{"type": "host-device", "device": "dev0", "optimisticDAD": true, `+uplinkIPAM+`}, {"type": "host-access", "hostAddresses": ["198.18.0.1", "2001:db8:18::1"]}`,
		(*testNetwork).moveDevice, nil),
	Entry("the reference's macvlan", `{"type": "macvlan", "master": "uplink0", `+uplinkIPAM+`}, {"type": "host-access"}`, // takes a second, because it waits for duplicate address detection
		(*testNetwork).useReferenceMacvlan, nil),
	Entry("macvlan with portmap and firewall", `{"type": "macvlan", "master": "uplink0", "optimisticDAD": true, `+uplinkIPAM+`},
		{"type": "host-access"}, {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}, {"type": "firewall", "backend": "nftables"}`,
		nil, (*testNetwork).expectHostPort),
)
