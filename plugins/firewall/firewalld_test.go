package main

import (
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("the backend firewalld", func() {
	var b *testbed
	var d *nstest.Firewalld
	BeforeEach(func() {
		b = newTestbed()
		d = nstest.StartFirewalld(GinkgoTB(), b.Host)
		GinkgoT().Setenv("DBUS_SYSTEM_BUS_ADDRESS", d.Address)
	})
	zoneOf := func(source string) any {
		GinkgoHelper()
		return d.Call(GinkgoTB(), "zone.getZoneOfSource", source)
	}

	DescribeTable("adds the addresses to the zone as sources", func(backend, policy string) {
		b.serve()
		keys := key("backend", backend) + key("ingressPolicy", policy)
		expect(probe{b.containers[0], nstest.OutsideV4, nstest.OutsideV6, false})
		for _, container := range []int{0, 2} {
			b.OK("ADD", b.call(keys, container))
			b.OK("ADD", b.call(keys, container))
			b.OK("CHECK", b.call(keys, container))
		}
		expect(probe{b.containers[0], nstest.OutsideV4, nstest.OutsideV6, true}, toContainer(b.containers[0], 2, policy == open))
		Expect(zoneOf("fd00:1::2/128")).To(Equal("trusted"))
		Expect(b.saved()).NotTo(ContainSubstring("CNI"))
		By("CHECK reports a missing source")
		d.Call(GinkgoTB(), "zone.removeSource", "trusted", "10.9.0.2/32")
		b.Fails("CHECK", b.call(keys, 0), types.CodeChanged, "zone trusted lacks the source 10.9.0.2/32")
		By("DEL finds the sources without prevResult")
		c := b.call(keys, 0)
		c.Config = bare("")
		b.OK("DEL", c)
		Expect(zoneOf("fd00:1::2/128")).To(Equal(""))
		By("GC deletes the sources that are not valid")
		for _, keeps := range []string{kept(), strings.Replace(kept("c2"), "net1", "net2", 1)} {
			b.OK("GC", b.Call("", nil, keeps))
			Expect(zoneOf("10.9.1.2/32")).To(Equal("trusted"))
		}
		b.OK("GC", b.Call("", nil, strings.Replace(kept(), "net1", "net2", 1)))
		Expect(zoneOf("10.9.1.2/32")).To(Equal(""))
		Expect(b.elements()).NotTo(ContainSubstring("10.9."))
	}, Entry(nil, firewalld, open), Entry(nil, "", sameBridge))

	It("keeps policies when firewalld reloads", func() {
		b.serve()
		keys := key("ingressPolicy", sameBridge)
		for _, container := range []int{0, 2} {
			b.OK("ADD", b.call(keys, container))
		}
		before := b.elements()
		d.Call(GinkgoTB(), "reload")
		Expect(b.elements()).To(Equal(before))
		for _, container := range []int{0, 2} {
			b.OK("ADD", b.call(keys, container))
		}
		expect(toContainer(b.containers[0], 2, false), probe{b.containers[0], nstest.OutsideV4, nstest.OutsideV6, true})
	})

	It("restores the sources after a reload of firewalld", func() {
		b.OK("ADD", b.call("", 0))
		b.OK("ADD", b.call(key("firewalldZone", "internal"), 2))
		b.OK("ADD", b.call("", 1))
		b.OK("DEL", b.call("", 1))
		d.Call(GinkgoTB(), "reload")
		Expect(zoneOf("10.9.0.2/32")).To(Equal(""))
		Expect(b.elements()).To(MatchRegexp(`10\.9\.0\.2 comment "[^"]*" : "trusted" \. ""`))
		restore := func() (exit int, stderr string) {
			var out strings.Builder
			return skel.Run(plugin(), skel.Env{Args: []string{"restore"}, HostNS: b.Host.Path(), Stdout: &out, Stderr: &out}), out.String()
		}
		for range 2 {
			exit, stderr := restore()
			Expect(exit).To(BeZero(), stderr)
			Expect(stderr).To(BeEmpty())
			Expect([]any{zoneOf("10.9.0.2/32"), zoneOf("fd00:1::2/128")}).To(HaveEach("trusted"))
			Expect([]any{zoneOf("10.9.1.2/32"), zoneOf("fd00:2::2/128")}).To(HaveEach("internal"))
			Expect(zoneOf("10.9.0.3/32")).To(Equal(""))
		}
		By("DEL removes a source from the zone of its ADD")
		c := b.call("", 2)
		c.Config = strings.Replace(bare(""), "net1", "net2", 1)
		b.OK("DEL", c)
		Expect(zoneOf("10.9.1.2/32")).To(Equal(""))
		By("an error goes to stderr")
		GinkgoT().Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent")
		exit, stderr := restore()
		Expect(exit).To(Equal(1))
		Expect(stderr).To(ContainSubstring("firewall restore: connect to firewalld: firewalld is not running"))
	})

	It("restores the sources and their elements in REPAIR, except those of another attachment", func() {
		one, two := b.call("", 0), b.call("", 2)
		b.OK("ADD", one)
		b.OK("ADD", two)
		before := b.elements()
		for _, damage := range []func(){
			func() { d.Call(GinkgoTB(), "reload") },
			func() { b.Host.Must(GinkgoTB(), "nft", "delete table inet plumb") },
			func() {},
		} {
			damage()
			for _, c := range []nstest.Call{one, two} {
				Expect(b.OK("REPAIR", c).Stderr).To(BeEmpty())
			}
			Expect([]any{zoneOf("10.9.0.2/32"), zoneOf("fd00:1::2/128"), zoneOf("10.9.1.2/32")}).To(HaveEach("trusted"))
			Expect(b.elements()).To(Equal(before))
		}
		By("keeping the zone of the address's new container")
		newer := b.call(key("firewalldZone", "internal"), 0)
		newer.ContainerID = "newer"
		b.OK("DEL", one)
		b.OK("ADD", newer)
		before = b.elements()
		d.Call(GinkgoTB(), "reload")
		one.ContainerID = "former"
		b.Fails("REPAIR", one, types.CodeChanged, "belongs to net1/newer/eth0")
		Expect(zoneOf("10.9.0.2/32")).To(Equal(""))
		b.OK("REPAIR", newer)
		Expect(zoneOf("10.9.0.2/32")).To(Equal("internal"))
		Expect(b.elements()).To(Equal(before))
	})

	It("keeps the source of an address's new container when the former container is deleted again", func() {
		former, newer := b.call("", 0), b.call("", 0)
		newer.ContainerID = "newer"
		for _, command := range []string{"ADD", "DEL"} {
			b.OK(command, former)
		}
		b.OK("ADD", newer)
		b.OK("DEL", former)
		Expect([]any{zoneOf("10.9.0.2/32"), zoneOf("fd00:1::2/128")}).To(HaveEach("trusted"))
		b.OK("DEL", newer)
		Expect([]any{zoneOf("10.9.0.2/32"), zoneOf("fd00:1::2/128")}).To(HaveEach(""))
	})

	It("keeps the source of a former owner that gets the address back", func() {
		former, newer, withoutPrev := b.call("", 0), b.call("", 0), b.Call("newer", b.containers[0], bare(""))
		newer.ContainerID = "newer"
		b.OK("ADD", former)
		for command, c := range map[string]nstest.Call{"DEL": newer, "DEL without prevResult": withoutPrev, "GC": b.Call("", nil, kept("c0"))} {
			b.OK("ADD", newer)
			b.OK(strings.Fields(command)[0], c)
			Expect(b.elements()).To(And(ContainSubstring("net1/c0/eth0"), Not(ContainSubstring("newer"))))
			Expect([]any{zoneOf("10.9.0.2/32"), zoneOf("fd00:1::2/128")}).To(HaveEach("trusted"), command)
		}
		By("and removes it when both are gone")
		b.OK("ADD", newer)
		b.OK("GC", b.Call("", nil, kept()))
		Expect([]any{zoneOf("10.9.0.2/32"), zoneOf("fd00:1::2/128")}).To(HaveEach(""))
	})

	It("reports another program's table, and removes what a failed ADD added", func() {
		b.Host.Must(GinkgoTB(), "nft", "add table inet plumb; add map inet plumb source4 { type ether_addr : ipv4_addr; }")
		b.Fails("ADD", b.call("", 0), types.CodeConfig, "differs from the table that plumb creates")
		b.Fails("STATUS", b.Call("", nil, bare("")), types.CodeNotAvailable, "differs from the table that plumb creates")
		b.Host.Must(GinkgoTB(), "nft", "delete table inet plumb")
		d.Call(GinkgoTB(), "zone.addSource", "internal", "fd00:1::2/128")
		b.Fails("ADD", b.call("", 0), types.CodeConfig, `zone "internal"`)
		Expect(zoneOf("10.9.0.2/32")).To(Equal(""))
		Expect(b.elements()).To(BeEmpty())
		b.Fails("ADD", b.call(key("firewalldZone", "none"), 2), types.CodeConfig, "no such zone")
	})

	It("continues without firewalld if firewalld refuses, unless the configuration names the backend", func() {
		d.Deny(GinkgoTB(), "zone.addSource")
		b.OK("ADD", b.call("", 0))
		Expect(b.elements()).To(BeEmpty())
		d.Deny(GinkgoTB(), "zone.removeSource")
		b.OK("DEL", b.call("", 0))
		d.Deny(GinkgoTB(), "zone.addSource")
		c := b.call(key("backend", firewalld), 0)
		b.Fails("ADD", c, types.CodeConfig, "not authorized")
	})
})

var _ = Describe("the backend firewalld", func() {
	It("lists zones with names of any length that firewalld permits", func() {
		for _, name := range []string{"trusted", "fifteen-letters", "seventeen-letters"} {
			f := &firewall{conf: &config{zone: name}, addrs: []netip.Addr{netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd00:1::2")}}
			for i, s := range f.sources() {
				Expect(zone(s)).To(Equal(name))
				Expect(s.Key.Addr()).To(Equal(f.addrs[i]))
			}
		}
	})

	It("reports that firewalld is not running", func() {
		b := newTestbed()
		GinkgoT().Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent")
		c := b.call(key("backend", firewalld), 0)
		b.Fails("ADD", c, types.CodeConfig, "not running")
		b.OK("DEL", c)
		c.Config = bare(key("backend", firewalld))
		b.Fails("STATUS", c, types.CodeNotAvailable)
	})
})
