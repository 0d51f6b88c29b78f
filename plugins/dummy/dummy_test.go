package main

import (
	"fmt"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// The specs of this container need no dummy interface, so they run on any kernel.
var _ = Describe("without a dummy interface", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		nstest.LeakCheck(GinkgoTB())
	})

	DescribeTable("ADD refuses an invalid configuration and names all problems",
		func(version, keys, ipam string, texts ...string) {
			mustRefuse(b.call(conf(version, keys, ipam)), types.CodeConfig, texts...)
		},
		Entry("two values", "1.1.0", `"mtu":67,"mac":"x"`, metadata, "mtu 67 is not between 68 and 65535", `invalid MAC address "x"`),
		Entry("no address before 0.3.0", "0.2.0", "", noIPAM, types.ErrNoAddress.Error()),
		Entry("dhcp", "1.1.0", "", `{"type":"dhcp"}`, "a dummy interface reaches no DHCP server"),
		Entry("an IPAM plugin that does not exist", "1.1.0", "", `{"type":"nope"}`, `failed to find plugin "nope"`),
	)

	It("ADD fails if the container has an interface of that name, and reserves nothing", func() {
		b.pod.Batch(GinkgoTB(), "link add eth0 type veth peer name eth1")
		mustRefuse(b.call(conf("1.1.0", "", b.hostLocal())), types.CodeConfig, `interface "eth0" already exists in container`)
		Expect(b.reservations()).To(BeEmpty())
	})

	It("ADD says so and releases the addresses if the kernel has no dummy interfaces", func() {
		c := b.call(conf("1.1.0", "", b.hostLocal()))
		c.Before = func(step string) error {
			if step == "add link eth0" {
				return syscall.EOPNOTSUPP
			}
			return nil
		}
		mustRefuse(c, types.CodeConfig, "this kernel has no dummy interfaces", "CONFIG_DUMMY")
		Expect(b.reservations()).To(BeEmpty())
	})

	DescribeTable("DEL succeeds and releases the addresses",
		func(change func(c *nstest.Call)) {
			c := b.call(conf("1.1.0", "", b.hostLocal()))
			Expect(nstest.Exec(GinkgoTB(), b.path+"/host-local", c.With("ADD")).Exit).To(BeZero())
			Expect(b.reservations()).To(HaveLen(2))
			change(&c)
			run(c, "DEL").OK(GinkgoTB())
			Expect(b.reservations()).To(BeEmpty())
			run(c, "DEL").OK(GinkgoTB())
		},
		Entry("without the interface", func(*nstest.Call) {}),
		Entry("without CNI_NETNS", func(c *nstest.Call) { c.Pod = nil }),
		Entry("with nothing at CNI_NETNS", func(c *nstest.Call) { c.Pod, c.NetNS = nil, "/run/netns/none" }),
		Entry("with a configuration that ADD refuses", func(c *nstest.Call) { c.Config = conf("1.1.0", `"mtu":-5`, b.hostLocal()) }),
		Entry("with malformed CNI_ARGS", func(c *nstest.Call) { c.Args = "X=1;;Y" }),
		Entry("with a prevResult that cannot be read", func(c *nstest.Call) { c.Config = nstest.WithPrevResult(c.Config, `{"cniVersion":"9.9.9"}`) }),
	)

	It("DEL succeeds without ipam", func() {
		run(b.call(conf("1.1.0", "", noIPAM)), "DEL").OK(GinkgoTB())
	})

	It("DEL leaves a link of another kind", func() {
		b.pod.Batch(GinkgoTB(), "link add eth0 type veth peer name eth1")
		run(b.call(conf("1.1.0", "", metadata)), "DEL").OK(GinkgoTB())
		Expect(in(b.pod, "ip -br link")).To(ContainSubstring("eth0"))
	})

	It("GC calls the IPAM plugin, which releases the addresses of attachments that are not listed", func() {
		c := b.call(conf("1.1.0", "", b.hostLocal()))
		Expect(nstest.Exec(GinkgoTB(), b.path+"/host-local", c.With("ADD")).Exit).To(BeZero())
		c.Config = conf("1.1.0", `"cni.dev/valid-attachments":[]`, b.hostLocal())
		run(c, "GC").OK(GinkgoTB())
		Expect(b.reservations()).To(BeEmpty())
		c.Config = conf("1.1.0", `"cni.dev/valid-attachments":[]`, noIPAM)
		run(c, "GC").OK(GinkgoTB())
	})

	DescribeTable("STATUS fails if an ADD would fail",
		func(keys, ipam, text string) {
			r := run(b.call(conf("1.1.0", keys, ipam)), "STATUS")
			if text == "" {
				r.OK(GinkgoTB())
				return
			}
			f := r.Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeNotAvailable), f.String())
			Expect(f.String()).To(ContainSubstring(text))
		},
		Entry("success", "", metadata, ""),
		Entry("success without ipam", "", noIPAM, ""),
		Entry("the configuration is invalid", `"mtu":1`, metadata, "mtu 1 is not between"),
		Entry("the IPAM plugin does not exist", "", `{"type":"nope"}`, `failed to find plugin "nope"`),
		Entry("STATUS of the IPAM plugin fails", "", `{"type":"static","addresses":[{"address":"x"}]}`, `IPAM plugin "static"`),
	)
})

var _ = Describe("a dummy interface", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() {
		requireDummy()
		b = newTestbed()
		nstest.LeakCheck(GinkgoTB())
	})

	// attached calls ADD, and returns a call with its result as prevResult.
	attached := func(version, keys, ipam string) nstest.Call {
		GinkgoHelper()
		c := b.call(conf(version, keys, ipam))
		c.Config = nstest.WithPrevResult(c.Config, run(c, "ADD").OK(GinkgoTB()).Stdout)
		return c
	}

	It("makes addresses of both families usable at once, for a server in the container", func() {
		result := run(b.call(conf("1.1.0", `"mtu":1400,"mac":"02:00:00:00:00:01"`, metadata)), "ADD").Result(GinkgoTB())
		Expect(in(b.pod, "ip -6 address show dev eth0 tentative")).To(BeEmpty())
		Expect(in(b.pod, "ip -d link show eth0")).To(And(ContainSubstring("<BROADCAST,NOARP,UP,LOWER_UP>"), ContainSubstring("dummy"),
			ContainSubstring("mtu 1400"), ContainSubstring("02:00:00:00:00:01"), ContainSubstring("alias plumb:net1/one/eth0")))
		Expect(result.Interfaces).To(ConsistOf(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", b.pod.Path()))))
		Expect(result.IPs).To(HaveEach(HaveField("Interface", 0)))
		in(b.pod, "ip link set lo up")
		for _, addr := range []string{"169.254.169.254:80", "[fd00:ec2::254]:80"} {
			nstest.ServeTCP(GinkgoTB(), b.pod, addr)
			nstest.MustDial(GinkgoTB(), b.pod, addr, "")
		}
	})

	DescribeTable("returns the result in the form of each version",
		func(version string) {
			reply := run(b.call(conf(version, `"mac":"02:00:00:00:00:01"`, static)), "ADD").OK(GinkgoTB())
			nstest.Golden(GinkgoTB(), "add-"+version, strings.ReplaceAll(reply.Stdout, b.pod.Path(), "SANDBOX"))
		},
		EntryDescription("%s"),
		Entry(nil, "0.1.0"), Entry(nil, "0.2.0"), Entry(nil, "0.3.0"), Entry(nil, "0.3.1"),
		Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"),
	)

	It("has the routes of the IPAM plugin, and the DNS of the configuration before that of the IPAM plugin", func() {
		Expect(run(b.call(conf("1.1.0", "", static)), "ADD").Result(GinkgoTB()).DNS.Nameservers).To(Equal([]string{"10.1.0.53"}))
		Expect(in(b.pod, "ip -4 route")).To(ContainSubstring("default via 10.1.0.1 dev eth0"))
		Expect(in(b.pod, "ip -6 route")).To(ContainSubstring("default via fd00:1::1 dev eth0"))
		run(b.call(conf("1.1.0", "", static)), "DEL").OK(GinkgoTB())
		Expect(run(b.call(conf("1.1.0", `"dns":{"nameservers":["192.0.2.1"]}`, static)), "ADD").Result(GinkgoTB()).DNS.Nameservers).
			To(Equal([]string{"192.0.2.1"}))
	})

	It("is up and has no addresses without ipam", func() {
		c := attached("0.3.1", "", noIPAM)
		Expect(in(b.pod, "ip -o link show eth0")).To(ContainSubstring("UP,LOWER_UP"))
		Expect(in(b.pod, "ip -4 -br address show eth0")).NotTo(ContainSubstring("."))
		c.Config = strings.Replace(c.Config, "0.3.1", "0.4.0", 1)
		run(c, "CHECK").OK(GinkgoTB())
		run(c, "DEL").OK(GinkgoTB())
	})

	It("is not made twice, and is as before after the second ADD", func() {
		attached("1.1.0", "", metadata)
		mustRefuse(b.call(conf("1.1.0", "", metadata)), types.CodeConfig, `interface "eth0" already exists in container`)
	})

	It("does not remain if the IPAM plugin returns no address", func() {
		dir, _ := nstest.NewScriptPlugin(GinkgoTB(), "empty", `[ $CNI_COMMAND = ADD ] || exit 0; echo '{"cniVersion":"1.0.0"}'`)
		c := b.call(conf("1.1.0", "", `{"type":"empty"}`))
		c.Path = dir
		mustRefuse(c, types.CodeConfig, "IPAM plugin returned missing IP config")
	})

	It("has an MTU that IPv6 addresses need", func() {
		mustRefuse(b.call(conf("1.1.0", `"mtu":1279`, metadata)), types.CodeConfig, "too small for address fd00:ec2::254/128")
	})

	It("passes CHECK after ADD and after changes of MAC and MTU", func() {
		for _, ipam := range []string{metadata, static, b.hostLocal()} {
			c := attached("1.0.0", "", ipam)
			b.pod.Batch(GinkgoTB(), "link set eth0 address 02:00:00:00:00:99 mtu 1300")
			run(c, "CHECK").OK(GinkgoTB())
			run(c, "DEL").OK(GinkgoTB())
		}
	})

	DescribeTable("fails CHECK, which names the difference",
		func(change []string, texts ...string) {
			c := attached("1.0.0", "", static)
			b.pod.Batch(GinkgoTB(), change...)
			f := run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeChanged), f.String())
			for _, text := range texts {
				Expect(f.Msg).To(ContainSubstring(text))
			}
		},
		Entry("no link", []string{"link del eth0"}, "find link eth0"),
		Entry("down", []string{"link set eth0 down"}, "eth0 is down"),
		Entry("another kind", []string{"link del eth0", "link add eth0 type veth peer name eth1"}, `of kind "veth", not "dummy"`),
		Entry("addresses and routes gone", []string{"address flush dev eth0"}, "no address 10.1.0.2/24", "no address fd00:1::2/64", "no route 0.0.0.0/0"),
	)

	It("is deleted by DEL before its addresses are released, and node and container are as before", func() {
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), b.node, b.pod) })
		dir, log := nstest.NewScriptPlugin(GinkgoTB(), "rec", `
			nsenter --net=$CNI_NETNS ip link show $CNI_IFNAME >/dev/null 2>&1 && state=link || state='no link'
			echo $CNI_COMMAND: $state >>$LOG
			[ $CNI_COMMAND = ADD ] || exit 0
			echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.60/24"}]}'`)
		c := b.call(conf("1.1.0", "", `{"type":"rec"}`))
		c.Path = dir
		run(c, "ADD").OK(GinkgoTB())
		run(c, "DEL").OK(GinkgoTB())
		run(c, "DEL").OK(GinkgoTB())
		Expect(readFile(log)).To(MatchRegexp(`^ADD: (no )?link\nDEL: no link\nDEL: no link\n$`))
		Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), b.node, b.pod) })).To(BeEmpty())
	})

	It("is deleted by DEL if it has no alias, as the reference plugin makes it", func() {
		c := attached("1.0.0", "", static)
		b.pod.Must(GinkgoTB(), "ip", "link", "set", "eth0", "alias", "")
		run(c, "DEL").OK(GinkgoTB())
		Expect(in(b.pod, "ip -br link")).NotTo(ContainSubstring("eth0"))
	})

	It("is left alone by DEL if it belongs to another attachment", func() {
		other := b.call(conf("1.1.0", "", static))
		other.ContainerID = "two"
		run(other, "ADD").OK(GinkgoTB())
		before := nstest.Snapshot(GinkgoTB(), b.pod)
		run(b.call(conf("1.1.0", "", static)), "DEL").OK(GinkgoTB())
		Expect(nstest.Snapshot(GinkgoTB(), b.pod)).To(Equal(before))
	})

	It("keeps its addresses reserved while DEL cannot delete it", func() {
		c := attached("1.1.0", "", b.hostLocal())
		c.Before = func(step string) error {
			if strings.HasPrefix(step, "delete link") {
				return fmt.Errorf("not now")
			}
			return nil
		}
		Expect(run(c, "DEL").Failure(GinkgoTB()).Msg).To(ContainSubstring("not now"))
		Expect(b.reservations()).To(HaveLen(2))
	})

	It("is made with a warning if /proc/sys is read-only; CHECK and DEL succeed", func() {
		nstest.RequireAddOnReadOnlySysctls(GinkgoTB(), plugin(), b.call(conf("1.1.0", "", metadata)))
	})
})

var _ = DescribeTable("fault sweep", Label(nstest.Kernel),
	func(config func(b *testbed) string) {
		requireDummy()
		b := newTestbed()
		nstest.LeakCheck(GinkgoTB())
		nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
			Plugin: plugin(), Config: config(b), Path: b.path, Dirs: []string{b.leases}, Ignore: nstest.KeptByHostLocal,
		})
	},
	Entry("dual stack", func(b *testbed) string { return conf("1.1.0", `"mtu":1400,"mac":"02:00:00:00:00:01"`, b.hostLocal()) }),
	Entry("without addresses", func(*testbed) string { return conf("1.1.0", "", noIPAM) }),
)
