package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/plumb-cni/plumb/test/nstest"
)

// i5 is the parameter set of the observation I.5 in reference-behaviour.md.
const i5 = `"ingressRate": 1000000, "ingressBurst": 800000, "egressRate": 2000000, "egressBurst": 1600000`

// fromContainerd is what containerd passes for a pod with both annotations at 10M.
const fromContainerd = `"runtimeConfig": {"bandwidth": {"IngressRate": 10000000, "IngressBurst": 4294967295, "EgressRate": 10000000, "EgressBurst": 4294967295}}`

var _ = Describe("bandwidth", func() {
	var w *world

	BeforeEach(func() { nstest.LeakCheck(GinkgoTB()) })

	DescribeTable("ADD makes what the golden file says, and DEL removes all of it", func(golden string, on func() *world, keys string) {
		w := on()
		shaped := func() string { return "on the node:\n" + tcText(w.call.Node) + "in the container:\n" + tcText(w.pod) }
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), w.call.Node, w.pod) })
		w.run("ADD", keys).OK(GinkgoTB())
		nstest.Golden(GinkgoTB(), golden, shaped())
		w.run("CHECK", keys).OK(GinkgoTB())
		w.run("DEL", keys).OK(GinkgoTB())
		nstest.Golden(GinkgoTB(), "cleaned", shaped())
		Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), w.call.Node, w.pod) })).To(BeEmpty())
		w.run("DEL", keys).OK(GinkgoTB())
		w.run("ADD", keys).OK(GinkgoTB()) // on the same interface again
	},
		Entry("both directions", "both", ptp, i5),
		Entry("ingress only", "ingress", ptp, `"ingressRate": 1000000, "ingressBurst": 800000`),
		Entry("egress only", "egress", bridge, `"egressRate": 1000000, "egressBurst": 800000`),
		Entry("as containerd calls", "containerd", ptp, fromContainerd),
		Entry("latency", "latency", ptp, i5+`, "latency": 100`),
		Entry("64-bit rates", "wide", ptp, rates(100e9, 40e9, 80e6)),
		Entry("unshaped subnets", "unshaped", ptp, i5+`, "unshapedSubnets": ["10.0.0.0/8", "fd00:1:2::/40"]`),
		Entry("shaped subnets", "shaped", ptp, i5+`, "shapedSubnets": ["0.0.0.0/0", "2000::/3"]`),
		Entry("macvlan", "macvlan", macvlan, i5),
		Entry("macvlan with subnets", "macvlan-unshaped", macvlan, i5+`, "unshapedSubnets": ["10.0.0.0/8"]`),
	)

	DescribeTable("ADD returns prevResult with the ifb added", func(version string) {
		w = ptp()
		c := w.call.With("ADD")
		c.Config = strings.Replace(w.config(i5), `"1.0.0"`, `"`+version+`"`, 1)
		r := nstest.Run(plugin(), c).Result(GinkgoTB())
		Expect(r.Interfaces).To(HaveLen(3))
		Expect(r.Interfaces[2]).To(And(HaveField("Name", ifbX), HaveField("Sandbox", ""), HaveField("MAC", Not(BeEmpty()))))
		Expect(r.IPs).To(ConsistOf(HaveField("Interface", 1)))
		Expect(w.node.Must(GinkgoTB(), "ip", "-d", "link", "show", ifbX)).To(And(
			ContainSubstring("alias plumb:bwn/cidX/eth0"), ContainSubstring("mtu 1500"), ContainSubstring("qlen 32"), ContainSubstring("group default")))
		Expect(w.node.Must(GinkgoTB(), "ip", "addr", "show", ifbX)).NotTo(ContainSubstring("inet6"))
	}, Entry(nil, "0.3.0"), Entry(nil, "0.3.1"), Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"))

	It("ADD returns the ifb of a macvlan as an interface in the container", func() {
		w = macvlan()
		Expect(w.run("ADD", i5).Result(GinkgoTB()).Interfaces).To(HaveExactElements(
			HaveField("Name", "eth0"), And(HaveField("Name", ifbX), HaveField("Sandbox", w.pod.Path()))))
	})

	It("changes nothing without limits, but needs a prevResult", func() {
		w = ptp()
		steps := 0
		c := w.call.With("ADD")
		c.Before = func(string) error { steps++; return nil }
		c.Config = w.config(`"ingressRate": 0, "ingressBurst": 0`)
		Expect(nstest.Run(plugin(), c).Result(GinkgoTB()).Interfaces).To(HaveLen(2))
		Expect(steps).To(BeZero())
		for _, command := range []string{"ADD", "CHECK"} {
			for _, keys := range []string{"", i5} {
				c = w.call.With(command)
				c.Config = configOf(network, keys, "")
				f := nstest.Run(plugin(), c).Failure(GinkgoTB())
				Expect(f).To(And(HaveField("Code", uint(7)), HaveField("Msg", ContainSubstring(command+" of bandwidth needs a prevResult"))))
			}
		}
	})

	It("applies the runtime's limits if those of the configuration are zero", func() {
		w = ptp()
		w.run("ADD", `"ingressRate": 0, "egressRate": 0, `+fromContainerd).OK(GinkgoTB())
		Expect(tcText(w.node)).To(ContainSubstring("rate 10Mbit"))
	})

	DescribeTable("refuses an invalid configuration, and changes nothing", func(on func() *world, keys string, code int, text string) {
		w = on()
		before := w.shape()
		f := w.run("ADD", keys).Failure(GinkgoTB())
		Expect(f.String()).To(ContainSubstring(text))
		Expect(f.Code).To(BeEquivalentTo(code))
		Expect(w.shape()).To(Equal(before))
		w.run("DEL", keys).OK(GinkgoTB()) // whatever the configuration
	},
		Entry(nil, ptp, `"ingressRate": 8`, 7, "if rate is set, burst must also be set"),
		Entry(nil, ptp, `"egressBurst": 8`, 7, "if burst is set, rate must also be set"),
		Entry(nil, ptp, `"egressRate": 7, "egressBurst": 8`, 7, "egressRate 7 is too low"),
		Entry(nil, ptp, `"egressRate": 40, "egressBurst": 8`, 7, "the lowest rate for its MTU is 48 bit/s"),
		Entry(nil, ptp, `"egressRate": 80, "egressBurst": 34359738368`, 7, "burst cannot be more than 4GB"),
		Entry(nil, ptp, i5+`, "shapedSubnets": ["10.0.0.1"]`, 7, "is not a subnet"),
		Entry(nil, ptp, i5+`, "latency": 0`, 7, "latency 0"),
		Entry(nil, ptp, i5+`, "ingresRate": 1, "strict": true`, 2, "did you mean"),
		Entry("no such interface", newWorldWithPrev, i5, 7, `no interface "eth0" in container`),
		Entry("the other end elsewhere", elsewhere, i5, 7, "no veth peer of container interface eth0 found in host ns"),
	)

	DescribeTable("refuses JSON of the wrong types", func(keys string) {
		w = ptp()
		Expect(w.run("ADD", keys).Failure(GinkgoTB()).Code).To(BeEquivalentTo(types.CodeDecode))
	},
		Entry(nil, `"ingressRate": -1`), Entry(nil, `"ingressRate": 1.5`), Entry(nil, `"ingressRate": "8M"`),
		Entry(nil, `"ingressRate": 18446744073709551616`), Entry(nil, `"shapedSubnets": "10.0.0.0/8"`), Entry(nil, `"runtimeConfig": {"bandwidth": 8}`))

	It("refuses a second ADD, and keeps what the first made", func() {
		for _, keys := range []string{i5, `"ingressRate": 1000000, "ingressBurst": 800000`, `"egressRate": 1000000, "egressBurst": 800000`} {
			w = ptp()
			w.run("ADD", keys).OK(GinkgoTB())
			before := tcText(w.node)
			f := w.run("ADD", keys).Failure(GinkgoTB())
			Expect(f).To(And(HaveField("Code", uint(7)), HaveField("Msg", ContainSubstring("an earlier ADD was not followed by a DEL"))))
			Expect(tcText(w.node)).To(Equal(before))
			w.run("CHECK", keys).OK(GinkgoTB())
		}
	})

	It("refuses an interface that another program shapes, and DEL leaves that alone", func() {
		w = ptp()
		for _, command := range []string{
			"qdisc add dev veth0 root handle 7: tbf rate 1mbit burst 10000 limit 10000", "qdisc add dev veth0 ingress",
			"filter add dev veth0 parent ffff: pref 9 protocol ip u32 match u32 0 0 flowid 1:7",
		} {
			w.node.Must(GinkgoTB(), "tc", strings.Fields(command)...)
		}
		before := tcText(w.node)
		for _, keys := range []string{`"ingressRate": 1000000, "ingressBurst": 800000`, `"egressRate": 1000000, "egressBurst": 800000`} {
			Expect(w.run("ADD", keys).Failure(GinkgoTB()).Msg).To(ContainSubstring("another program made the qdisc"))
			w.run("DEL", keys).OK(GinkgoTB())
			Expect(tcText(w.node)).To(Equal(before))
		}
	})

	It("limits two interfaces of a container in one network", func() {
		w = ptp()
		nstest.Join(GinkgoTB(), nstest.End{In: w.node, Name: "veth1"}, nstest.End{In: w.pod, Name: "eth1"})
		second := *w
		second.call.IfName = "eth1"
		second.prev = strings.NewReplacer("veth0", "veth1", "eth0", "eth1").Replace(w.prev)
		w.run("ADD", i5).OK(GinkgoTB())
		own := ifbNames(types.Attachment{Network: network, ContainerID: cid, IfName: "eth1"})[1]
		Expect(second.run("ADD", i5).Result(GinkgoTB()).Interfaces[2].Name).To(Equal(own))
		w.run("CHECK", i5).OK(GinkgoTB())
		second.run("CHECK", i5).OK(GinkgoTB())
		w.run("DEL", i5).OK(GinkgoTB())
		second.run("CHECK", i5).OK(GinkgoTB())
		w.run("ADD", i5).OK(GinkgoTB())
		second.run("DEL", i5).OK(GinkgoTB())
		w.run("CHECK", i5).OK(GinkgoTB())
		w.run("DEL", i5).OK(GinkgoTB())
		Expect(tcText(w.node)).To(BeEmpty())
		Expect(w.node.Must(GinkgoTB(), "ip", "-br", "link")).NotTo(ContainSubstring("bwp"))
	})

	It("does not delete the ifb without an alias of another interface", func() {
		w = ptp()
		w.node.Must(GinkgoTB(), "ip", "link", "add", ifbX, "type", "ifb") // the reference plugin's, for the container's eth1
		w.run("ADD", i5).OK(GinkgoTB())
		w.run("CHECK", i5).OK(GinkgoTB())
		w.run("DEL", i5).OK(GinkgoTB())
		Expect(w.node.Must(GinkgoTB(), "ip", "-br", "link")).To(And(ContainSubstring(ifbX), Not(ContainSubstring(ifbNames(types.Attachment{Network: network, ContainerID: cid, IfName: "eth0"})[1]))))
	})

	It("ADD names the interfaces that have the names of the ifb, and changes nothing", func() {
		w = ptp()
		for _, name := range ifbNames(types.Attachment{Network: network, ContainerID: cid, IfName: "eth0"}) {
			w.node.Must(GinkgoTB(), "ip", "link", "add", name, "type", "ifb")
		}
		before := w.shape()
		f := w.run("ADD", i5).Failure(GinkgoTB())
		Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
		Expect(f.Msg).To(MatchRegexp(`interfaces \["` + ifbX + `" "bwp[0-9a-f]{12}"\] already exist: an earlier ADD`))
		Expect(w.shape()).To(Equal(before))
	})

	It("puts a new ifb into the network's group until it has an alias, so that GC finds it", func() {
		w = ptp()
		made := ""
		c := w.call.With("ADD")
		c.Config = w.config(i5)
		c.Before = func(step string) error {
			if step == "set link "+ifbX+" alias" {
				made = w.node.Must(GinkgoTB(), "ip", "-o", "link", "show", ifbX)
			}
			return nil
		}
		nstest.Run(plugin(), c).OK(GinkgoTB())
		Expect(made).To(ContainSubstring(fmt.Sprint("group ", int32(attach.UnfinishedGroup(network)))))
	})

	It("adds the qdisc of the ifb before it sets it up", func() {
		w = ptp()
		shape := ""
		c := w.call.With("ADD")
		c.Config = w.config(i5)
		c.Before = func(step string) error {
			if step == "set link "+ifbX+" up" {
				shape = w.node.Must(GinkgoTB(), "tc", "qdisc", "show", "dev", ifbX)
			}
			return nil
		}
		nstest.Run(plugin(), c).OK(GinkgoTB())
		Expect(shape).To(ContainSubstring("tbf 1: root"))
	})

	DescribeTable("DEL needs neither container, prevResult nor limits", func(change func(c *nstest.Call)) {
		w = ptp()
		w.run("ADD", i5).OK(GinkgoTB())
		c := w.call.With("DEL")
		c.Config = w.config("")
		change(&c)
		nstest.Run(plugin(), c).OK(GinkgoTB())
		Expect(w.node.Must(GinkgoTB(), "ip", "-br", "link")).NotTo(ContainSubstring("bwp"))
		if c.Pod != nil || strings.Contains(c.Config, "prevResult") {
			Expect(tcText(w.node)).To(BeEmpty())
		}
	},
		Entry("no limits", func(*nstest.Call) {}),
		Entry("no prevResult", func(c *nstest.Call) { c.Config = configOf(network, "", "") }),
		Entry("a prevResult that is none", func(c *nstest.Call) { c.Config = configOf(network, i5, `{"ips": 7}`) }),
		Entry("keys that cannot be read", func(c *nstest.Call) { c.Config = w.config(`"ingressRate": "x", "shapedSubnets": 7`) }),
		Entry("CNI_NETNS empty", func(c *nstest.Call) { c.Pod = nil }),
		Entry("neither", func(c *nstest.Call) { c.Pod, c.Config = nil, configOf(network, "", "") }),
		Entry("a container that is gone", func(c *nstest.Call) {
			w.pod.Remove(GinkgoTB())
			// The kernel takes a namespace apart, and the pair with it, some time later.
			Eventually(func() string { return w.node.Must(GinkgoTB(), "ip", "-br", "link") }).ShouldNot(ContainSubstring("veth0"))
		}),
		Entry("a container without the interface", func(c *nstest.Call) {
			w.pod.Must(GinkgoTB(), "ip", "link", "del", "eth0")
		}),
	)

	It("DEL leaves another attachment alone whose namespace is at the same path", func() {
		w = ptp()
		w.node.Must(GinkgoTB(), "ip", "link", "set", "veth0", "alias", attach.LinkAlias(types.Attachment{Network: network, ContainerID: "newcomer", IfName: "eth0"}))
		newcomer := w.call
		newcomer.ContainerID = "newcomer"
		newcomer.Config = w.config(i5)
		nstest.Run(plugin(), newcomer.With("ADD")).OK(GinkgoTB())
		w.run("DEL", i5).OK(GinkgoTB())
		w.prev = ""
		w.run("DEL", i5).OK(GinkgoTB())
		nstest.Run(plugin(), newcomer.With("CHECK")).OK(GinkgoTB())
	})

	It("DEL leaves qdiscs of another program at the same path alone", func() {
		w = ptp()
		w.run("ADD", i5).OK(GinkgoTB())
		w.node.Batch(GinkgoTB(), "link del veth0", "link add other0 type veth peer name eth0 netns "+w.pod.Path())
		w.node.Must(GinkgoTB(), "tc", "qdisc", "add", "dev", "other0", "root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "10kb", "latency", "25ms")
		w.run("DEL", i5).OK(GinkgoTB())
		Expect(w.node.Must(GinkgoTB(), "tc", "qdisc", "show", "dev", "other0")).To(ContainSubstring("tbf"))
	})

	DescribeTable("CHECK fails if something is missing or changed", func(on func() *world, keys, text string, commands ...string) {
		w = on()
		w.run("ADD", keys).OK(GinkgoTB())
		w.run("CHECK", keys).OK(GinkgoTB())
		for _, command := range commands {
			args := strings.Fields(command)
			w.call.Node.Must(GinkgoTB(), args[0], args[1:]...)
		}
		f := w.run("CHECK", keys).Failure(GinkgoTB())
		Expect(f.String()).To(ContainSubstring(text))
		Expect(f.Code).To(BeEquivalentTo(types.CodeChanged))
	},
		Entry("no qdisc", ptp, i5, "interface veth0: want tbf 1: at root with rate 125000 byte/s, burst 12500000 ticks, limit 103125 bytes, have no qdisc", "tc qdisc del dev veth0 root"),
		Entry("another rate", ptp, i5, "have tbf 1: at root with rate 250000 byte/s", "tc qdisc replace dev veth0 root handle 1: tbf rate 2mbit burst 100000 limit 103125"),
		Entry("another kind", ptp, i5, "have htb 1:", "tc qdisc del dev veth0 root", "tc qdisc add dev veth0 root handle 1: htb"),
		Entry("no ifb", ptp, i5, "find ifb "+ifbX+" of bwn/cidX/eth0", "ip link del "+ifbX),
		Entry("ifb down", ptp, i5, "interface "+ifbX+" is down", "ip link set "+ifbX+" down"),
		Entry("no qdisc on the ifb", ptp, i5, "interface "+ifbX+": want tbf", "tc qdisc del dev "+ifbX+" root"),
		Entry("no ingress qdisc", ptp, i5, "interface veth0 has no ingress qdisc", "tc qdisc del dev veth0 ingress"),
		Entry("no filter", ptp, i5, "interface veth0 has no filter that redirects what it receives to "+ifbX, "tc filter del dev veth0 parent ffff:"),
		Entry("another ifb", ptp, i5, "has no filter that redirects", "tc filter del dev veth0 parent ffff:", "ip link add other type ifb",
			"tc filter add dev veth0 parent ffff: pref 1 protocol all u32 match u32 0 0 flowid 1:1 action mirred egress redirect dev other"),
		Entry("no class", ptp, i5+`, "unshapedSubnets": ["10.0.0.0/8"]`, "interface veth0 has no class 1:30 of 125000 bytes a second", "tc qdisc del dev veth0 root",
			"tc qdisc add dev veth0 root handle 1: htb default 30 direct_qlen 1000"),
		Entry("no leaf", ptp, i5+`, "unshapedSubnets": ["10.0.0.0/8"]`, "want bfifo 30: at 1:30", "tc qdisc del dev veth0 parent 1:30"),
		Entry("no subnet", ptp, i5+`, "unshapedSubnets": ["10.0.0.0/8"]`, "interface veth0 has no filter parent 1: pref 16 protocol 0x0800 flowid 1: match 0a000000/ff000000 at 12", "tc filter del dev veth0 parent 1: pref 16"),
		Entry("no subnet on the ifb", ptp, i5+`, "shapedSubnets": ["fd00::/8"]`, "interface "+ifbX+" has no filter parent 1: pref 15", "tc filter del dev "+ifbX+" parent 1: pref 15"),
	)

	It("GC removes the ifbs of the network's attachments that are not listed, and no others", func() {
		w = ptp()
		w.run("ADD", i5).OK(GinkgoTB())
		for name, alias := range map[string]string{"i1": "plumb:bwn/gone/eth0", "i2": "plumb:bwn2/gone/eth0", "i3": "mine"} {
			w.node.Must(GinkgoTB(), "ip", "link", "add", name, "type", "ifb")
			w.node.Must(GinkgoTB(), "ip", "link", "set", name, "alias", alias)
		}
		var killed undo.Stack
		h, err := ns.Open(w.node.Path(), nil)
		Expect(err).NotTo(HaveOccurred())
		defer func() { Expect(h.Close()).To(Succeed()) }()
		node, err := nl.Open(h)
		Expect(err).NotTo(HaveOccurred())
		_, err = node.AddIFB(&killed, nl.IFB{Name: "i4", Group: attach.UnfinishedGroup(network)}) // and then the plugin was killed
		Expect(err).NotTo(HaveOccurred())
		gc := func(valid string) string {
			c := w.call.With("GC")
			c.Pod = nil
			c.Config = `{"cniVersion": "1.1.0", "name": "bwn", "type": "bandwidth", "cni.dev/valid-attachments": ` + valid + `}`
			nstest.Run(plugin(), c).OK(GinkgoTB())
			return w.node.Must(GinkgoTB(), "ip", "-br", "link")
		}
		left := gc(`[{"containerID": "cidX", "ifname": "eth0"}]`)
		Expect(left).To(And(ContainSubstring(ifbX), ContainSubstring("i2"), ContainSubstring("i3"), Not(MatchRegexp(`(?m)^i[14] `))))
		Expect(gc(`[]`)).To(And(Not(ContainSubstring(ifbX)), ContainSubstring("i2"), ContainSubstring("i3")))
	})

	It("GC removes the limits of a host end whose attachment, by its alias, is not listed", func() {
		w = ptp()
		before := w.shape()
		w.run("ADD", i5).OK(GinkgoTB())
		limited := w.shape()
		gc := func(valid string) string {
			c := w.call.With("GC")
			c.Pod = nil
			c.Config = `{"cniVersion": "1.1.0", "name": "bwn", "type": "bandwidth", "cni.dev/valid-attachments": ` + valid + `}`
			nstest.Run(plugin(), c).OK(GinkgoTB())
			return w.shape()
		}
		w.node.Must(GinkgoTB(), "ip", "link", "set", "veth0", "alias", "plumb:bwn/cidX/eth0")
		Expect(gc(`[{"containerID": "cidX", "ifname": "eth0"}]`)).To(Equal(limited))
		Expect(gc(`[]`)).To(Equal(before))
	})

	It("STATUS fails for an invalid configuration", func() {
		w = ptp()
		c := w.call.With("STATUS")
		c.Config = `{"cniVersion": "1.1.0", "name": "bwn", "type": "bandwidth"}`
		nstest.Run(plugin(), c).OK(GinkgoTB())
		c.Config = `{"cniVersion": "1.1.0", "name": "bwn", "type": "bandwidth", "ingressRate": 1}`
		Expect(nstest.Run(plugin(), c).Failure(GinkgoTB()).Code).To(BeEquivalentTo(types.CodeNotAvailable))
	})

	It("limits many containers at a time, and DEL leaves nothing", func() {
		w = newWorld()
		calls := make([]nstest.Call, nstest.FullOrShort(32, 8))
		for i := range calls {
			pod := nstest.New(GinkgoTB())
			host := fmt.Sprintf("veth%d", i)
			w.node.Must(GinkgoTB(), "ip", "link", "add", host, "up", "type", "veth", "peer", "name", "eth0", "netns", pod.Path())
			prev := strings.ReplaceAll(ptpResult(pod), "veth0", host)
			calls[i] = nstest.Call{ContainerID: fmt.Sprint("c", i), Node: w.node, Pod: pod, Config: configOf(network, i5, prev)}
		}
		all := func(command string) error {
			var errs []error
			for i, r := range nstest.RunAll(plugin(), command, calls) {
				if r.Exit != 0 {
					errs = append(errs, fmt.Errorf("%s %s: %s", command, calls[i].ContainerID, r.Stdout))
				}
			}
			return errors.Join(errs...)
		}
		for range nstest.FullOrShort(3, 1) {
			Expect(all("ADD")).To(Succeed())
			Expect(all("CHECK")).To(Succeed())
			Expect(strings.Count(w.node.Must(GinkgoTB(), "ip", "-br", "link"), "bwp")).To(Equal(len(calls)))
			Expect(all("DEL")).To(Succeed())
			Expect(w.node.Must(GinkgoTB(), "ip", "-br", "link")).NotTo(ContainSubstring("bwp"))
			Expect(tcText(w.node)).To(BeEmpty())
		}
	})
})

func ptpResult(pod *nstest.NS) string {
	w := &world{pod: pod}
	return w.result(`{"name": "veth0"}, `)
}

// newWorldWithPrev has a prevResult that is not true.
func newWorldWithPrev() *world {
	w := newWorld()
	w.prev = ptpResult(w.pod)
	return w
}

// elsewhere has a pair whose other end is in a third namespace, and on the node one
// with the same two indexes.
func elsewhere() *world {
	w := newWorld()
	third, other := nstest.NewNode(GinkgoTB()).Named("third"), nstest.New(GinkgoTB())
	nstest.Join(GinkgoTB(), nstest.End{In: third, Name: "veth0"}, nstest.End{In: w.pod, Name: "eth0"})
	nstest.Join(GinkgoTB(), nstest.End{In: w.node, Name: "veth0"}, nstest.End{In: other, Name: "eth0"})
	w.prev = ptpResult(w.pod)
	return w
}

// An ip runs ip(8) in one namespace.
type ip func(args ...string) error

func ipIn(n *nstest.NS) ip {
	return func(args ...string) error { _, err := n.Exec("ip", args...); return err }
}

func ipAt(h *ns.Handle) ip {
	return func(args ...string) error { return h.Do(exec.Command("ip", args...).Run) }
}

// pairFor makes the container's pair unless it is there, and macvlanFor its macvlan.
// They stay down: the kernel takes up to a second to tell all of a link that came up.
func pairFor(node, pod ip, podPath string) error {
	if pod("link", "show", "eth0") == nil {
		return nil
	}
	return node("link", "add", "type", "veth", "peer", "name", "eth0", "netns", podPath)
}

func macvlanFor(node, pod ip, podPath string) error {
	if pod("link", "show", "eth0") == nil {
		return nil
	}
	return errors.Join(
		node("link", "add", "link", "up0", "name", "mv0", "type", "macvlan"),
		node("link", "set", "mv0", "netns", podPath, "name", "eth0"),
	)
}

// after is the plugin after one that makes an interface and leaves it in place, so
// that what bandwidth forgets stays to be seen. Only bandwidth's steps are swept.
func after(makes func(*skel.Request) error) skel.Plugin {
	p := plugin()
	p.Add = func(r *skel.Request) (*types.Result, error) {
		if err := makes(r); err != nil {
			return nil, err
		}
		return add(r)
	}
	return p
}

const prevAny = `{"cniVersion": "1.0.0", "interfaces": []}`

func TestFaultsOnAPair(t *testing.T) {
	p := after(func(r *skel.Request) error { return pairFor(ipAt(r.Node), ipAt(r.Pod), r.NetNS) })
	for name, keys := range map[string]string{"tbf": i5, "htb": i5 + `, "unshapedSubnets": ["10.0.0.0/8", "fd00::/8"]`} {
		t.Run(name, func(t *testing.T) {
			nstest.LeakCheck(t)
			nstest.FaultSweep(t, nstest.Sweep{Plugin: p, Config: configOf(network, keys, prevAny), Prepare: func(node, pod *nstest.NS) {
				if err := pairFor(ipIn(node), ipIn(pod), pod.Path()); err != nil {
					t.Fatal(err)
				}
			}})
		})
	}
}

func TestFaultsOnAMacvlan(t *testing.T) {
	nstest.LeakCheck(t)
	p := after(func(r *skel.Request) error { return macvlanFor(ipAt(r.Node), ipAt(r.Pod), r.NetNS) })
	nstest.FaultSweep(t, nstest.Sweep{Plugin: p, Config: configOf(network, i5, prevAny), Prepare: func(node, pod *nstest.NS) {
		node.Batch(t, "link add up0 type veth peer name up1")
		if err := macvlanFor(ipIn(node), ipIn(pod), pod.Path()); err != nil {
			t.Fatal(err)
		}
	}})
}
