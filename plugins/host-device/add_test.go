package main

import (
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("ADD", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("takes the alternative name that an earlier ADD of the attachment left on the host", func() {
		b.addDevice("hd1", "02:00:00:00:00:1d")
		b.Host.IP("link set hd0 alias uplink")
		before := b.Restored(b.Host)
		returned := func(c nstest.Call) { // another program returns the device
			c.Container.Batch(GinkgoTB(), "link set eth0 down", "link set eth0 name hd0", "link set hd0 netns "+b.Host.Path())
		}
		c := b.NewCall(conf("1.0.0", byDevice, nstest.StaticV4))
		b.Add(c)
		returned(c)
		b.Add(c)
		returned(c)
		c.Config = conf("1.0.0", `"device":"hd1"`, nstest.StaticV4)
		b.Add(c)
		b.OK("DEL", c)
		b.Host.IP("link set hd0 up alias uplink")
		before()
	})

	It("moves the device, and adds static addresses of both families, which are usable on the segment", func() {
		container := nstest.New(GinkgoTB())
		result := b.Add(b.Call("one", container, conf("1.1.0", byDevice, nstest.StaticDual)))

		By("connecting to the outside host, and accepting connections from it")
		Expect(container.IP("-6 address show dev eth0 tentative")).To(BeEmpty())
		nstest.RequireTraffic(GinkgoTB(), container, b.Outside, nstest.ContainerV4, nstest.OutsideV4)
		nstest.RequireTraffic(GinkgoTB(), container, b.Outside, nstest.ContainerV6, nstest.OutsideV6)

		By("returning what it moved")
		Expect(result.Interfaces).To(HaveLen(1))
		Expect(result.Interfaces[0]).To(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", container.Path())))
		Expect(result.Interfaces[0].MAC).To(Equal(deviceMAC))
		Expect(result.IPs).To(HaveEach(HaveField("Interface", 0)))
		Expect(result.DNS.Nameservers).To(Equal([]string{"198.18.0.53"}))

		By("setting the name on the host as the alias, which the reference plugin needs")
		Expect(container.IP("link show eth0")).To(And(ContainSubstring("alias hd0"), ContainSubstring("altname plumb-")))
		Expect(b.Host.IP("-br link")).NotTo(ContainSubstring("hd0"))
		Expect(container.IP("-4 route")).To(Equal("default via 198.18.0.2 dev eth0\n198.18.0.0/24 dev eth0 proto kernel scope link src 198.18.0.50"))
	})

	It("lets the device configure itself from router advertisements", func() {
		b.RequireAutoconfiguration(conf("1.1.0", byDevice, nstest.StaticV4), "hd0")
	})

	It("returns the result in each version's format", func() {
		b.RequireResults(func(version string) string { return conf(version, byDevice, nstest.StaticDual) })
	})

	It("succeeds with a warning if /proc/sys is read-only, and CHECK and DEL succeed", func() {
		nstest.RequireAddOnReadOnlySysctls(GinkgoTB(), b.plugin(), b.NewCall(conf("1.1.0", byDevice, nstest.StaticDual)))
	})

	DescribeTable("moves virtual devices of each kind, and DEL returns them",
		func(lines ...string) {
			if strings.HasPrefix(lines[0], "tuntap") {
				nstest.RequireTaps(GinkgoTB())
			}
			b.Host.Batch(GinkgoTB(), lines...)
			restored := b.Restored(b.Host)
			container := b.NewContainer()
			c := b.Call("one", container, conf("1.1.0", `"device":"dev0"`, nstest.StaticV4))
			b.Add(c)
			Expect(container.IP("-br addr show eth0")).To(ContainSubstring(nstest.ContainerV4))
			b.OK("DEL", c)
			restored()
		},
		Entry("macvlan", "link add dev0 link hd0 type macvlan mode bridge"),
		Entry("tap", "tuntap add dev0 mode tap"),
		Entry("veth", "link add dev0 type veth peer name dev1"),
		Entry("a device that was up", "link add dev0 type veth peer name dev1", "link set dev0 up"),
		Entry("a device with an alias and alternative names", "link add dev0 type veth peer name dev1", "link set dev0 alias uplink-of-rack-7", "link property add dev dev0 altname dev0-alternative-name"),
	)

	It("finds the device by an alternative name", func() {
		b.Host.IP("link property add dev hd0 altname a-name-of-more-than-15-bytes")
		container := b.NewContainer()
		c := b.Call("one", container, conf("1.1.0", `"device":"a-name-of-more-than-15-bytes"`, nstest.StaticV4))
		b.Add(c)
		Expect(container.IP("link show eth0")).To(ContainSubstring("alias hd0"))
		b.OK("DEL", c)
		b.Host.IP("link show hd0")
	})

	It("finds the device by its MAC, in any notation", func() {
		container := b.NewContainer()
		b.Add(b.Call("one", container, conf("1.1.0", `"hwaddr":"0200.0000.000D"`, nstest.StaticV4)))
		Expect(container.IP("link show eth0")).To(ContainSubstring("alias hd0"))
	})

	It("lists the interfaces if several have the MAC", func() {
		b.addDevice("hd1", deviceMAC)
		b.Refuse(b.NewCall(conf("1.1.0", `"hwaddr":"`+deviceMAC+`"`, nstest.StaticV4)), types.CodeConfig, "the host has several network interfaces with hwaddr "+deviceMAC+": hd0, hd1; name one")
	})

	Describe("a device that does not exist, or cannot be moved", func() {
		refuses := func(keys string, code int, texts ...string) {
			GinkgoHelper()
			b.Refuse(b.NewCall(conf("1.1.0", keys, b.HostLocal())), code, texts...)
		}
		It("is named in the error", func() {
			refuses(`"device":"nope0"`, types.CodeConfig, "find link nope0")
			refuses(`"hwaddr":"02:00:00:00:00:99"`, types.CodeConfig, "the host has no network interface with hwaddr 02:00:00:00:00:99; ")
		})
		It("may be of a kind that the kernel does not move", func() {
			b.Host.IP("link add br0 type bridge")
			refuses(`"device":"br0"`, types.CodeConfig, `the kernel does not move interface br0, which is of kind "bridge"`)
		})
		It("may be a port, or the device of the default route, unless force is set", func() {
			b.Host.Batch(GinkgoTB(), "link add br0 type bridge", "link set hd0 master br0")
			refuses(byDevice, types.CodeConfig, "interface hd0 is a port of br0")
			b.Host.Batch(GinkgoTB(), "link set hd0 nomaster", "addr add 198.18.0.1/24 dev hd0", "route add default via 198.18.0.2")
			refuses(byDevice, types.CodeConfig, "the default route of the host goes through interface hd0")
			b.Add(b.NewCall(conf("1.1.0", byDevice+`,"force":true`, nstest.StaticV4)))
		})
		It("may be a port of the bridge of the default route, which the error names first", func() {
			b.Host.Batch(GinkgoTB(), "link add br0 type bridge", "link set hd0 master br0", "link set br0 up", "addr add 198.18.0.1/24 dev br0", "route add default via 198.18.0.2")
			refuses(byDevice, types.CodeConfig, "the default route of the host goes through interface hd0, a port of br0: without hd0, the host loses its connection")
		})
		It("returns to its bridge if a forced ADD fails", func() {
			b.Host.Batch(GinkgoTB(), "link add br0 type bridge", "link set hd0 master br0")
			b.Refuse(b.NewCall(conf("1.0.0", byDevice+`,"force":true`, `{"type":"static","addresses":[{"address":"198.18.0.50/24"}],"routes":[{"dst":"0.0.0.0/0","gw":"203.0.113.1"}]}`)),
				types.CodeConfig, "203.0.113.1")
		})
		DescribeTable("may be needed by a default route of the host",
			func(refused bool, setup ...string) {
				b.addDevice("hd1", "02:00:00:00:00:1d")
				b.Host.Batch(GinkgoTB(), append([]string{"addr add 198.18.0.1/24 dev hd0", "addr add 198.19.0.1/24 dev hd1"}, setup...)...)
				if refused {
					refuses(byDevice, types.CodeConfig, "the default route of the host goes through interface hd0")
				}
				c := b.NewCall(conf("1.1.0", byDevice, nstest.StaticV4))
				if refused {
					c.Config = conf("1.1.0", byDevice+`,"force":true`, nstest.StaticV4)
				}
				b.Add(c)
			},
			Entry("IPv6, beside an IPv4 route through another device", true, "route add default via 198.19.0.2", "route add ::/0 dev hd0"),
			Entry("through a macvlan on the device", true, "link add mv0 link hd0 type macvlan", "link set mv0 up", "route add default dev mv0"),
			Entry("through a bridge that has a macvlan on the device as its port", true,
				"link add br0 type bridge", "link add mv0 link hd0 type macvlan", "link set mv0 master br0", "link set br0 up", "route add default dev br0"),
			Entry("with several next hops", true, "route add default nexthop via 198.19.0.2 nexthop via 198.18.0.2"),
			Entry("in another table", true, "route add default via 198.18.0.2 table 100", "rule add table 100"),
			Entry("that two routes replace", true, "route add 0.0.0.0/1 dev hd0", "route add 128.0.0.0/1 dev hd0"),
			Entry("but not by a route with a higher metric", false, "route add default via 198.18.0.2 metric 200", "route add default via 198.19.0.2 metric 100"),
			Entry("but not by a route for packets from a single address", false, "route add default via 198.19.0.2", "route add default via 198.18.0.2 table 100", "rule add from 198.18.0.1 table 100"),
		)
		It("may be in use by another attachment", func() {
			for _, keys := range []string{byDevice, `"hwaddr":"` + deviceMAC + `"`} {
				c := b.NewCall(conf("1.1.0", keys, b.HostLocal()))
				b.Add(c)
				b.Refuse(b.Call("two", b.NewContainer(), c.Config), types.CodeTryAgain, "is in use by net1/one/eth0", "; if the attachment net1/one/eth0 no longer exists, GC releases the device")
				b.OK("DEL", c)
			}
		})
		It("may leave the host during ADD", func() {
			c := b.NewCall(conf("1.1.0", byDevice, b.HostLocal()))
			other := b.NewContainer()
			c.Before = func(step string) error {
				if strings.HasPrefix(step, "move link hd0") {
					_, err := b.Host.Exec("ip", "link", "set", "hd0", "netns", other.Path())
					return err
				}
				return nil
			}
			b.Fails("ADD", c, types.CodeTryAgain, "interface hd0 has left the host during ADD")
			Expect(b.Reservations()).To(BeEmpty())
			Expect(b.stateFiles()).To(BeEmpty())
			other.IP("link show hd0")
		})
	})

	Describe("an ADD that fails", func() {
		It("does not touch the device if the IPAM plugin returns no address", func() {
			dir, _ := nstest.NewScriptPlugin(GinkgoTB(), "broken", `[ $CNI_COMMAND = ADD ] || exit 0
				echo '{"cniVersion":"1.0.0","code":11,"msg":"no address today"}'; exit 1`)
			c := b.NewCall(conf("1.0.0", byDevice, `{"type":"broken"}`))
			c.Path = dir
			var changes []string
			c.Before = func(step string) error {
				if strings.HasPrefix(step, "move ") || strings.HasPrefix(step, "set ") || strings.HasPrefix(step, "save ") {
					changes = append(changes, step)
				}
				return nil
			}
			b.Refuse(c, types.CodeTryAgain, `IPAM plugin "broken": no address today`)
			Expect(changes).To(BeEmpty())
		})
		It("returns the device with its addresses if the lease cannot be used", func() {
			b.Host.Batch(GinkgoTB(), "addr add 192.0.2.1/24 brd + dev hd0", "addr add 2001:db8::1/64 dev hd0 nodad", "link set hd0 alias uplink")
			b.Refuse(b.NewCall(conf("1.0.0", byDevice, `{"type":"static","addresses":[{"address":"198.18.0.50/24"}],"routes":[{"dst":"0.0.0.0/0","gw":"203.0.113.1"}]}`)),
				types.CodeConfig, "203.0.113.1")
		})
		It("releases the addresses after the device has left the container", func() {
			dir, log := nstest.NewIPAMScript(GinkgoTB(), "odd", `[ $CNI_COMMAND = ADD ] || exit 0
				echo '{"cniVersion":"1.0.0","ips":[{"address":"198.18.0.60/24"}],"routes":[{"dst":"0.0.0.0/0","gw":"192.0.2.1"}]}'`)
			c := b.NewCall(conf("1.0.0", byDevice, `{"type":"odd"}`))
			c.Path = dir
			b.Refuse(c, types.CodeConfig, "192.0.2.1")
			Expect(nstest.ReadFile(GinkgoTB(), log)).To(Equal("ADD: no link\nDEL: no link\n"))
		})
		It("because of duplicate address detection returns the device", func() {
			b.Refuse(b.Call("one", nstest.New(GinkgoTB()), conf("1.0.0", byDevice, nstest.Static("2001:db8:18::2/64"))),
				attach.CodeDuplicate, "2001:db8:18::2/64: the address is in use on the segment")
		})
	})

	It("warns and succeeds if the device has no carrier", func() {
		b.Outside.IP("link set hd0 down")
		container := nstest.New(GinkgoTB())
		c := b.Call("one", container, conf("1.0.0", byDevice, nstest.StaticDual))
		c = c.FailAt("await addresses", os.ErrDeadlineExceeded) // without a carrier, the detection does not end
		Expect(b.OK("ADD", c).Stderr).To(ContainSubstring("interface eth0 has no carrier"))
		Expect(container.IP("-6 address show dev eth0 tentative")).To(ContainSubstring(nstest.ContainerV6))
	})

	Describe("an IPAM plugin that works over the link", func() {
		var l nstest.LinkForIPAM
		BeforeEach(func() {
			c := b.NewCall(conf("1.1.0", byDevice, `{"type":"dhcp"}`))
			l = nstest.LinkForIPAM{Plugin: b.plugin(), Call: c, HostEnds: "ip -o link show type veth"}
		})
		It("is called for ADD when the device is in the container, and for DEL before the device leaves", func() { l.Require(GinkgoTB(), "DEL") })
		It("is called for GC before the device leaves the container", func() { l.Require(GinkgoTB(), "GC") })
	})

	It("rejects an interface name that exists in the container, and keeps that attachment", func() {
		b.addDevice("hd1", "02:00:00:00:00:1d")
		container := b.NewContainer()
		b.Add(b.Call("one", container, conf("1.0.0", byDevice, b.HostLocal())))
		again := b.Call("one", container, conf("1.0.0", `"device":"hd1"`, b.HostLocal()))
		b.Refuse(again, types.CodeConfig, `interface "eth0" already exists`)
		By("including an interface that was renamed there")
		container.Batch(GinkgoTB(), "link set eth0 down", "link set eth0 name other0", "link set other0 up")
		b.Refuse(again, types.CodeConfig, "interface other0 in the container already serves net1/one/eth0")
	})
})

// A refused call changes nothing, so that all calls can share a host.
var _ = Describe("an invalid configuration", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newTestbed() })

	DescribeTable("rejects an invalid configuration",
		func(config string, code int, texts ...string) {
			b.Refuse(b.NewCall(config), code, texts...)
		},
		Entry("no selector", conf("1.0.0", "", nstest.StaticV4), types.CodeConfig, `device: specify either "device", "hwaddr", "kernelpath" or "pciBusID", or let the runtime set runtimeConfig.deviceID (capability deviceID)`),
		Entry("lo", conf("1.0.0", `"device":"lo"`, nstest.StaticV4), types.CodeConfig, "lo is the loopback interface"),
		Entry("a device that is not an interface name", conf("1.0.0", `"device":"a/b"`, nstest.StaticV4), types.CodeConfig, `device "a/b" is not an interface name`),
		Entry("a MAC of five bytes", conf("1.0.0", `"hwaddr":"02:00:00:00:00"`, nstest.StaticV4), types.CodeConfig, `invalid MAC address "02:00:00:00:00"`),
		Entry("a path outside /sys/devices", conf("1.0.0", `"kernelpath":"/sys/devices/../../etc"`, nstest.StaticV4), types.CodeConfig, `kernelpath "/sys/devices/../../etc" is not below /sys/devices/`),
		Entry("a relative path", conf("1.0.0", `"kernelpath":"sys/devices/x"`, nstest.StaticV4), types.CodeConfig, "is not below /sys/devices/"),
		Entry("a malformed PCI ID", conf("1.0.0", `"pciBusID":"00:1f.6"`, nstest.StaticV4), types.CodeConfig, `pciBusID "00:1f.6"`),
		Entry("a deviceID that is a path", conf("1.0.0", `"runtimeConfig":{"deviceID":"../x"}`, nstest.StaticV4), types.CodeConfig, "runtime config DeviceID ../x not found or unsupported"),
		Entry("several problems, beside a valid device", conf("1.0.0", byDevice+`,"hwaddr":"y","pciBusID":"z"`, nstest.StaticV4), types.CodeConfig, `"y"`, `"z"`),
		Entry("an unknown key with strict", conf("1.0.0", byDevice+`,"strict":true,"devise":"x"`, nstest.StaticV4), types.CodeUnsupported, "devise: unknown key"),
	)
})
