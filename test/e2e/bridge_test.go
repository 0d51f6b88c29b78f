package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// versionsAndBackends returns an entry for each version with each backend.
func versionsAndBackends() []TableEntry {
	var all []TableEntry
	for _, v := range types.VersionsSince(types.V010) {
		for _, backend := range []string{"nftables", "iptables"} {
			all = append(all, Entry(nil, v, backend))
		}
	}
	return all
}

var _ = Describe("bridge with host-local", func() {
	DescribeTable("serves two pods from ADD to DEL",
		func(cniVersion, backend string) {
			nstest.LeakCheck(GinkgoTB())
			network := newBridgeNetwork(cniVersion, backend)
			v, err := types.ParseVersion(cniVersion)
			Expect(err).NotTo(HaveOccurred())
			Expect(network.cni.GetStatusNetworkList(context.Background(), network.list)).To(Succeed())
			network.addPod("existing") // the objects that pods share exist from here on
			before := nstest.WaitStable(network.state)

			a, b := network.addPod("a"), network.addPod("b")
			for _, p := range []*pod{a, b} {
				if err := network.check(p); v >= types.V040 {
					Expect(err).NotTo(HaveOccurred())
				} else {
					Expect(err).To(MatchError(ContainSubstring("does not support the CHECK")))
				}
			}
			expectTraffic(network, a, b)

			Expect(network.gc(a, b, &pod{rt: &libcni.RuntimeConf{ContainerID: "existing", IfName: "eth0"}})).To(Succeed())
			expectTraffic(network, a, b)
			Expect(network.gc(a, &pod{rt: &libcni.RuntimeConf{ContainerID: "existing", IfName: "eth0"}})).To(Succeed())
			Expect(network.reservations()).NotTo(ContainElement(ContainSubstring(`"b\r`)), "reservations of b after a GC without it")

			for _, p := range []*pod{a, b} {
				Expect(network.del(p.rt)).To(Succeed())
				Expect(p.Exec("ip", "link", "show", "eth0")).Error().To(HaveOccurred())
			}
			Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "left after DEL")
		},
		EntryDescription("version %s, %s"), versionsAndBackends())

	It("adds and deletes 200 pods, 32 at a time", func() {
		nstest.LeakCheck(GinkgoTB())
		network := newBridgeNetwork("1.1.0", "nftables")
		existing := network.addPod("existing")
		before := nstest.WaitStable(network.state)
		pods := make([]*pod, 200)
		for i := range pods {
			pods[i] = newPod(fmt.Sprintf("pod%d", i))
		}
		Expect(concurrently(32, pods, network.add)).To(BeEmpty())
		owner := map[string]string{}
		for _, p := range append(pods, existing) {
			for _, addr := range []string{p.v4.String(), p.v6.String()} {
				Expect(owner).NotTo(HaveKey(addr), "allocated to %s too", p.rt.ContainerID)
				owner[addr] = p.rt.ContainerID
			}
		}
		Expect(network.reservations()).To(HaveLen(2 * 201))
		expectTraffic(network, pods[0], pods[199])
		Expect(concurrently(32, pods, func(p *pod) error { return network.del(p.rt) })).To(BeEmpty())
		Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty())
	})

	It("returns its error code through libcni", func() {
		network := newBridgeNetwork("1.1.0", "nftables")
		p := newPod("p")
		p.rt.NetNS = "/does/not/exist"
		Expect(errorCode(network.add(p))).To(BeEquivalentTo(types.CodeNamespace))
	})
})

// concurrently calls f for all pods, n at a time, and returns the errors.
func concurrently(n int, pods []*pod, f func(*pod) error) []error {
	var mu sync.Mutex
	var all sync.WaitGroup
	var failed []error
	slot := make(chan struct{}, n)
	for _, p := range pods {
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

// expectTraffic connects over IPv4 and IPv6 from a to b, to the gateway, and to the host outside.
// The host outside must see the node's address: it has no route to the pods.
func expectTraffic(network *testNetwork, a, b *pod) {
	GinkgoHelper()
	tb := GinkgoTB()
	for _, f := range []struct{ from, to, gateway, outside, node string }{
		{a.v4.String(), b.v4.String(), "10.1.0.1", nstest.OutsideV4, nstest.NodeV4},
		{a.v6.String(), b.v6.String(), "fd00:1::1", nstest.OutsideV6, nstest.NodeV6},
	} {
		for _, server := range []struct {
			in       *nstest.NS
			at, seen string
		}{{b.NS, f.to, f.from}, {network.Node, f.gateway, f.from}, {network.Outside, f.outside, f.node}} {
			addr := nstest.ServeTCP(tb, server.in, withAnyPort(server.at))
			nstest.MustDial(tb, a.NS, addr.String(), server.seen)
		}
	}
}

// withAnyPort returns the address with port 0.
func withAnyPort(addr string) string {
	if strings.Contains(addr, ":") {
		return "[" + addr + "]:0"
	}
	return addr + ":0"
}
