package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// An interfaceTest is a network, with the addresses that its pods request and the traffic that
// must work.
type interfaceTest struct {
	plugins string                         // of the list; DIR and OPTIMISTIC are replaced
	request func(p *pod, nth int) []string // the addresses that the pod requests; nil: any
	traffic func(network *testNetwork, a, b *pod)
}

// hostLocal has the subnets that expectTraffic expects.
const hostLocal = `"ipam": {"type": "host-local", "dataDir": "DIR/leases",
	"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`

var interfaceTests = map[string]interfaceTest{
	"ptp with host-local": {
		plugins: `{"type": "ptp", "ipMasq": true, ` + hostLocal + `}`,
		request: fromPool, traffic: expectTraffic,
	},
	"bridge with static": {
		plugins: `{"type": "bridge", "isDefaultGateway": true, "ipMasq": true, "capabilities": {"ips": true}, "ipam": {"type": "static"}}`,
		request: requestAddresses("10.1.7.%d/16", "fd00:1::7:%d/64"), traffic: expectTraffic,
	},
	"macvlan with host-local": {
		plugins: `{"type": "macvlan", "master": "uplink0", "optimisticDAD": OPTIMISTIC, "ipam": {"type": "host-local", "dataDir": "DIR/leases",
			"ranges": [[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}], [{"subnet": "2001:db8:18::/64", "rangeStart": "2001:db8:18::100"}]]}}`,
		request: fromPool, traffic: expectMacvlanTraffic,
	},
	"macvlan with static": {
		plugins: `{"type": "macvlan", "master": "uplink0", "optimisticDAD": true, "capabilities": {"ips": true}, "ipam": {"type": "static"}}`,
		request: requestAddresses("198.18.0.7%d/24", "2001:db8:18::7:%d/64"), traffic: expectMacvlanTraffic,
	},
}

// fromPool requests no address: host-local chooses them.
func fromPool(*pod, int) []string { return nil }

// requestAddresses requests addresses with the capability ips, as nerdctl --ip does, for every
// other pod, and with CNI_ARGS for the others.
func requestAddresses(v4, v6 string) func(p *pod, nth int) []string {
	return func(p *pod, nth int) []string {
		ips := []string{fmt.Sprintf(v4, nth), fmt.Sprintf(v6, nth)}
		if nth%2 == 1 {
			p.rt.CapabilityArgs = map[string]any{"ips": ips}
			return ips
		}
		p.rt.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", p.rt.ContainerID}, {"IP", strings.Join(ips, ",")}}
		return ips
	}
}

// expectMacvlanTraffic connects between two macvlans of one master, and between them and a
// neighbor of the master. Each must see the other's address. An optimistic IPv6 address sends no
// neighbor solicitations during duplicate address detection (RFC 4429, section 3.3). Therefore
// the neighbor connects first, and with IPv6 only version 1.1.0, which has no optimistic address,
// connects between the macvlans.
func expectMacvlanTraffic(network *testNetwork, a, b *pod) {
	GinkgoHelper()
	tb := GinkgoTB()
	for _, f := range []struct {
		a, b, outside string
		betweenPods   bool
	}{
		{a.v4.String(), b.v4.String(), nstest.OutsideV4, true},
		{a.v6.String(), b.v6.String(), nstest.OutsideV6, network.list.CNIVersion == "1.1.0"},
	} {
		for _, connection := range []struct {
			from, to *nstest.NS
			at, seen string
			expected bool
		}{
			{network.Outside, a.NS, f.a, f.outside, true}, {network.Outside, b.NS, f.b, f.outside, true},
			{a.NS, network.Outside, f.outside, f.a, true}, {a.NS, b.NS, f.b, f.a, f.betweenPods},
		} {
			if connection.expected {
				nstest.MustDial(tb, connection.from, nstest.ServeTCP(tb, connection.to, withAnyPort(connection.at)).String(), connection.seen)
			}
		}
	}
}

// newNetwork returns a new node with a network of these plugins. DIR in them is replaced by a
// folder for their files.
func newNetwork(cniVersion, plugins string) *testNetwork {
	GinkgoHelper()
	tb := GinkgoTB()
	dir := tb.TempDir()
	network := &testNetwork{Site: nstest.NewSite(tb), leases: filepath.Join(dir, "leases")}
	bin := nstest.Build(tb, "bridge", "ptp", "macvlan", "host-local", "static", "dhcp", "portmap", "bandwidth", "tuning")
	network.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(dir, "cache"), network.exec())
	network.list = parseList(fmt.Sprintf(`{"cniVersion": %q, "name": "e2e", "plugins": [%s]}`,
		cniVersion, strings.ReplaceAll(plugins, "DIR", dir)))
	return network
}

// exec returns the means with which libcni starts the plugins.
func (network *testNetwork) exec() *execOnNode {
	return &execOnNode{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: network.Node}
}

// withoutCache calls f with a libcni that has an empty cache. With its cache, libcni passes
// prevResult, and calls DEL in a GC for the attachments that it knows.
func (network *testNetwork) withoutCache(f func() error) error {
	withCache := network.cni
	defer func() { network.cni = withCache }()
	network.cni = libcni.NewCNIConfigWithCacheDir(network.cni.Path, GinkgoTB().TempDir(), network.exec())
	return f()
}

// idOnly returns a call with container ID and interface name only.
func idOnly(p *pod) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.rt.ContainerID, IfName: p.rt.IfName}
}

// expectCheck calls CHECK, which must succeed in the versions that have it.
func expectCheck(network *testNetwork, cniVersion string, pods ...*pod) {
	GinkgoHelper()
	v, err := types.ParseVersion(cniVersion)
	Expect(err).NotTo(HaveOccurred())
	for _, p := range pods {
		if err := network.check(p); v >= types.V040 {
			Expect(err).NotTo(HaveOccurred())
		} else {
			Expect(err).To(MatchError(ContainSubstring("does not support the CHECK")))
		}
	}
}

// versionEntries returns an entry for each version since the given one.
func versionEntries(since types.Version) []TableEntry {
	var all []TableEntry
	for _, v := range types.VersionsSince(since) {
		all = append(all, Entry(nil, v))
	}
	return all
}

var _ = Describe("interfaces of", func() {
	for name, s := range interfaceTests {
		DescribeTable(name+" from ADD to DEL", func(cniVersion string) { s.run(cniVersion) },
			EntryDescription("version %s"), versionEntries(types.V010))
	}
})

// run calls all verbs for several pods, and checks their traffic and the state.
func (s interfaceTest) run(cniVersion string) {
	GinkgoHelper()
	nstest.LeakCheck(GinkgoTB())
	// Duplicate address detection takes a second. It is the same in all versions, so that only one
	// version waits for it.
	network := newNetwork(cniVersion, strings.ReplaceAll(s.plugins, "OPTIMISTIC", fmt.Sprint(cniVersion != "1.1.0")))
	pods := 0
	addPod := func(id string) *pod {
		GinkgoHelper()
		p := newPod(id)
		pods++
		requested := s.request(p, pods)
		Expect(network.add(p)).To(Succeed())
		if requested != nil {
			Expect(requested).To(HaveExactElements(HavePrefix(p.v4.String()+"/"), HavePrefix(p.v6.String()+"/")))
		}
		return p
	}
	Expect(network.cni.GetStatusNetworkList(context.Background(), network.list)).To(Succeed())
	existing := addPod("existing") // the objects that pods share exist from here on
	before := nstest.WaitStable(network.state)

	a := addPod("a")
	withA := nstest.WaitStable(network.state)
	b := addPod("b")
	expectCheck(network, cniVersion, a, b)
	s.traffic(network, a, b)

	By("GC")
	Expect(network.gc(existing, a, b)).To(Succeed())
	expectCheck(network, cniVersion, a, b)
	s.traffic(network, a, b)
	if cniVersion == "1.1.0" {
		Expect(network.withoutCache(func() error { return network.gc(existing, a) })).To(Succeed())
		Expect(nstest.WaitEqual(withA, network.state)).To(BeEmpty(), "left of b after a GC without it")
		expectCheck(network, cniVersion, a)
	}

	By("DEL")
	for _, p := range []*pod{a, b} {
		Expect(network.del(p.rt)).To(Succeed())
		Expect(p.Exec("ip", "link", "show", "eth0")).Error().To(HaveOccurred())
		Expect(network.withoutCache(func() error { return network.del(idOnly(p)) })).To(Succeed())
	}
	Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "left after DEL")

	By("DEL without a namespace, with container ID and interface name only")
	deleted := addPod("deleted")
	deleted.Remove(GinkgoTB())
	Expect(network.withoutCache(func() error { return network.del(idOnly(deleted)) })).To(Succeed())
	Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "left after DEL")
}
