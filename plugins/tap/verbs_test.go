package main

import (
	"io/fs"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// bridgeWithPort are the ip commands that create a bridge with a port. The first port permanently changes
// some properties of a bridge, so a bridge without a port could not be compared.
var bridgeWithPort = []string{
	"link add br0 address 02:00:00:00:00:b0 type bridge", "link set br0 up",
	"link add port0 type veth peer name port1", "link set port0 master br0 up", "link set port1 up",
}

var _ = Describe("CHECK", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		b.container.Batch(GinkgoTB(), "link add br0 type bridge", "link set br0 up", "link add br1 type bridge")
	})

	DescribeTable("passes after ADD",
		func(keys, ipam string, later ...string) {
			for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
				c := b.Attach(b.call(conf(version, keys, ipam)))
				b.container.Batch(GinkgoTB(), later...)
				b.OK("CHECK", c)
				b.OK("DEL", c)
			}
		},
		Entry("dual stack", "", static),
		Entry("all settings", `"owner":1234,"group":0,"multiQueue":true,"bridge":"br0","mtu":1400`, noIPAM),
		Entry("after a later plugin changed MAC and MTU", `"mac":"02:00:00:00:00:01"`, static, "link set eth0 address 02:00:00:00:00:99 mtu 1300"),
	)

	It("passes while a program is attached", func() {
		c := b.Attach(b.call(conf("1.1.0", "", static)))
		mustAttach(b.container, 0)
		b.OK("CHECK", c)
	})

	DescribeTable("names every difference",
		func(keys string, change []string, texts ...string) {
			c := b.Attach(b.call(conf("1.0.0", keys, static)))
			b.container.Batch(GinkgoTB(), change...)
			b.Fails("CHECK", c, types.CodeChanged, texts...)
		},
		Entry("another kind", "", []string{"link del eth0", "link add eth0 type veth peer name eth1"}, `of kind "veth", want "tun"`),
		Entry("a tun device", "", []string{"link del eth0", "tuntap add mode tun eth0"}, "eth0 is a tun device, want a tap device"),
		Entry("other settings", `"owner":1,"group":2,"multiQueue":true`, []string{"link del eth0", "tuntap add mode tap eth0 user 3 group 4"},
			"eth0 has owner 3, want 1", "eth0 has group 4, want 2", "eth0 has multiQueue false, want true"),
		Entry("no bridge", `"bridge":"br0"`, []string{"link set eth0 nomaster"}, "eth0 is not a port of bridge br0"),
		Entry("another bridge", `"bridge":"br0"`, []string{"link set eth0 master br1"}, "eth0 is not a port of bridge br0"),
		Entry("the bridge is gone", `"bridge":"br0"`, []string{"link del br0"}, "bridge: find link br0"),
	)
})

var _ = Describe("DEL", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("restores the host, the container and the reservations, even when a program is attached", func() {
		b.container.Batch(GinkgoTB(), bridgeWithPort...)
		restored := b.Restored(b.Host, b.container)
		c := b.Attach(b.call(conf("1.1.0", `"bridge":"br0"`, b.HostLocal())))
		file := mustAttach(b.container, 0)
		b.OK("DEL", c)
		Expect(b.Reservations()).To(BeEmpty())
		_, err := unix.Read(int(file.Fd()), make([]byte, 1))
		Expect(err).To(MatchError(unix.EBADFD))
		b.OK("DEL", c)
		restored()
	})
})

var _ = Describe("GC and STATUS", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("GC calls the IPAM plugin", func() { b.RequireGC(conf("1.1.0", nstest.OnlyTwoValid, b.HostLocal())) })

	DescribeTable("STATUS reports whether an ADD would succeed:",
		func(keys, ipam, text string) { b.RequireStatus(conf("1.1.0", keys, ipam), text) },
		Entry("success", "", static, ""),
		Entry("success on layer 2 with a bridge, which STATUS does not check", `"bridge":"br0"`, noIPAM, ""),
		Entry("the IPAM plugin is dhcp", "", `{"type":"dhcp"}`, "a tap cannot reach a DHCP server"),
	)

	It("STATUS fails if the host has no /dev/net/tun", func() {
		c := b.call(conf("1.1.0", "", static)).FailAt("open /dev/net/tun", &fs.PathError{Op: "open", Path: nl.TunPath, Err: syscall.ENOENT})
		b.Fails("STATUS", c, types.CodeNotAvailable, "open /dev/net/tun: no such file or directory")
	})
})

var _ = DescribeTable("leaves nothing if any step of ADD or DEL fails",
	func(config func(b *testbed) string) {
		b := newTestbed()
		b.FaultSweep(nstest.Sweep{
			Config: config(b),
			PrepareContainer: func(container *nstest.NS) {
				container.SetSysctl(GinkgoTB(), "net/ipv6/conf/default/dad_transmits", "0")
				container.Batch(GinkgoTB(), bridgeWithPort...)
			},
		})
	},
	Entry("dual stack", func(b *testbed) string {
		return conf("1.1.0", `"mtu":1400,"mac":"02:00:00:00:00:01","owner":1,"group":2`, b.HostLocal())
	}),
	Entry("layer 2", func(*testbed) string { return conf("1.1.0", `"multiQueue":true,"bridge":"br0"`, noIPAM) }),
)
