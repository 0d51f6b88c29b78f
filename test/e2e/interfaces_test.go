package e2e

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// An interfaceTest is a network, with the addresses that its containers request and the traffic that
// must work.
type interfaceTest struct {
	plugins string                               // the plugins of the list, with placeholders DIR and OPTIMISTIC
	request func(p *container, nth int) []string // returns the addresses that the container requests; nil for any
	traffic func(network *testNetwork, a, b *container)
}

var interfaceTests = map[string]interfaceTest{
	"bridge with host-local": {
		plugins: `{"type": "bridge", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", ` + hostLocal + `}`,
		request: fromPool, traffic: expectTraffic,
	},
	"bridge with host-local, iptables": {
		plugins: `{"type": "bridge", "isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", ` + hostLocal + `}`,
		request: fromPool, traffic: expectTraffic,
	},
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

// fromPool requests no addresses, and host-local chooses them.
func fromPool(*container, int) []string { return nil }

// requestAddresses requests addresses alternately with the capability ips, as nerdctl --ip does, and with CNI_ARGS.
func requestAddresses(v4, v6 string) func(p *container, nth int) []string {
	return func(p *container, nth int) []string {
		ips := []string{fmt.Sprintf(v4, nth), fmt.Sprintf(v6, nth)}
		if nth%2 == 1 {
			p.RT.CapabilityArgs = map[string]any{"ips": ips}
			return ips
		}
		p.RT.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", p.RT.ContainerID}, {"IP", strings.Join(ips, ",")}}
		return ips
	}
}

// expectMacvlanTraffic connects between two macvlans of one master, and between them and a neighbor of the master. Each
// must see the other's address. An optimistic IPv6 address sends no neighbor solicitations during duplicate address
// detection (RFC 4429, section 3.3). Therefore the neighbor connects first. Only version 1.1.0, whose addresses are not
// optimistic, tests IPv6 between the macvlans.
func expectMacvlanTraffic(network *testNetwork, a, b *container) {
	GinkgoHelper()
	tb := GinkgoTB()
	for _, f := range []struct {
		a, b, outside     string
		betweenContainers bool
	}{
		{a.V4.String(), b.V4.String(), nstest.OutsideV4, true},
		{a.V6.String(), b.V6.String(), nstest.OutsideV6, network.List.CNIVersion == "1.1.0"},
	} {
		for _, connection := range []struct {
			from, to *nstest.NS
			at, seen string
			expected bool
		}{
			{network.Outside, a.NS, f.a, f.outside, true}, {network.Outside, b.NS, f.b, f.outside, true},
			{a.NS, network.Outside, f.outside, f.a, true}, {a.NS, b.NS, f.b, f.a, f.betweenContainers},
		} {
			if connection.expected {
				nstest.MustDial(tb, connection.from, nstest.ServeTCP(tb, connection.to, withAnyPort(connection.at)).String(), connection.seen)
			}
		}
	}
}

// expectCheck calls CHECK, which must succeed in the versions that support it.
func (network *testNetwork) expectCheck(containers ...*container) {
	GinkgoHelper()
	v, err := types.ParseVersion(network.List.CNIVersion)
	Expect(err).NotTo(HaveOccurred())
	for _, p := range containers {
		if err := network.Check(p); v >= types.V040 {
			Expect(err).NotTo(HaveOccurred())
		} else {
			Expect(err).To(MatchError(ContainSubstring("does not support the CHECK")))
		}
	}
}

// versionEntries returns entries for the newest version and for every sixth one of the others, so that the six tests
// together call the executables in each version. With all faults, it returns an entry for each version.
func versionEntries(test int) (all []TableEntry) {
	versions := types.VersionsSince(types.V010)
	for i, v := range versions {
		if nstest.AllFaults() || i == len(versions)-1 || (i+test)%6 == 0 {
			all = append(all, Entry(nil, v))
		}
	}
	return all
}

var _ = Describe("the interfaces of", func() {
	for i, name := range slices.Sorted(maps.Keys(interfaceTests)) {
		DescribeTable(name+" work from ADD to DEL", func(cniVersion string) { interfaceTests[name].run(cniVersion) },
			EntryDescription("version %s"), versionEntries(i))
	}
})

// concurrently calls f for all containers, n at a time, and returns the errors.
func concurrently(n int, containers []*container, f func(*container) error) []error {
	var mu sync.Mutex
	var all sync.WaitGroup
	var failed []error
	slot := make(chan struct{}, n)
	for _, p := range containers {
		slot <- struct{}{}
		all.Go(func() {
			defer func() { <-slot }()
			if err := f(p); err != nil {
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return failed
}

// expectTraffic connects over IPv4 and IPv6 from a to b, to the gateway, and to the outside host. The outside host must
// see the host's address, because it has no route to the containers.
func expectTraffic(network *testNetwork, a, b *container) {
	GinkgoHelper()
	tb := GinkgoTB()
	for _, f := range []struct{ from, to, gateway, outside, host string }{
		{a.V4.String(), b.V4.String(), "10.1.0.1", nstest.OutsideV4, nstest.HostV4},
		{a.V6.String(), b.V6.String(), "fd00:1::1", nstest.OutsideV6, nstest.HostV6},
	} {
		for _, server := range []struct {
			in       *nstest.NS
			at, seen string
		}{{b.NS, f.to, f.from}, {network.Host, f.gateway, f.from}, {network.Outside, f.outside, f.host}} {
			addr := nstest.ServeTCP(tb, server.in, withAnyPort(server.at))
			nstest.MustDial(tb, a.NS, addr.String(), server.seen)
		}
	}
}

func withAnyPort(addr string) string { return net.JoinHostPort(addr, "0") }

// run adds containers that request addresses, and checks their traffic.
func (s interfaceTest) run(cniVersion string) {
	GinkgoHelper()
	nstest.LeakCheck(GinkgoTB())
	// Duplicate address detection takes a second. Only one version waits for it, because it is the same in all
	// versions.
	network := newNetwork(cniVersion, strings.ReplaceAll(s.plugins, "OPTIMISTIC", fmt.Sprint(cniVersion != "1.1.0")))
	containers := 0
	network.testContainers(func(id string) *container {
		GinkgoHelper()
		p := cnitest.NewContainer(id)
		containers++
		requested := s.request(p, containers)
		Expect(network.add(p)).To(Succeed())
		if requested != nil {
			Expect(requested).To(HaveExactElements(HavePrefix(p.V4.String()+"/"), HavePrefix(p.V6.String()+"/")))
		}
		return p
	}, func(a, b *container) { s.traffic(network, a, b) })
}

// testContainers calls all verbs for several containers, and checks their traffic and the state. add adds a container.
func (network *testNetwork) testContainers(add func(id string) *container, traffic func(a, b *container)) {
	GinkgoHelper()
	Expect(network.Status()).To(Succeed())
	existing := add("existing") // from here on, the objects that containers share exist
	before := nstest.WaitStable(network.state)

	a := add("a")
	withA := nstest.WaitStable(network.state)
	b := add("b")
	network.expectCheck(a, b)
	traffic(a, b)

	By("GC")
	Expect(network.GC(existing, a, b)).To(Succeed())
	network.expectCheck(a, b)
	traffic(a, b)
	if network.List.CNIVersion == "1.1.0" {
		Expect(network.WithoutCache(func() error { return network.GC(existing, a) })).To(Succeed())
		Expect(nstest.WaitEqual(withA, network.state)).To(BeEmpty(), "objects of b remain after GC without b")
		network.expectCheck(a)
	}

	By("DEL")
	for _, p := range []*container{a, b} {
		Expect(network.Del(p)).To(Succeed())
		Expect(p.Exec("ip", "link", "show", "eth0")).Error().To(HaveOccurred())
		Expect(network.WithoutCache(func() error { return network.Del(p.IDOnly()) })).To(Succeed())
	}
	Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "objects remain after DEL")

	By("DEL without a namespace, with only the container ID and the interface name")
	deleted := add("deleted")
	deleted.Remove(GinkgoTB())
	Expect(network.WithoutCache(func() error { return network.Del(deleted.IDOnly()) })).To(Succeed())
	Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "objects remain after DEL")
}
