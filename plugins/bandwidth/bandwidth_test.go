package main

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// bothLimits are the keys of a configuration with limits in both directions.
const bothLimits = `"ingressRate": 1000000, "ingressBurst": 800000, "egressRate": 2000000, "egressBurst": 1600000`

// fromContainerd are the keys that containerd passes for a container with both annotations at 10M.
const fromContainerd = `"runtimeConfig": {"bandwidth": {"IngressRate": 10000000, "IngressBurst": 4294967295, "EgressRate": 10000000, "EgressBurst": 4294967295}}`

var _ = Describe("bandwidth", func() {
	var bed *testbed

	DescribeTable("ADD creates what the golden file lists, and DEL removes it", func(golden string, newBed func() *testbed, keys string) {
		bed := newBed()
		shaped := func() string {
			return "on the host:\n" + tcText(bed.call.Host) + "in the container:\n" + tcText(bed.container)
		}
		restored := bed.Restored(bed.Host, bed.container)
		bed.run("ADD", keys).OK(GinkgoTB())
		nstest.Golden(GinkgoTB(), golden, shaped())
		bed.run("CHECK", keys).OK(GinkgoTB())
		bed.run("DEL", keys).OK(GinkgoTB())
		nstest.Golden(GinkgoTB(), "cleaned", shaped())
		restored()
		bed.run("DEL", keys).OK(GinkgoTB())
		bed.run("ADD", keys).OK(GinkgoTB()) // on the same interface again
	},
		Entry("both directions", "both", ptp, bothLimits),
		Entry("ingress only", "ingress", ptp, `"ingressRate": 1000000, "ingressBurst": 800000`),
		Entry("egress only", "egress", bridge, `"egressRate": 1000000, "egressBurst": 800000`),
		Entry("as containerd calls", "containerd", ptp, fromContainerd),
		Entry("latency", "latency", ptp, bothLimits+`, "latency": 100`),
		Entry("64-bit rates", "wide", ptp, rates(100e9, 40e9, 80e6)),
		Entry("unshaped subnets", "unshaped", ptp, bothLimits+`, "unshapedSubnets": ["10.0.0.0/8", "fd00:1:2::/40"]`),
		Entry("64-bit rates with unshaped subnets", "wide-unshaped", ptp, rates(1<<35, 40e9, 80e6)+`, "unshapedSubnets": ["10.0.0.0/8"]`),
		Entry("shaped subnets", "shaped", ptp, bothLimits+`, "shapedSubnets": ["0.0.0.0/0", "2000::/3"]`),
		Entry("macvlan", "macvlan", macvlan, bothLimits),
		Entry("macvlan with subnets", "macvlan-unshaped", macvlan, bothLimits+`, "unshapedSubnets": ["10.0.0.0/8"]`),
	)

	DescribeTable("ADD returns prevResult with the ifb added", func(version string) {
		bed = ptp()
		c := bed.call.With("ADD")
		c.Config = strings.Replace(bed.config(bothLimits), `"1.0.0"`, `"`+version+`"`, 1)
		r := nstest.Run(plugin(), c).Result(GinkgoTB())
		Expect(r.Interfaces).To(HaveLen(3))
		Expect(r.Interfaces[2]).To(And(HaveField("Name", ifbX), HaveField("Sandbox", ""), HaveField("MAC", Not(BeEmpty()))))
		Expect(r.IPs).To(ConsistOf(HaveField("Interface", 1)))
		Expect(bed.host.Must(GinkgoTB(), "ip", "-d", "link", "show", ifbX)).To(And(
			ContainSubstring("alias plumb:bwn/cidX/eth0"), ContainSubstring("mtu 1500"), ContainSubstring("qlen 32"), ContainSubstring("group default")))
		Expect(bed.host.Must(GinkgoTB(), "ip", "addr", "show", ifbX)).NotTo(ContainSubstring("inet6"))
	}, Entry(nil, "0.3.0"), Entry(nil, "0.3.1"), Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"))

	It("ADD returns the ifb of a macvlan as an interface in the container", func() {
		bed = macvlan()
		Expect(bed.run("ADD", bothLimits).Result(GinkgoTB()).Interfaces).To(HaveExactElements(
			HaveField("Name", "eth0"), And(HaveField("Name", ifbX), HaveField("Sandbox", bed.container.Path()))))
	})

	It("ADD without limits changes nothing, but needs a prevResult", func() {
		bed = ptp()
		steps := 0
		c := bed.call.With("ADD")
		c.Before = func(string) error { steps++; return nil }
		c.Config = bed.config(`"ingressRate": 0, "ingressBurst": 0`)
		Expect(nstest.Run(plugin(), c).Result(GinkgoTB()).Interfaces).To(HaveLen(2))
		Expect(steps).To(BeZero())
		for _, command := range []string{"ADD", "CHECK"} {
			for _, keys := range []string{"", bothLimits} {
				c = bed.call.With(command)
				c.Config = configOf(network, keys, "")
				f := nstest.Run(plugin(), c).Failure(GinkgoTB())
				Expect(f).To(And(HaveField("Code", uint(7)), HaveField("Msg", ContainSubstring(command+" of bandwidth needs a prevResult"))))
			}
		}
	})

	DescribeTable("ADD returns an error for an invalid configuration, and changes nothing", func(newBed func() *testbed, keys string, code int, texts ...string) {
		bed = newBed()
		before := bed.shape()
		bed.run("ADD", keys).RequireFailure(GinkgoTB(), code, texts...)
		Expect(bed.shape()).To(Equal(before))
		bed.run("DEL", keys).OK(GinkgoTB()) // DEL ignores invalid keys
	},
		Entry(nil, ptp, `"egressBurst": 8`, 7, "egressRate is missing; set it together with egressBurst"),
		Entry(nil, ptp, `"egressRate": 7, "egressBurst": 8`, 7, "egressRate 7 must be between 8 and"),
		Entry(nil, ptp, `"egressRate": 9223372036854775808, "egressBurst": 8`, 7, "egressRate 9223372036854775808 must be between 8 and"),
		Entry(nil, ptp, `"egressRate": 40, "egressBurst": 8`, 7, "the lowest rate for its MTU is 48 bit/s"),
		Entry(nil, ptp, `"egressRate": 80, "egressBurst": 34359738368`, 7, "burst cannot be more than 4GB"),
		Entry(nil, ptp, bothLimits+`, "shapedSubnets": ["10.0.0.1"]`, 7, "is not a subnet"),
		Entry(nil, ptp, bothLimits+`, "ingresRate": 1, "strict": true`, 2, "did you mean"),
		Entry("no such interface", withoutInterface, bothLimits, 7, `no interface "eth0" in container`),
		Entry("the other end in a third namespace", peerElsewhere, bothLimits, 7, "no veth peer of container interface eth0 found in host ns"),
	)

	It("a second ADD fails, and does not change what the first ADD created", func() {
		for _, keys := range []string{bothLimits, `"ingressRate": 1000000, "ingressBurst": 800000`, `"egressRate": 1000000, "egressBurst": 800000`} {
			bed = ptp()
			bed.run("ADD", keys).OK(GinkgoTB())
			before := tcText(bed.host)
			f := bed.run("ADD", keys).Failure(GinkgoTB())
			Expect(f).To(And(HaveField("Code", uint(7)), HaveField("Msg", ContainSubstring("an earlier ADD was not followed by a DEL"))))
			Expect(tcText(bed.host)).To(Equal(before))
			bed.run("CHECK", keys).OK(GinkgoTB())
		}
	})

	It("ADD fails if another program shapes the interface, and DEL does not change that", func() {
		bed = ptp()
		for _, command := range []string{
			"qdisc add dev veth0 root handle 7: tbf rate 1mbit burst 10000 limit 10000", "qdisc add dev veth0 ingress",
			"filter add dev veth0 parent ffff: pref 9 protocol ip u32 match u32 0 0 flowid 1:7",
		} {
			bed.host.Must(GinkgoTB(), "tc", strings.Fields(command)...)
		}
		before := tcText(bed.host)
		for _, keys := range []string{`"ingressRate": 1000000, "ingressBurst": 800000`, `"egressRate": 1000000, "egressBurst": 800000`} {
			Expect(bed.run("ADD", keys).Failure(GinkgoTB()).Msg).To(ContainSubstring("another program created the qdisc"))
			bed.run("DEL", keys).OK(GinkgoTB())
			Expect(tcText(bed.host)).To(Equal(before))
		}
	})

	It("limits two interfaces of a container in one network", func() {
		bed = ptp()
		nstest.Join(GinkgoTB(), nstest.End{In: bed.host, Name: "veth1"}, nstest.End{In: bed.container, Name: "eth1"})
		second := *bed
		second.call.IfName = "eth1"
		second.prev = strings.NewReplacer("veth0", "veth1", "eth0", "eth1").Replace(bed.prev)
		bed.run("ADD", bothLimits).OK(GinkgoTB())
		own := ifbNames(types.Attachment{Network: network, ContainerID: cid, IfName: "eth1"})[1]
		Expect(second.run("ADD", bothLimits).Result(GinkgoTB()).Interfaces[2].Name).To(Equal(own))
		bed.run("CHECK", bothLimits).OK(GinkgoTB())
		second.run("CHECK", bothLimits).OK(GinkgoTB())
		bed.run("DEL", bothLimits).OK(GinkgoTB())
		second.run("CHECK", bothLimits).OK(GinkgoTB())
		bed.run("ADD", bothLimits).OK(GinkgoTB())
		second.run("DEL", bothLimits).OK(GinkgoTB())
		bed.run("CHECK", bothLimits).OK(GinkgoTB())
		bed.run("DEL", bothLimits).OK(GinkgoTB())
		Expect(tcText(bed.host)).To(BeEmpty())
		Expect(bed.host.IP("-br link")).NotTo(ContainSubstring("bwp"))
	})

	It("does not delete another interface's ifb that has no alias", func() {
		bed = ptp()
		bed.host.Must(GinkgoTB(), "ip", "link", "add", ifbX, "type", "ifb") // as the reference plugin creates it for the container's eth1
		bed.run("ADD", bothLimits).OK(GinkgoTB())
		bed.run("CHECK", bothLimits).OK(GinkgoTB())
		bed.run("DEL", bothLimits).OK(GinkgoTB())
		Expect(bed.host.IP("-br link")).To(And(ContainSubstring(ifbX), Not(ContainSubstring(ifbNames(types.Attachment{Network: network, ContainerID: cid, IfName: "eth0"})[1]))))
	})

	It("ADD lists existing interfaces with the ifb's names, and changes nothing", func() {
		bed = ptp()
		for _, name := range ifbNames(types.Attachment{Network: network, ContainerID: cid, IfName: "eth0"}) {
			bed.host.Must(GinkgoTB(), "ip", "link", "add", name, "type", "ifb")
		}
		before := bed.shape()
		f := bed.run("ADD", bothLimits).Failure(GinkgoTB())
		Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
		Expect(f.Msg).To(MatchRegexp(`interfaces \["` + ifbX + `" "bwp[0-9a-f]{12}"\] already exist: an earlier ADD`))
		Expect(bed.shape()).To(Equal(before))
	})

	It("puts a new ifb into the network's group, by which GC finds it until the alias is set, and adds its qdisc before it is up", func() {
		bed = ptp()
		created, shape := "", ""
		c := bed.call.With("ADD")
		c.Config = bed.config(bothLimits)
		c.Before = func(step string) error {
			switch step {
			case "set link " + ifbX + " alias":
				created = bed.host.Must(GinkgoTB(), "ip", "-o", "link", "show", ifbX)
			case "set link " + ifbX + " up":
				shape = bed.host.Must(GinkgoTB(), "tc", "qdisc", "show", "dev", ifbX)
			}
			return nil
		}
		nstest.Run(plugin(), c).OK(GinkgoTB())
		Expect(created).To(ContainSubstring(fmt.Sprint("group ", int32(attach.UnfinishedGroup(network)))))
		Expect(shape).To(ContainSubstring("tbf 1: root"))
	})

	DescribeTable("DEL needs neither the container nor prevResult nor limits", func(change func(c *nstest.Call)) {
		bed = ptp()
		bed.run("ADD", bothLimits).OK(GinkgoTB())
		c := bed.call.With("DEL")
		c.Config = bed.config("")
		change(&c)
		nstest.Run(plugin(), c).OK(GinkgoTB())
		Expect(bed.host.IP("-br link")).NotTo(ContainSubstring("bwp"))
		if c.Container != nil || strings.Contains(c.Config, "prevResult") {
			Expect(tcText(bed.host)).To(BeEmpty())
		}
	},
		Entry("no limits", func(*nstest.Call) {}),
		Entry("no prevResult", func(c *nstest.Call) { c.Config = configOf(network, "", "") }),
		Entry("an invalid prevResult", func(c *nstest.Call) { c.Config = configOf(network, bothLimits, `{"ips": 7}`) }),
		Entry("keys of the wrong type", func(c *nstest.Call) { c.Config = bed.config(`"ingressRate": "x", "shapedSubnets": 7`) }),
		Entry("CNI_NETNS empty", func(c *nstest.Call) { c.Container = nil }),
		Entry("neither CNI_NETNS nor prevResult", func(c *nstest.Call) { c.Container, c.Config = nil, configOf(network, "", "") }),
		Entry("no container", func(c *nstest.Call) {
			bed.container.Remove(GinkgoTB())
			// The kernel deletes the namespace, and the pair with it, some time later.
			Eventually(func() string { return bed.host.IP("-br link") }).ShouldNot(ContainSubstring("veth0"))
		}),
		Entry("a container without the interface", func(c *nstest.Call) {
			bed.container.Must(GinkgoTB(), "ip", "link", "del", "eth0")
		}),
	)

	It("DEL does not change another attachment whose namespace is at the same path", func() {
		bed = ptp()
		bed.host.Must(GinkgoTB(), "ip", "link", "set", "veth0", "alias", attach.LinkAlias(types.Attachment{Network: network, ContainerID: "other", IfName: "eth0"}))
		other := bed.call
		other.ContainerID = "other"
		other.Config = bed.config(bothLimits)
		nstest.Run(plugin(), other.With("ADD")).OK(GinkgoTB())
		bed.run("DEL", bothLimits).OK(GinkgoTB())
		bed.prev = ""
		bed.run("DEL", bothLimits).OK(GinkgoTB())
		nstest.Run(plugin(), other.With("CHECK")).OK(GinkgoTB())
	})

	It("DEL does not delete qdiscs of another program in another namespace at the same path", func() {
		bed = ptp()
		bed.run("ADD", bothLimits).OK(GinkgoTB())
		bed.host.Batch(GinkgoTB(), "link del veth0", "link add other0 type veth peer name eth0 netns "+bed.container.Path())
		bed.host.Must(GinkgoTB(), "tc", "qdisc", "add", "dev", "other0", "root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "10kb", "latency", "25ms")
		bed.run("DEL", bothLimits).OK(GinkgoTB())
		Expect(bed.host.Must(GinkgoTB(), "tc", "qdisc", "show", "dev", "other0")).To(ContainSubstring("tbf"))
	})

	// A damage is what the commands of tc and ip remove or change, and a text in the error of CHECK.
	type damage struct{ text, commands string }
	DescribeTable("CHECK fails if something is missing or changed, and REPAIR restores it", func(keys string, damages ...damage) {
		bed = ptp()
		bed.run("ADD", keys).OK(GinkgoTB())
		before := bed.shape()
		bed.run("REPAIR", keys).OK(GinkgoTB())
		Expect(bed.shape()).To(Equal(before))
		withoutIndexes := func(shape string) string {
			return regexp.MustCompile(`(?m)^\d+: |\bindex \d+`).ReplaceAllString(shape, "")
		}
		for _, d := range damages {
			By(d.commands)
			for command := range strings.SplitSeq(d.commands, "; ") {
				bed.host.MustLine(GinkgoTB(), command)
			}
			bed.run("CHECK", keys).RequireFailure(GinkgoTB(), types.CodeChanged, d.text)
			bed.run("REPAIR", keys).OK(GinkgoTB())
			_, _ = bed.host.Exec("ip", "link", "del", "other")
			Expect(withoutIndexes(bed.shape())).To(Equal(withoutIndexes(before)))
		}
	},
		Entry("of both limits", bothLimits,
			damage{"interface veth0: want tbf 1: at root with rate 125000 byte/s, burst 12500000 ticks, limit 103125 bytes, got no qdisc", "tc qdisc del dev veth0 root"},
			damage{"got tbf 1: at root with rate 250000 byte/s", "tc qdisc replace dev veth0 root handle 1: tbf rate 2mbit burst 100000 limit 103125"},
			damage{"got htb 1:", "tc qdisc del dev veth0 root; tc qdisc add dev veth0 root handle 1: htb"},
			damage{"interface " + ifbX + " of bwn/cidX/eth0 does not exist", "ip link del " + ifbX},
			damage{"interface " + ifbX + " is down", "ip link set " + ifbX + " down"},
			damage{"interface " + ifbX + ": want tbf", "tc qdisc del dev " + ifbX + " root"},
			damage{"interface veth0 has no ingress qdisc", "tc qdisc del dev veth0 ingress"},
			damage{"interface veth0 has no filter that redirects what it receives to " + ifbX, "tc filter del dev veth0 parent ffff:"},
			damage{"has no filter that redirects", "tc filter del dev veth0 parent ffff:; ip link add other type ifb; tc filter add dev veth0 parent ffff: pref 1 protocol all u32 match u32 0 0 flowid 1:1 action mirred egress redirect dev other"},
		),
		Entry("for unshaped subnets", bothLimits+`, "unshapedSubnets": ["10.0.0.0/8"]`,
			damage{"interface veth0 has no class 1:30 of 125000 byte/s", "tc qdisc del dev veth0 root; tc qdisc add dev veth0 root handle 1: htb default 30 direct_qlen 1000"},
			damage{"want bfifo 30: at 1:30", "tc qdisc del dev veth0 parent 1:30"},
			damage{"interface veth0 has no filter parent 1: pref 16 protocol 0x0800 flowid 1: match 0a000000/ff000000 at 12", "tc filter del dev veth0 parent 1: pref 16"},
		),
		Entry("for shaped subnets", bothLimits+`, "shapedSubnets": ["fd00::/8"]`,
			damage{"interface " + ifbX + " has no filter parent 1: pref 15", "tc filter del dev " + ifbX + " parent 1: pref 15"},
		),
	)

	It("REPAIR changes only what differs", func() {
		bed = ptp()
		bed.run("ADD", bothLimits).OK(GinkgoTB())
		bed.host.Batch(GinkgoTB(), "link set "+ifbX+" down")
		c, steps := bed.call.RecordSteps()
		c.Config = bed.config(bothLimits)
		bed.OK("REPAIR", c)
		Expect(*steps).NotTo(ContainElement(MatchRegexp("^(add|delete) ")))
	})

	It("REPAIR restores the rest after a REPAIR that failed, whichever step failed", func() {
		bed = ptp()
		bed.run("ADD", bothLimits+`, "unshapedSubnets": ["10.0.0.0/8"]`).OK(GinkgoTB())
		c := bed.call
		c.Config = bed.config(bothLimits + `, "unshapedSubnets": ["10.0.0.0/8"]`)
		bed.RepairSweep(c, func() {
			bed.host.Batch(GinkgoTB(), "link del "+ifbX)
			bed.host.Must(GinkgoTB(), "tc", "qdisc", "del", "dev", "veth0", "root")
		}, func() string {
			alias := regexp.MustCompile(`alias.*|group \d+`).FindAllString(bed.host.IP("-d link show "+ifbX), -1)
			return regexp.MustCompile(`(?m)^\d+: |\bindex \d+`).ReplaceAllString(bed.shape(), "") + strings.Join(alias, "\n")
		})
	})

	DescribeTable("REPAIR keeps other programs' qdiscs, and devices in the container", func(newBed func() *testbed, inContainer bool, code int, text string, commands ...string) {
		bed = newBed()
		bed.run("ADD", bothLimits).OK(GinkgoTB())
		damaged := map[bool]*nstest.NS{false: bed.call.Host, true: bed.container}[inContainer]
		for _, command := range commands {
			args := strings.Fields(command)
			damaged.Must(GinkgoTB(), args[0], args[1:]...)
		}
		before := bed.shape()
		bed.run("REPAIR", bothLimits).RequireFailure(GinkgoTB(), code, text)
		Expect(bed.shape()).To(Equal(before))
	},
		Entry(nil, ptp, false, types.CodeConfig, "interface veth0 already has a qdisc", "tc qdisc replace dev veth0 root handle 5: htb"),
		Entry(nil, ptp, false, types.CodeConfig, "interface veth0 already has a qdisc", "tc filter del dev veth0 parent ffff:",
			"tc filter add dev veth0 parent ffff: pref 5 protocol ip u32 match u32 0 0 flowid 1:2"),
		Entry(nil, macvlan, true, types.CodeChanged, "interface eth0: want tbf", "tc qdisc del dev eth0 root"),
		Entry(nil, macvlan, true, types.CodeChanged, "interface "+ifbX+" of bwn/cidX/eth0 does not exist", "ip link del "+ifbX),
	)

	It("GC removes the ifbs of the network's attachments that are not listed, and no others", func() {
		bed = ptp()
		bed.run("ADD", bothLimits).OK(GinkgoTB())
		for name, alias := range map[string]string{"i1": "plumb:bwn/gone/eth0", "i2": "plumb:bwn2/gone/eth0", "i3": "mine"} {
			bed.host.Must(GinkgoTB(), "ip", "link", "add", name, "type", "ifb")
			bed.host.Must(GinkgoTB(), "ip", "link", "set", name, "alias", alias)
		}
		var killed undo.Stack
		host, err := nl.Open(bed.host.Open(GinkgoTB(), nil))
		Expect(err).NotTo(HaveOccurred())
		_, err = host.AddIFB(&killed, nl.NewLink{Name: "i4", Group: attach.UnfinishedGroup(network)}) // as if the plugin was killed at this point
		Expect(err).NotTo(HaveOccurred())
		gc := func(valid string) string {
			bed.gc(valid)
			return bed.host.IP("-br link")
		}
		left := gc(`[{"containerID": "cidX", "ifname": "eth0"}]`)
		Expect(left).To(And(ContainSubstring(ifbX), ContainSubstring("i2"), ContainSubstring("i3"), Not(MatchRegexp(`(?m)^i[14] `))))
		Expect(gc(`[]`)).To(And(Not(ContainSubstring(ifbX)), ContainSubstring("i2"), ContainSubstring("i3")))
	})

	It("GC removes the limits of a host end whose alias names an attachment that is not listed", func() {
		bed = ptp()
		before := bed.shape()
		bed.run("ADD", bothLimits).OK(GinkgoTB())
		limited := bed.shape()
		gc := func(valid string) string {
			bed.gc(valid)
			return bed.shape()
		}
		bed.host.IP("link set veth0 alias plumb:bwn/cidX/eth0")
		Expect(gc(`[{"containerID": "cidX", "ifname": "eth0"}]`)).To(Equal(limited))
		Expect(gc(`[]`)).To(Equal(before))
	})

})

func ptpResult(container *nstest.NS) string {
	bed := &testbed{container: container}
	return bed.result(`{"name": "veth0"}, `)
}

// withoutInterface returns a testbed whose prevResult lists an interface that does not exist.
func withoutInterface() *testbed {
	bed := newTestbed()
	bed.prev = ptpResult(bed.container)
	return bed
}

// peerElsewhere returns a testbed with a veth pair whose other end is in a third namespace. The host
// has a pair with the same two indexes.
func peerElsewhere() *testbed {
	bed := newTestbed()
	third, other := nstest.NewHost(GinkgoTB()).Named("third"), nstest.New(GinkgoTB())
	nstest.Join(GinkgoTB(), nstest.End{In: third, Name: "veth0"}, nstest.End{In: bed.container, Name: "eth0"})
	nstest.Join(GinkgoTB(), nstest.End{In: bed.host, Name: "veth0"}, nstest.End{In: other, Name: "eth0"})
	bed.prev = ptpResult(bed.container)
	return bed
}

// An ip is a function that runs ip(8) in one namespace.
type ip func(args ...string) error

func ipIn(n *nstest.NS) ip {
	return func(args ...string) error { _, err := n.Exec("ip", args...); return err }
}

func ipAt(h *ns.Handle) ip {
	return func(args ...string) error { return h.Do(exec.Command("ip", args...).Run) }
}

// pairFor creates the container's veth pair unless it exists, and macvlanFor its macvlan. The links stay
// down, because the state of a link that is set up changes for up to a second.
func pairFor(host, container ip, containerPath string) error {
	if container("link", "show", "eth0") == nil {
		return nil
	}
	return host("link", "add", "type", "veth", "peer", "name", "eth0", "netns", containerPath)
}

func macvlanFor(host, container ip, containerPath string) error {
	if container("link", "show", "eth0") == nil {
		return nil
	}
	return errors.Join(
		host("link", "add", "link", "up0", "name", "mv0", "type", "macvlan"),
		host("link", "set", "mv0", "netns", containerPath, "name", "eth0"),
	)
}

// withInterface returns the plugin with an ADD that first calls create, which creates the interface. The
// sweep injects faults only into bandwidth's own steps. The interface stays, because the sweep could not
// find the remaining qdiscs without it.
func withInterface(create func(*skel.Request) error) skel.Plugin {
	p := plugin()
	p.Add = func(r *skel.Request) (*types.Result, error) {
		if err := create(r); err != nil {
			return nil, err
		}
		return plugin().Add(r)
	}
	return p
}

const emptyPrevResult = `{"cniVersion": "1.0.0", "interfaces": []}`

func TestFaultsWithVeth(t *testing.T) {
	p := withInterface(func(r *skel.Request) error { return pairFor(ipAt(r.HostNS), ipAt(r.ContainerNS), r.NetNS) })
	for name, keys := range map[string]string{"tbf": bothLimits, "htb": bothLimits + `, "unshapedSubnets": ["10.0.0.0/8", "fd00::/8"]`} {
		t.Run(name, func(t *testing.T) {
			nstest.LeakCheck(t)
			nstest.FaultSweep(t, nstest.Sweep{Plugin: p, Config: configOf(network, keys, emptyPrevResult), Prepare: func(host, container *nstest.NS) {
				nstest.Must(t, pairFor(ipIn(host), ipIn(container), container.Path()))
			}})
		})
	}
}

func TestFaultsWithMacvlan(t *testing.T) {
	nstest.LeakCheck(t)
	p := withInterface(func(r *skel.Request) error { return macvlanFor(ipAt(r.HostNS), ipAt(r.ContainerNS), r.NetNS) })
	nstest.FaultSweep(t, nstest.Sweep{Plugin: p, Config: configOf(network, bothLimits, emptyPrevResult), Prepare: func(host, container *nstest.NS) {
		host.Batch(t, "link add up0 type veth peer name up1")
		nstest.Must(t, macvlanFor(ipIn(host), ipIn(container), container.Path()))
	}})
}
