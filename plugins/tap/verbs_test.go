package main

import (
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// bridgeWithPort are the ip commands that make a bridge with a port. A bridge that gets its first
// port has other properties afterwards, also when the port is gone.
var bridgeWithPort = []string{
	"link add br0 address 02:00:00:00:00:b0 type bridge", "link set br0 up",
	"link add port0 type veth peer name port1", "link set port0 master br0 up", "link set port1 up",
}

// attached calls ADD, and returns a call with its result as prevResult.
func (b *testbed) attached(version, keys, ipam string) nstest.Call {
	GinkgoHelper()
	c := b.call(conf(version, keys, ipam))
	c.Config = nstest.WithPrevResult(c.Config, run(c, "ADD").OK(GinkgoTB()).Stdout)
	return c
}

var _ = Describe("CHECK", func() {
	var b *testbed
	BeforeEach(func() {
		nstest.LeakCheck(GinkgoTB())
		b = newTestbed()
		b.pod.Batch(GinkgoTB(), "link add br0 type bridge", "link set br0 up", "link add br1 type bridge")
	})

	DescribeTable("passes after ADD",
		func(keys, ipam string, later ...string) {
			for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
				c := b.attached(version, keys, ipam)
				b.pod.Batch(GinkgoTB(), later...)
				run(c, "CHECK").OK(GinkgoTB())
				run(c, "DEL").OK(GinkgoTB())
			}
		},
		Entry("dual stack", "", static),
		Entry("all settings", `"owner":1234,"group":0,"multiQueue":true,"bridge":"br0","mtu":1400`, noIPAM),
		Entry("after a later plugin changed MAC and MTU", `"mac":"02:00:00:00:00:01"`, static, "link set eth0 address 02:00:00:00:00:99 mtu 1300"),
	)

	It("passes while a program is attached", func() {
		c := b.attached("1.1.0", "", static)
		mustAttach(b.pod, 0)
		run(c, "CHECK").OK(GinkgoTB())
	})

	DescribeTable("names every difference",
		func(keys string, change []string, texts ...string) {
			c := b.attached("1.0.0", keys, static)
			b.pod.Batch(GinkgoTB(), change...)
			f := run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeChanged), f.String())
			for _, text := range texts {
				Expect(f.String()).To(ContainSubstring(text))
			}
		},
		Entry("no link", "", []string{"link del eth0"}, "find link eth0"),
		Entry("down", "", []string{"link set eth0 down"}, "eth0 is down"),
		Entry("another kind", "", []string{"link del eth0", "link add eth0 type veth peer name eth1"}, `of kind "veth", not "tun"`),
		Entry("a tun device", "", []string{"link del eth0", "tuntap add mode tun eth0"}, "eth0 is a tun device, not a tap"),
		Entry("other settings", `"owner":1,"group":2,"multiQueue":true`, []string{"link del eth0", "tuntap add mode tap eth0 user 3 group 4"},
			"eth0 has owner 3, not 1", "eth0 has group 4, not 2", "eth0 has multiQueue false, not true"),
		Entry("no bridge", `"bridge":"br0"`, []string{"link set eth0 nomaster"}, "eth0 is not a port of bridge br0"),
		Entry("another bridge", `"bridge":"br0"`, []string{"link set eth0 master br1"}, "eth0 is not a port of bridge br0"),
		Entry("the bridge is gone", `"bridge":"br0"`, []string{"link del br0"}, "bridge: find link br0"),
		Entry("addresses and routes gone", "", []string{"address flush dev eth0"}, "no address 10.1.0.2/24", "no address fd00:1::2/64", "no route 0.0.0.0/0"),
	)
})

var _ = Describe("DEL", func() {
	var b *testbed
	BeforeEach(func() {
		nstest.LeakCheck(GinkgoTB())
		b = newTestbed()
	})

	It("leaves node, container and reservations as before, also when a program is attached", func() {
		b.pod.Batch(GinkgoTB(), bridgeWithPort...)
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), b.node, b.pod) })
		c := b.attached("1.1.0", `"bridge":"br0"`, b.hostLocal())
		file := mustAttach(b.pod, 0)
		run(c, "DEL").OK(GinkgoTB())
		Expect(b.reservations()).To(BeEmpty())
		_, err := unix.Read(int(file.Fd()), make([]byte, 1))
		Expect(err).To(MatchError(unix.EBADFD))
		run(c, "DEL").OK(GinkgoTB())
		Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), b.node, b.pod) })).To(BeEmpty())
	})

	DescribeTable("succeeds, deletes the link and releases the addresses",
		func(change func(c *nstest.Call)) {
			c := b.call(conf("1.0.0", "", b.hostLocal()))
			mustAdd(c)
			change(&c)
			run(c, "DEL").OK(GinkgoTB())
			Expect(b.reservations()).To(BeEmpty())
			if c.Pod != nil && b.pod.FD() >= 0 {
				Expect(in(b.pod, "ip -br link")).NotTo(ContainSubstring("eth0"))
			}
			run(c, "DEL").OK(GinkgoTB())
		},
		Entry("without CNI_NETNS", func(c *nstest.Call) { c.Pod = nil }),
		Entry("with nothing at CNI_NETNS", func(c *nstest.Call) { c.Pod, c.NetNS = nil, "/run/netns/none" }),
		Entry("with a regular file at CNI_NETNS", func(c *nstest.Call) { c.Pod.Remove(GinkgoTB()) }),
		Entry("after the link was deleted", func(c *nstest.Call) { in(c.Pod, "ip link del eth0") }),
		Entry("with a configuration that ADD refuses", func(c *nstest.Call) { c.Config = conf("1.0.0", `"mtu":-5,"bridge":"nope"`, b.hostLocal()) }),
		Entry("with malformed CNI_ARGS", func(c *nstest.Call) { c.Args = "X=1;;Y" }),
		Entry("with a prevResult that cannot be read", func(c *nstest.Call) { c.Config = nstest.WithPrevResult(c.Config, `{"cniVersion":"9.9.9"}`) }),
		Entry("with a link without an alias, as the reference plugin makes it", func(c *nstest.Call) {
			c.Pod.Must(GinkgoTB(), "ip", "link", "set", "eth0", "alias", "")
		}),
	)

	It("releases the address after the link is deleted", func() {
		dir, log := nstest.NewScriptPlugin(GinkgoTB(), "rec", `
			nsenter --net=$CNI_NETNS ip link show $CNI_IFNAME >/dev/null 2>&1 && state=link || state='no link'
			echo $CNI_COMMAND: $state >>$LOG
			[ $CNI_COMMAND = ADD ] || exit 0
			echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.60/24"}]}'`)
		c := b.call(conf("1.1.0", "", `{"type":"rec"}`))
		c.Path = dir
		mustAdd(c)
		run(c, "DEL").OK(GinkgoTB())
		Expect(readFile(log)).To(MatchRegexp(`^ADD: (no )?link\nDEL: no link\n$`))
	})

	DescribeTable("leaves the interface of another attachment whose namespace has the same path",
		func(lines ...string) {
			c := b.attached("1.0.0", "", b.hostLocal())
			in(b.pod, "ip link del eth0")
			b.pod.Batch(GinkgoTB(), lines...)
			if len(lines) == 0 {
				other := b.call(conf("1.0.0", "", static))
				other.ContainerID = "two"
				mustAdd(other)
			}
			before := nstest.Snapshot(GinkgoTB(), b.pod)
			run(c, "DEL").OK(GinkgoTB())
			Expect(nstest.Snapshot(GinkgoTB(), b.pod)).To(Equal(before))
			Expect(b.reservations()).To(BeEmpty())
		},
		Entry("another container's tap"),
		Entry("a tap without an alias that has another MAC", "tuntap add mode tap eth0"),
		Entry("a link of another kind", "link add eth0 type veth peer name eth1"),
	)

	It("does not release the addresses while the link cannot be deleted", func() {
		c := failAt(b.attached("1.0.0", "", b.hostLocal()), "delete link eth0", fmt.Errorf("not now"))
		Expect(run(c, "DEL").Failure(GinkgoTB()).Msg).To(ContainSubstring("not now"))
		Expect(b.reservations()).To(HaveLen(2))
	})
})

var _ = Describe("GC and STATUS", func() {
	var b *testbed
	BeforeEach(func() {
		nstest.LeakCheck(GinkgoTB())
		b = newTestbed()
	})

	It("GC calls the IPAM plugin, which releases the addresses of attachments that are not listed", func() {
		mustAdd(b.call(conf("1.1.0", "", b.hostLocal())))
		run(b.call(conf("1.1.0", `"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}]`, b.hostLocal())), "GC").OK(GinkgoTB())
		Expect(b.reservations()).To(HaveLen(2))
		run(b.call(conf("1.1.0", `"cni.dev/valid-attachments":[]`, b.hostLocal())), "GC").OK(GinkgoTB())
		Expect(b.reservations()).To(BeEmpty())
		run(b.call(conf("1.1.0", `"cni.dev/valid-attachments":[]`, noIPAM)), "GC").OK(GinkgoTB())
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
		Entry("success", "", static, ""),
		Entry("success on layer 2 with a bridge, which STATUS does not look for", `"bridge":"br0"`, noIPAM, ""),
		Entry("the configuration is invalid", `"mtu":1`, static, "mtu 1 is not between"),
		Entry("the IPAM plugin is dhcp", "", `{"type":"dhcp"}`, "it reaches no DHCP server"),
		Entry("the IPAM plugin does not exist", "", `{"type":"nope"}`, `failed to find plugin "nope"`),
		Entry("STATUS of the IPAM plugin fails", "", `{"type":"static","addresses":[{"address":"x"}]}`, `IPAM plugin "static"`),
	)

	It("STATUS fails if the node has no /dev/net/tun", func() {
		c := failAt(b.call(conf("1.1.0", "", static)), "open /dev/net/tun", &fs.PathError{Op: "open", Path: nl.TunPath, Err: syscall.ENOENT})
		f := run(c, "STATUS").Failure(GinkgoTB())
		Expect(f.Code).To(BeEquivalentTo(types.CodeNotAvailable))
		Expect(f.Msg).To(ContainSubstring("open /dev/net/tun: no such file or directory"))
	})
})

// TestFaults checks that ADD and DEL leave nothing if any single step fails.
func TestFaults(t *testing.T) {
	b := &testbed{leases: t.TempDir()}
	for name, config := range map[string]string{
		"dual stack": conf("1.1.0", `"mtu":1400,"mac":"02:00:00:00:00:01","owner":1,"group":2`, b.hostLocal()),
		"layer 2":    conf("1.1.0", `"multiQueue":true,"bridge":"br0"`, noIPAM),
	} {
		t.Run(name, func(t *testing.T) {
			nstest.LeakCheck(t)
			nstest.FaultSweep(t, nstest.Sweep{
				Plugin: plugin(), Config: config, Path: nstest.Build(t, "host-local", "static"), Dirs: []string{b.leases},
				PreparePod: func(pod *nstest.NS) {
					pod.SetSysctl(t, "net/ipv6/conf/default/dad_transmits", "0")
					pod.Batch(t, bridgeWithPort...)
				},
				Ignore: nstest.KeptByHostLocal,
			})
		})
	}
}
