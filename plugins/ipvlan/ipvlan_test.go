package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

const (
	pod4b  = "198.18.0.51"
	static = `{"type":"static","addresses":[{"address":"` + pod4b + `/24"}]}`
)

var _ = Describe("ADD", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() {
		b = newIPVlanTestbed()
		nstest.LeakCheck(GinkgoTB())
	})

	It("connects the container with the segment of the master, and containers with each other", func() {
		pod := nstest.New(GinkgoTB()).Named("pod") // with duplicate address detection
		result := mustAdd(b.call("one", pod, b.conf("1.1.0", onUplink+`,"mtu":1400`, staticDual)))
		Expect(in(pod, "ip -6 address show dev eth0 tentative")).To(BeEmpty())
		b.expectTraffic(pod)
		other := newPod()
		mustAdd(b.call("two", other, b.conf("1.1.0", onUplink, static)))
		nstest.MustDial(GinkgoTB(), other, pod4+":80", pod4b)

		By("returning what it made")
		Expect(result.Interfaces).To(HaveLen(1))
		Expect(result.Interfaces[0]).To(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", pod.Path())))
		Expect(in(b.Node, "ip link show uplink0")).To(ContainSubstring(result.Interfaces[0].MAC))
		Expect(details(pod)).To(And(ContainSubstring("ipvlan mode l2 bridge"), ContainSubstring("mtu 1400"), ContainSubstring("alias plumb:net1/one/eth0")))
		Expect(in(pod, "ip -4 route")).To(Equal("default via 198.18.0.2 dev eth0 \n198.18.0.0/24 dev eth0 proto kernel scope link src 198.18.0.50 \n"))
		for key, want := range map[string]string{"net/ipv4/conf/eth0/arp_notify": "1", "net/ipv6/conf/eth0/ndisc_notify": "1", "net/ipv6/conf/eth0/accept_ra": "0"} {
			Expect(pod.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
		}
	})

	It("announces its addresses on the segment", func() {
		b.Outside.Batch(GinkgoTB(), "neigh add "+pod4+" lladdr 02:00:00:00:00:ee dev uplink0 nud stale", "neigh add "+pod6+" lladdr 02:00:00:00:00:ee dev uplink0 nud stale")
		mac := mustAdd(b.call("one", newPod(), b.conf("1.1.0", onUplink, staticDual))).Interfaces[0].MAC
		for _, addr := range []string{pod4, pod6} {
			Eventually(func() string { return in(b.Outside, "ip neigh show "+addr) }, "1m").Should(ContainSubstring(mac), addr)
		}
	})

	It("returns the result in the form of each version", func() {
		for _, version := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			pod := newPod()
			c := b.call("one", pod, b.conf(version, onUplink, staticDual))
			reply := run(c, "ADD").OK(GinkgoTB())
			_, rest, _ := strings.Cut(in(b.Node, "ip -o link show uplink0"), "link/ether ")
			mac, _, _ := strings.Cut(rest, " ")
			nstest.Golden(GinkgoTB(), "add-"+version, strings.NewReplacer(pod.Path(), "SANDBOX", mac, "MASTER").Replace(reply.Stdout))
			run(c, "DEL").OK(GinkgoTB())
		}
	})

	It("works in each mode with each flag, and CHECK compares them", func() {
		for _, mode := range []string{"l2", "l3", "l3s"} {
			for _, flag := range []string{"bridge", "private", "vepa"} {
				pod := newPod()
				c := attached(b.call("one", pod, b.conf("1.0.0", onUplink+`,"mode":"`+mode+`","flag":"`+flag+`"`, staticDual)))
				Expect(details(pod)).To(ContainSubstring("ipvlan mode " + mode + " " + flag))
				nstest.ServeTCP(GinkgoTB(), pod, pod4+":80")
				if mode != "l2" { // no ARP: the host outside needs a route
					b.Outside.Batch(GinkgoTB(), "route replace "+pod4+" via "+nstest.NodeV4)
				}
				Eventually(func() error { _, err := nstest.Dial(b.Outside, pod4+":80"); return err }, "1m").Should(Succeed(), mode+flag)
				run(c, "CHECK").OK(GinkgoTB())
				in(pod, "ip link set eth0 type ipvlan mode "+map[string]string{"l2": "l3", "l3": "l3s", "l3s": "l2"}[mode])
				run(c, "CHECK").RequireFailure(GinkgoTB(), types.CodeChanged, "interface eth0 has mode "+map[string]string{"l2": "l3", "l3": "l3s", "l3s": "l2"}[mode], ", not mode "+mode)
				run(c, "DEL").OK(GinkgoTB())
			}
		}
	})

	It("refuses to change the mode or the flag of other ipvlans of the master", func() {
		first := attached(b.call("one", newPod(), b.conf("1.1.0", onUplink, static4)))
		second := b.call("two", newPod(), b.conf("1.1.0", onUplink+`,"mode":"l3"`, b.hostLocal()))
		b.mustRefuse(second, types.CodeConfig, "the master has mode l2, flag bridge for the attachment net1/one/eth0", "a new ipvlan with mode l3, flag bridge would change those of that attachment")
		b.mustRefuse(b.call("two", second.Pod, b.conf("1.1.0", onUplink+`,"flag":"private"`, static)), types.CodeConfig, "the master has mode l2, flag bridge")
		run(first, "CHECK").OK(GinkgoTB())
		By("but not those of another master, nor after DEL or GC")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Node, Name: "uplink1"}, nstest.End{In: b.Outside, Name: "uplink1"})
		other := b.call("three", newPod(), b.conf("1.1.0", `"master":"uplink1","mode":"l3s"`, static))
		mustAdd(other)
		run(b.call("", nil, b.conf("1.1.0", onUplink+`,"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"},{"containerID":"three","ifname":"eth0"}]`, noIPAM)), "GC").OK(GinkgoTB())
		Expect(b.recordFiles()).To(HaveLen(2))
		b.mustRefuse(second, types.CodeConfig, "net1/one/eth0")
		run(first, "DEL").OK(GinkgoTB())
		mustAdd(second)
		in(second.Pod, "ip link del eth0")
		run(b.call("", nil, b.conf("1.1.0", onUplink+`,"cni.dev/valid-attachments":[{"containerID":"three","ifname":"eth0"}]`, noIPAM)), "GC").OK(GinkgoTB())
		Expect(b.recordFiles()).To(HaveLen(1))
		By("including those that others made on the node")
		in(b.Node, "ip link add link uplink0 name ipv0 type ipvlan mode l3s")
		b.mustRefuse(b.call("four", newPod(), b.conf("1.1.0", onUplink, static4)), types.CodeConfig, "the master has mode l3s, flag bridge for the interface ipv0")
		b.mustRefuse(b.call("four", newPod(), b.conf("1.1.0", `"master":"ipv0"`, static4)), types.CodeConfig, "the master has mode l3s, flag bridge for the interface ipv0")
		four := attached(b.call("four", newPod(), b.conf("1.1.0", `"master":"ipv0","mode":"l3s"`, static4)))
		run(four, "CHECK").OK(GinkgoTB())
	})

	It("takes master, addresses and routes from prevResult", func() {
		prev := `{"cniVersion":"1.0.0","interfaces":[{"name":"uplink0"}],"ips":[{"address":"198.18.0.50/24","gateway":"198.18.0.2"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["192.0.2.1"]}}`
		pod := newPod()
		c := b.call("one", pod, b.conf("1.0.0", `"prevResult":`+prev, noIPAM))
		reply := run(c, "ADD").OK(GinkgoTB())
		result := reply.Result(GinkgoTB())
		Expect(result.Interfaces).To(HaveExactElements(HaveField("Name", "eth0")))
		Expect(result.IPs).To(HaveExactElements(And(HaveField("Interface", 0), HaveField("Address", HaveField("String()", pod4+"/24")))))
		Expect(result.DNS.Nameservers).To(Equal([]string{"192.0.2.1"}))
		Expect(in(pod, "ip route")).To(ContainSubstring("default via 198.18.0.2 dev eth0"))
		c.Config = nstest.WithPrevResult(b.conf("1.0.0", "", noIPAM), reply.Stdout)
		run(c, "CHECK").OK(GinkgoTB())
		run(c, "DEL").OK(GinkgoTB())
		Expect(in(pod, "ip -br link")).NotTo(ContainSubstring("eth0"))
	})

	It("makes a layer 2 link without IPAM", func() {
		pod := newPod()
		Expect(mustAdd(b.call("one", pod, b.conf("0.3.1", onUplink, noIPAM))).IPs).To(BeEmpty())
		Expect(in(pod, "ip link show eth0")).To(ContainSubstring("UP,LOWER_UP"))
	})

	It("works on a master that is down, and the container is connected when that comes up", func() {
		in(b.Node, "ip link set uplink0 down")
		pod := newPod()
		reply := run(b.call("one", pod, b.conf("1.0.0", onUplink, staticDual)), "ADD").OK(GinkgoTB())
		Expect(reply.Stderr).To(ContainSubstring("master uplink0 is down or has no carrier"))
		in(b.Node, "ip link set uplink0 up")
		nstest.ServeTCP(GinkgoTB(), pod, pod4+":80")
		Eventually(func() error { _, err := nstest.Dial(b.Outside, pod4+":80"); return err }, "1m").Should(Succeed())
	})

	It("works on a master in the container, and DEL deletes it", func() {
		pod := newPod()
		nstest.Join(GinkgoTB(), nstest.End{In: pod, Name: "net0"}, nstest.End{In: b.Outside, Name: "peer0", Addrs: []string{"203.0.113.2/24"}})
		c := attached(b.call("one", pod, b.conf("1.0.0", `"master":"net0","linkInContainer":true`, `{"type":"static","addresses":[{"address":"203.0.113.50/24"}]}`)))
		nstest.ServeTCP(GinkgoTB(), b.Outside, "203.0.113.2:80")
		nstest.MustDial(GinkgoTB(), pod, "203.0.113.2:80", "")
		run(c, "CHECK").OK(GinkgoTB())
		run(c, "DEL").OK(GinkgoTB())
		Expect(in(pod, "ip -br link")).To(And(ContainSubstring("net0"), Not(ContainSubstring("eth0"))))
	})

	It("fails if the master has macvlans or is a bridge port", func() {
		in(b.Node, "ip link add link uplink0 name mv0 type macvlan")
		b.mustRefuse(b.call("one", newPod(), b.conf("1.0.0", onUplink, static4)), types.CodeConfig, "master uplink0 has macvlans, or is a port")
		b.Node.Batch(GinkgoTB(), "link del mv0", "link add br0 type bridge", "link set uplink0 master br0")
		b.mustRefuse(b.call("one", newPod(), b.conf("1.0.0", onUplink, static4)), types.CodeConfig, "master uplink0 has macvlans, or is a port")
	})

	It("fails if another host, or another ipvlan of the master, has the address", func() {
		b.mustRefuse(b.call("one", nstest.New(GinkgoTB()), b.conf("1.0.0", onUplink, `{"type":"static","addresses":[{"address":"`+nstest.OutsideV6+`/64"}]}`)),
			attach.CodeDuplicate, nstest.OutsideV6+"/64: the address is in use on the segment")
		mustAdd(b.call("one", newPod(), b.conf("1.0.0", onUplink, staticDual)))
		for _, addr := range []string{pod4 + "/24", pod6 + "/64"} {
			b.mustRefuse(b.call("two", newPod(), b.conf("1.0.0", onUplink, `{"type":"static","addresses":[{"address":"`+addr+`"}]}`)),
				attach.CodeDuplicate, "another ipvlan of master uplink0", addr)
		}
	})

	It("accepts a gateway that is in no subnet of the container in the modes without neighbors", func() {
		ipam := `{"type":"static","addresses":[{"address":"198.18.0.50/32","gateway":"192.0.2.1"},{"address":"2001:db8:18::50/128"}],
			"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"2001:db8:19::1"}]}`
		b.mustRefuse(b.call("one", newPod(), b.conf("1.0.0", onUplink, ipam)), types.CodeConfig, "192.0.2.1, the gateway of the route to 0.0.0.0/0, is in none of the networks of eth0")
		pod := newPod()
		c := attached(b.call("one", pod, b.conf("1.0.0", onUplink+`,"mode":"l3"`, ipam)))
		b.Outside.Batch(GinkgoTB(), "route add "+pod4+" via "+nstest.NodeV4)
		nstest.ServeTCP(GinkgoTB(), b.Outside, nstest.OutsideV4+":80")
		nstest.MustDial(GinkgoTB(), pod, nstest.OutsideV4+":80", pod4)
		run(c, "CHECK").OK(GinkgoTB())
	})

	It("leaves nothing if IPAM or a route fails", func() {
		b.mustRefuse(b.call("one", newPod(), b.conf("1.0.0", onUplink, `{"type":"static","addresses":[{"address":"x"}]}`)), types.CodeConfig, `IPAM plugin "static"`)
		ipam := strings.TrimSuffix(b.hostLocal(), "}") + `,"routes":[{"dst":"0.0.0.0/0","gw":"192.0.2.1"}]}`
		b.mustRefuse(b.call("one", newPod(), b.conf("1.0.0", onUplink, ipam)), types.CodeConfig, "192.0.2.1, the gateway of the route to 0.0.0.0/0, is in none of the networks of eth0")
	})

	It("calls ADD of an IPAM plugin that works over the link when the link is up, and its DEL before the link is deleted", func() {
		c := b.call("one", newPod(), b.conf("1.1.0", onUplink, `{"type":"dhcp"}`))
		nstest.LinkForIPAM{Plugin: plugin(), Call: c}.Require(GinkgoTB(), "DEL")
	})

	It("succeeds with a warning if /proc/sys is read-only", func() {
		nstest.RequireAddOnReadOnlySysctls(GinkgoTB(), plugin(), b.call("one", nstest.New(GinkgoTB()), b.conf("1.1.0", onUplink, staticDual)))
	})

	It("names its interface in the error if the interface is removed during ADD", func() {
		nstest.RequireRemovedInterfaceInError(GinkgoTB(), plugin(), b.call("one", newPod(), b.conf("1.1.0", onUplink, b.hostLocal())), "set link eth0 up")
		Expect(append(b.reservations(), b.recordFiles()...)).To(BeEmpty())
	})

	It("adds and deletes many at once", func() {
		var calls []nstest.Call
		for i := range nstest.FullOrShort(8, 4) {
			calls = append(calls, b.call(fmt.Sprint("c", i), newPod(), b.conf("1.1.0", onUplink, b.hostLocal())))
		}
		given := map[string]bool{}
		for _, r := range nstest.RunAll(plugin(), "ADD", calls) {
			for _, ip := range r.Result(GinkgoTB()).IPs {
				given[ip.Address.String()] = true
			}
		}
		Expect(given).To(HaveLen(2 * len(calls)))
		for _, r := range nstest.RunAll(plugin(), "DEL", calls) {
			r.OK(GinkgoTB())
		}
		Expect(append(b.reservations(), b.recordFiles()...)).To(BeEmpty())
	})
})

// details returns what ip shows of the pod's interface, with one space between the words.
func details(pod *nstest.NS) string {
	GinkgoHelper()
	return strings.Join(strings.Fields(in(pod, "ip -d link show eth0")), " ")
}

var _ = Describe("CHECK", Label(nstest.Kernel), func() {
	It("names every difference", func() {
		b := newIPVlanTestbed()
		c := attached(b.call("one", newPod(), b.conf("1.0.0", onUplink, staticDual)))
		c.Pod.Batch(GinkgoTB(), "link set eth0 mtu 1300")
		run(c, "CHECK").OK(GinkgoTB())
		c.Pod.Batch(GinkgoTB(), "address del 198.18.0.50/24 dev eth0")
		run(c, "CHECK").RequireFailure(GinkgoTB(), types.CodeChanged, "no address 198.18.0.50/24")
		c.Pod.Batch(GinkgoTB(), "link set eth0 down")
		run(c, "CHECK").RequireFailure(GinkgoTB(), types.CodeChanged, "eth0 is down")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Node, Name: "uplink1"}, nstest.End{In: b.Outside, Name: "uplink1"})
		b.Node.Batch(GinkgoTB(), "link set uplink0 down", "link set uplink0 name old0", "link set old0 up", "link set uplink1 down", "link set uplink1 name uplink0")
		run(c, "CHECK").RequireFailure(GinkgoTB(), types.CodeChanged, "not on master uplink0")
		c.Pod.Batch(GinkgoTB(), "link del eth0", "link add eth0 type veth peer name eth1")
		run(c, "CHECK").RequireFailure(GinkgoTB(), types.CodeChanged, `of kind "veth", not "ipvlan"`)
	})
})

var _ = Describe("DEL", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() { b = newIPVlanTestbed() })

	It("leaves node, container and files as before, whatever has changed since ADD", func() {
		pod := newPod()
		state := func() string { return nstest.Snapshot(GinkgoTB(), b.Node, pod) }
		before := nstest.WaitStable(state)
		for name, change := range map[string]func(*nstest.Call){
			"nothing":             func(*nstest.Call) {},
			"no prevResult":       func(c *nstest.Call) { c.Config = b.conf("1.0.0", onUplink, b.hostLocal()) },
			"no alias":            func(*nstest.Call) { pod.Must(GinkgoTB(), "ip", "link", "set", "eth0", "alias", "") },
			"other configuration": func(c *nstest.Call) { c.Config = b.conf("1.0.0", `"master":"nope0","mode":"x"`, b.hostLocal()) },
		} {
			By(name)
			c := attached(b.call("one", pod, b.conf("1.0.0", onUplink, b.hostLocal())))
			change(&c)
			run(c, "DEL").OK(GinkgoTB())
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
			Expect(append(b.reservations(), b.recordFiles()...)).To(BeEmpty())
			run(c, "DEL").OK(GinkgoTB())
		}
	})

	It("leaves the ipvlan of another attachment whose namespace has the same path", func() {
		c := attached(b.call("one", newPod(), b.conf("1.0.0", onUplink, b.hostLocal())))
		in(c.Pod, "ip link del eth0")
		mustAdd(b.call("two", c.Pod, b.conf("1.0.0", onUplink, static4)))
		for _, alias := range []string{"plumb:net1/two/eth0", ""} { // without an alias, the reference plugin made it
			c.Pod.Must(GinkgoTB(), "ip", "link", "set", "eth0", "alias", alias)
			run(c, "DEL").OK(GinkgoTB())
			Expect(in(c.Pod, "ip -br address show eth0")).To(ContainSubstring(pod4))
		}
		Expect(b.reservations()).To(BeEmpty())
	})

	It("leaves nothing if any step of ADD or DEL fails", func() {
		nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
			Plugin: plugin(), Config: b.conf("1.1.0", onUplink+`,"mtu":1400,"mode":"l3"`, b.hostLocal()),
			Path: b.path, Dirs: []string{b.leases, b.records}, Ignore: nstest.KeptByHostLocal,
			Prepare: func(node, _ *nstest.NS) {
				outside := nstest.New(GinkgoTB()).Named("outside")
				nstest.Join(GinkgoTB(), nstest.End{In: node, Name: "uplink0"}, nstest.End{In: outside, Name: "uplink0"})
			},
			PreparePod: func(pod *nstest.NS) { pod.SkipDAD(GinkgoTB()) },
		})
	})
})
