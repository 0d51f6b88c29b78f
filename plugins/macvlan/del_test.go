package main

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("DEL", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		nstest.LeakCheck(GinkgoTB())
	})

	It("leaves node, container and reservations as before, also when it is repeated", func() {
		pod := newPod()
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), b.node, pod) })
		c := b.call("one", pod, conf("1.0.0", onUplink, b.hostLocal(hostLocalAll)))
		c.Config = nstest.WithPrevResult(c.Config, run(c, "ADD").OK(GinkgoTB()).Stdout)
		run(c, "DEL").OK(GinkgoTB())
		Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), b.node, pod) })).To(BeEmpty())
		Expect(b.reservations()).To(BeEmpty())
		run(c, "DEL").OK(GinkgoTB())
	})

	DescribeTable("succeeds, deletes the link and releases the addresses",
		func(change func(b *testbed, c *nstest.Call)) {
			c := b.call("one", newPod(), conf("1.0.0", onUplink, b.hostLocal(hostLocalAll)))
			mustAdd(c)
			pod := c.Pod
			change(b, &c)
			run(c, "DEL").OK(GinkgoTB())
			Expect(b.reservations()).To(BeEmpty())
			if c.Pod != nil && pod.FD() >= 0 {
				Expect(in(pod, "ip -br link")).NotTo(ContainSubstring("eth0"))
			}
			run(c, "DEL").OK(GinkgoTB())
		},
		Entry("without CNI_NETNS, as in the second DEL of containerd", func(_ *testbed, c *nstest.Call) { c.Pod = nil }),
		Entry("with nothing at CNI_NETNS", func(_ *testbed, c *nstest.Call) { c.Pod, c.NetNS = nil, "/run/netns/none" }),
		Entry("with a regular file at CNI_NETNS", func(_ *testbed, c *nstest.Call) { c.Pod.Remove(GinkgoTB()) }),
		Entry("after the link was deleted", func(_ *testbed, c *nstest.Call) { in(c.Pod, "ip link del eth0") }),
		Entry("after the master was deleted", func(b *testbed, _ *nstest.Call) { in(b.node, "ip link del uplink0") }),
		Entry("with a configuration that ADD refuses", func(b *testbed, c *nstest.Call) {
			c.Config = conf("1.0.0", `"master":"nope0","mode":"x","mtu":-5,"mac":"y"`, b.hostLocal(hostLocalAll))
		}),
		Entry("with malformed CNI_ARGS", func(_ *testbed, c *nstest.Call) { c.Args = "X=1;;Y" }),
		Entry("with a prevResult that cannot be read", func(_ *testbed, c *nstest.Call) {
			c.Config = nstest.WithPrevResult(c.Config, `{"cniVersion":"9.9.9"}`)
		}),
		Entry("with a link without an alias, as the reference plugin makes it", func(_ *testbed, c *nstest.Call) {
			c.Pod.Must(GinkgoTB(), "ip", "link", "set", "eth0", "alias", "")
		}),
	)

	It("releases the address after the link is deleted", func() {
		dir, log := newIPAMScript("rec", `[ $CNI_COMMAND = ADD ] || exit 0
			echo '{"cniVersion":"1.0.0","ips":[{"address":"198.18.0.60/24"}]}'`)
		c := b.call("one", newPod(), conf("1.0.0", onUplink, `{"type":"rec"}`))
		c.Path = dir
		mustAdd(c)
		run(c, "DEL").OK(GinkgoTB())
		Expect(readFile(log)).To(MatchRegexp(`^ADD: (no )?link\nDEL: no link\n$`))
	})

	DescribeTable("leaves the interface of another attachment whose namespace has the same path",
		func(lines ...string) {
			c := b.call("one", newPod(), conf("1.0.0", onUplink, b.hostLocal(hostLocalAll)))
			mustAdd(c)
			in(c.Pod, "ip link del eth0")
			if len(lines) > 0 {
				c.Pod.Batch(GinkgoTB(), lines...)
			} else {
				other := c
				other.ContainerID = "two"
				other.Config = conf("1.0.0", onUplink, static4)
				mustAdd(other)
			}
			before := nstest.Snapshot(GinkgoTB(), c.Pod)
			run(c, "DEL").OK(GinkgoTB())
			Expect(nstest.Snapshot(GinkgoTB(), c.Pod)).To(Equal(before))
			Expect(b.reservations()).To(BeEmpty())
		},
		Entry("another container's macvlan"),
		Entry("a link of another kind", "link add eth0 type veth peer name eth1"),
	)

	It("leaves a macvlan without an alias if prevResult has another MAC and other IPs", func() {
		c := b.call("one", newPod(), conf("1.0.0", onUplink, b.hostLocal(hostLocalAll)))
		c.Config = nstest.WithPrevResult(c.Config, run(c, "ADD").OK(GinkgoTB()).Stdout)
		in(c.Pod, "ip link del eth0")
		in(b.node, "ip link add link uplink0 name eth0 netns "+c.Pod.Path()+" type macvlan mode bridge")
		in(c.Pod, "ip addr add 192.0.2.7/24 dev eth0")
		run(c, "DEL").OK(GinkgoTB())
		Expect(in(c.Pod, "ip -br addr show eth0")).To(ContainSubstring("192.0.2.7/24"))
		Expect(b.reservations()).To(BeEmpty())
	})

	It("does not release the addresses while the link cannot be deleted", func() {
		c := b.call("one", newPod(), conf("1.0.0", onUplink, b.hostLocal(hostLocalAll)))
		mustAdd(c)
		c.Before = func(step string) error {
			if strings.HasPrefix(step, "delete link") {
				return fmt.Errorf("not now")
			}
			return nil
		}
		Expect(run(c, "DEL").Failure(GinkgoTB()).Msg).To(ContainSubstring("not now"))
		Expect(b.reservations()).To(HaveLen(2))
	})
})

var _ = Describe("GC and STATUS", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		nstest.LeakCheck(GinkgoTB())
	})

	It("GC calls the IPAM plugin, which releases the addresses of attachments that are not listed", func() {
		for _, id := range []string{"one", "two"} {
			mustAdd(b.call(id, newPod(), conf("1.1.0", onUplink, b.hostLocal(hostLocal4))))
		}
		Expect(b.reservations()).To(HaveLen(2))
		c := b.call("", nil, conf("1.1.0", onUplink+`,"cni.dev/valid-attachments":[{"containerID":"two","ifname":"eth0"}]`, b.hostLocal(hostLocal4)))
		run(c, "GC").OK(GinkgoTB())
		Expect(b.reservations()).To(Equal([]string{"198.18.0.101"}))
		run(b.call("", nil, conf("1.1.0", onUplink+`,"cni.dev/valid-attachments":[]`, noIPAM)), "GC").OK(GinkgoTB())
	})

	DescribeTable("STATUS fails if an ADD would fail",
		func(config func(b *testbed) string, code int, texts ...string) {
			r := run(b.call("", nil, config(b)), "STATUS")
			if code == 0 {
				r.OK(GinkgoTB())
				return
			}
			f := r.Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(code), f.String())
			for _, text := range texts {
				Expect(f.String()).To(ContainSubstring(text))
			}
		},
		Entry("success", func(b *testbed) string { return conf("1.1.0", onUplink, b.hostLocal(hostLocal4)) }, 0),
		Entry("success with the link of the default route, layer 2", func(*testbed) string { return conf("1.1.0", "", noIPAM) }, 0),
		Entry("success with a master in the container, which STATUS does not look for", func(*testbed) string { return conf("1.1.0", `"master":"net0","linkInContainer":true`, noIPAM) }, 0),
		Entry("the master does not exist", func(*testbed) string { return conf("1.1.0", `"master":"nope0"`, static4) }, types.CodeNotAvailable, "find link nope0"),
		Entry("no default route", func(b *testbed) string {
			in(b.node, "ip -4 route del default")
			in(b.node, "ip -6 route del default")
			return conf("1.1.0", "", static4)
		}, types.CodeNotAvailable, "no default route interface found"),
		Entry("the MTU is larger than the master's", func(*testbed) string { return conf("1.1.0", onUplink+`,"mtu":9000`, static4) }, types.CodeNotAvailable, "invalid MTU 9000"),
		Entry("the configuration is invalid", func(*testbed) string { return conf("1.1.0", onUplink+`,"mode":"x"`, static4) }, types.CodeNotAvailable, "unknown macvlan mode"),
		Entry("the IPAM plugin does not exist", func(*testbed) string { return conf("1.1.0", onUplink, `{"type":"nope"}`) }, types.CodeNotAvailable, `failed to find plugin "nope"`),
		Entry("STATUS of the IPAM plugin fails", func(*testbed) string {
			return conf("1.1.0", onUplink, `{"type":"static","addresses":[{"address":"x"}]}`)
		}, types.CodeNotAvailable, `IPAM plugin "static"`),
	)
})

var _ = Describe("many at once", func() {
	It("are added and deleted, several times, without a duplicate address or leftovers", func() {
		b := newTestbed()
		nstest.LeakCheck(GinkgoTB())
		config := conf("1.1.0", onUplink+`,"optimisticDAD":true`, b.hostLocal(hostLocalAll))
		pods := make([]*nstest.NS, nstest.FullOrShort(32, 8))
		calls := make([]nstest.Call, len(pods))
		for i := range pods {
			pods[i] = newPod()
			calls[i] = b.call(fmt.Sprint("c", i), pods[i], config)
		}
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), b.node) })
		for round := range nstest.FullOrShort(6, 2) {
			given := map[string]bool{}
			for _, r := range nstest.RunAll(plugin(), "ADD", calls) {
				for _, ip := range r.Result(GinkgoTB()).IPs {
					given[ip.Address.String()] = true
				}
			}
			Expect(given).To(HaveLen(2*len(pods)), "round %d", round)
			for _, r := range nstest.RunAll(plugin(), "DEL", calls) {
				r.OK(GinkgoTB())
			}
			Expect(b.reservations()).To(BeEmpty())
			for _, pod := range pods {
				Expect(in(pod, "ip -br link")).NotTo(ContainSubstring("eth0"))
			}
		}
		Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), b.node) })).To(BeEmpty())
	})
})

// TestFaults checks that ADD and DEL leave nothing if any single step fails. In the container,
// duplicate address detection ends at once.
func TestFaults(t *testing.T) {
	leases := t.TempDir()
	b := &testbed{leases: leases}
	for name, config := range map[string]string{
		"dual stack":  conf("1.1.0", onUplink, b.hostLocal(hostLocalAll)),
		"optimistic":  conf("1.1.0", onUplink+`,"mtu":1400,"optimisticDAD":true`, b.hostLocal(hostLocalAll)),
		"default":     conf("0.4.0", "", b.hostLocal(hostLocal4)),
		"layer 2":     conf("1.1.0", onUplink, noIPAM),
		"static IPv4": conf("0.2.0", onUplink, static4),
	} {
		t.Run(name, func(t *testing.T) {
			nstest.LeakCheck(t)
			nstest.FaultSweep(t, nstest.Sweep{
				Plugin: plugin(), Config: config, Path: nstest.Build(t, "host-local", "static"), Dirs: []string{leases},
				Prepare: func(node, pod *nstest.NS) {
					outside := nstest.NewNode(t).Named("outside")
					nstest.Join(t, nstest.End{In: node, Name: "uplink0", Addrs: []string{"198.18.0.1/24"}}, nstest.End{In: outside, Name: "uplink0", Addrs: []string{"198.18.0.2/24"}})
					node.Batch(t, "route add default via 198.18.0.2")
					pod.SkipDAD(t)
				},
				Ignore: nstest.KeptByHostLocal,
			})
		})
	}
}
