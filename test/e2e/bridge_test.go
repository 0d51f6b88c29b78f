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

// versions × backends.
func matrix() []TableEntry {
	var all []TableEntry
	for _, v := range types.VersionsSince(types.V010) {
		for _, backend := range []string{"nftables", "iptables"} {
			all = append(all, Entry(nil, v, backend))
		}
	}
	return all
}

var _ = Describe("bridge with host-local", func() {
	DescribeTable("a life of two pods",
		func(cniVersion, backend string) {
			nstest.LeakCheck(GinkgoTB())
			c := newCluster(cniVersion, backend)
			v, err := types.ParseVersion(cniVersion)
			Expect(err).NotTo(HaveOccurred())
			Expect(c.cni.GetStatusNetworkList(context.Background(), c.list)).To(Succeed())
			c.attached("stays") // what the node shares stands from here on
			before := nstest.WaitStable(c.state)

			a, b := c.attached("a"), c.attached("b")
			for _, p := range []*pod{a, b} {
				if err := c.check(p); v >= types.V040 {
					Expect(err).NotTo(HaveOccurred())
				} else {
					Expect(err).To(MatchError(ContainSubstring("does not support the CHECK")))
				}
			}
			trafficFlows(c, a, b)

			Expect(c.gc(a, b, &pod{rt: &libcni.RuntimeConf{ContainerID: "stays", IfName: "eth0"}})).To(Succeed())
			trafficFlows(c, a, b)
			Expect(c.gc(a, &pod{rt: &libcni.RuntimeConf{ContainerID: "stays", IfName: "eth0"}})).To(Succeed())
			Expect(c.reserved()).NotTo(ContainElement(ContainSubstring(`"b\r`)), "b's leases after a GC without it")

			for _, p := range []*pod{a, b} {
				Expect(c.del(p.rt)).To(Succeed())
				Expect(p.Exec("ip", "link", "show", "eth0")).Error().To(HaveOccurred())
			}
			Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "what the two left")
		},
		EntryDescription("version %s, %s"), matrix())

	DescribeTable("DEL finds what there is, whatever it is told", func(backend string) {
		nstest.LeakCheck(GinkgoTB())
		c := newCluster("1.1.0", backend)
		c.attached("stays")
		before := nstest.WaitStable(c.state)
		late := func(rt *libcni.RuntimeConf) *libcni.RuntimeConf {
			without := *rt
			without.NetNS = ""
			return &without
		}

		By("twice, the second time without a namespace and a result, as containerd does")
		p := c.attached("twice")
		Expect(c.del(p.rt)).To(Succeed())
		Expect(c.del(late(p.rt))).To(Succeed())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())

		By("after the namespace is gone")
		p = c.attached("gone")
		p.Remove(GinkgoTB())
		Expect(c.del(p.rt)).To(Succeed())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())

		By("without a namespace and a result, the first time")
		p = c.attached("forgotten")
		c.cni = libcni.NewCNIConfigWithCacheDir(c.cni.Path, GinkgoTB().TempDir(), &onNode{node: c.Node})
		Expect(c.del(late(p.rt))).To(Succeed())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())

		By("for a container that never was")
		Expect(c.del(&libcni.RuntimeConf{ContainerID: "never", IfName: "eth0"})).To(Succeed())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())
	},
		Entry("nftables", "nftables"), Entry("iptables", "iptables"))

	DescribeTable("GC removes what a lost runtime left", func(backend string) {
		c := newCluster("1.1.0", backend)
		stays := c.attached("stays")
		before := nstest.WaitStable(c.state)
		c.attached("lost").Remove(GinkgoTB())
		c.cni = libcni.NewCNIConfigWithCacheDir(c.cni.Path, GinkgoTB().TempDir(), &onNode{node: c.Node})
		Expect(c.gc(stays)).To(Succeed())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())
	},
		Entry("nftables", "nftables"), Entry("iptables", "iptables"))

	It("refuses a second ADD of a live attachment, and leaves the first alone", func() {
		c := newCluster("1.1.0", "nftables")
		a, b := c.attached("a"), c.attached("b")
		before := nstest.WaitStable(c.state)
		again := *a
		Expect(c.add(&again)).NotTo(Succeed())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())
		Expect(c.check(a)).To(Succeed())
		trafficFlows(c, a, b)
	})

	It("serves 200 pods, 32 at a time, and takes them all away", func() {
		nstest.LeakCheck(GinkgoTB())
		c := newCluster("1.1.0", "nftables")
		stays := c.attached("stays")
		before := nstest.WaitStable(c.state)
		pods := make([]*pod, 200)
		for i := range pods {
			pods[i] = newPod(fmt.Sprintf("pod%d", i))
		}
		Expect(atOnce(32, pods, c.add)).To(BeEmpty())
		owner := map[string]string{}
		for _, p := range append(pods, stays) {
			for _, addr := range []string{p.v4.String(), p.v6.String()} {
				Expect(owner).NotTo(HaveKey(addr), "given to %s too", p.rt.ContainerID)
				owner[addr] = p.rt.ContainerID
			}
		}
		Expect(c.reserved()).To(HaveLen(2 * 201))
		trafficFlows(c, pods[0], pods[199])
		Expect(atOnce(32, pods, func(p *pod) error { return c.del(p.rt) })).To(BeEmpty())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())
	})

	It("says what is wrong with the right code, through libcni", func() {
		c := newCluster("1.1.0", "nftables")
		p := newPod("p")
		p.rt.NetNS = "/does/not/exist"
		Expect(code(c.add(p))).To(BeEquivalentTo(types.CodeNamespace))
	})
})

// atOnce does f with all pods, n at a time, and gives what failed.
func atOnce(n int, pods []*pod, f func(*pod) error) []error {
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

// trafficFlows: TCP of both families from a to b, to the gateway, and to the host
// outside, which sees the node and answers although it has no route to the pods.
func trafficFlows(c *cluster, a, b *pod) {
	GinkgoHelper()
	tb := GinkgoTB()
	for _, f := range []struct{ from, to, gateway, outside, node string }{
		{a.v4.String(), b.v4.String(), "10.1.0.1", nstest.OutsideV4, nstest.NodeV4},
		{a.v6.String(), b.v6.String(), "fd00:1::1", nstest.OutsideV6, nstest.NodeV6},
	} {
		for _, server := range []struct {
			in       *nstest.NS
			at, seen string
		}{{b.NS, f.to, f.from}, {c.Node, f.gateway, f.from}, {c.Outside, f.outside, f.node}} {
			addr := nstest.ServeTCP(tb, server.in, hostPort(server.at))
			nstest.MustDial(tb, a.NS, addr.String(), server.seen)
		}
	}
}

// hostPort is the address with any free port.
func hostPort(addr string) string {
	if strings.Contains(addr, ":") {
		return "[" + addr + "]:0"
	}
	return addr + ":0"
}
