package main

import (
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("DEL", func() {
	var b *nstest.Bed
	BeforeEach(func() { b = newBed() })

	It("restores the host, the container and the reservations, whatever has changed since ADD", func() {
		c := b.NewCall(conf("1.0.0", onUplink, b.HostLocal()))
		b.RequireDelOfContainerLink(c, conf("1.0.0", `"master":"nope0","mode":"x","mtu":-5,"mac":"y"`, b.HostLocal()))
	})

	DescribeTable("succeeds, deletes the link and releases the addresses",
		func(change func(b *nstest.Bed, c *nstest.Call)) {
			c := b.NewCall(conf("1.0.0", onUplink, b.HostLocal()))
			b.Add(c)
			container := c.Container
			change(b, &c)
			b.OK("DEL", c)
			Expect(b.Reservations()).To(BeEmpty())
			if c.Container != nil && container.FD() >= 0 {
				Expect(container.IP("-br link")).NotTo(ContainSubstring("eth0"))
			}
			b.OK("DEL", c)
		},
		Entry("without CNI_NETNS, as in the second DEL of containerd", func(_ *nstest.Bed, c *nstest.Call) { c.Container = nil }),
		Entry("with nothing at CNI_NETNS", func(_ *nstest.Bed, c *nstest.Call) { c.Container, c.NetNS = nil, "/run/netns/none" }),
		Entry("with a regular file at CNI_NETNS", func(_ *nstest.Bed, c *nstest.Call) { c.Container.Remove(GinkgoTB()) }),
		Entry("after the link was deleted", func(_ *nstest.Bed, c *nstest.Call) { c.Container.IP("link del eth0") }),
		Entry("after the master was deleted", func(b *nstest.Bed, _ *nstest.Call) { b.Host.IP("link del uplink0") }),
		Entry("with a prevResult that cannot be read", func(_ *nstest.Bed, c *nstest.Call) {
			c.Config = nstest.WithPrevResult(c.Config, `{"cniVersion":"9.9.9"}`)
		}),
	)

	It("releases the address after the link is deleted", func() {
		dir, log := nstest.NewIPAMScript(GinkgoTB(), "rec", `[ $CNI_COMMAND = ADD ] || exit 0
			echo '{"cniVersion":"1.0.0","ips":[{"address":"198.18.0.60/24"}]}'`)
		c := b.NewCall(conf("1.0.0", onUplink, `{"type":"rec"}`))
		c.Path = dir
		b.Add(c)
		b.OK("DEL", c)
		Expect(nstest.ReadFile(GinkgoTB(), log)).To(MatchRegexp(`^ADD: (no )?link\nDEL: no link\n$`))
	})

	DescribeTable("does not change the interface of another attachment with a namespace at the same path",
		func(lines ...string) {
			c := b.NewCall(conf("1.0.0", onUplink, b.HostLocal()))
			b.Add(c)
			c.Container.IP("link del eth0")
			if len(lines) > 0 {
				c.Container.Batch(GinkgoTB(), lines...)
			} else {
				other := c
				other.ContainerID = "two"
				other.Config = conf("1.0.0", onUplink, nstest.StaticV4)
				b.Add(other)
			}
			before := nstest.Snapshot(GinkgoTB(), c.Container)
			b.OK("DEL", c)
			Expect(nstest.Snapshot(GinkgoTB(), c.Container)).To(Equal(before))
			Expect(b.Reservations()).To(BeEmpty())
		},
		Entry("another container's macvlan"),
		Entry("a link of another kind", "link add eth0 type veth peer name eth1"),
	)

	It("does not delete a macvlan without an alias if prevResult contains another MAC and other IPs", func() {
		c := b.Attach(b.NewCall(conf("1.0.0", onUplink, b.HostLocal())))
		c.Container.IP("link del eth0")
		b.Host.IP("link add link uplink0 name eth0 netns " + c.Container.Path() + " type macvlan mode bridge")
		c.Container.IP("addr add 192.0.2.7/24 dev eth0")
		b.OK("DEL", c)
		Expect(c.Container.IP("-br addr show eth0")).To(ContainSubstring("192.0.2.7/24"))
		Expect(b.Reservations()).To(BeEmpty())
	})

	It("does not release the addresses while the link cannot be deleted", func() {
		c := b.Attach(b.NewCall(conf("1.0.0", onUplink, b.HostLocal()))).FailAt("delete link", errors.New("not now"))
		Expect(b.Run("DEL", c).Failure(GinkgoTB()).Msg).To(ContainSubstring("not now"))
		Expect(b.Reservations()).To(HaveLen(2))
	})
})

var _ = Describe("GC and STATUS", func() {
	var b *nstest.Bed
	BeforeEach(func() { b = newBed() })

	It("GC calls the IPAM plugin, which releases the addresses of attachments that are not listed", func() {
		b.RequireGC(conf("1.1.0", onUplink+","+nstest.OnlyTwoValid, b.HostLocal()))
		b.OK("GC", b.Call("", nil, conf("1.1.0", onUplink+`,"cni.dev/valid-attachments":[]`, noIPAM)))
	})

	It("STATUS fails without a master and a default route", func() {
		b.Host.IP("-4 route del default")
		b.Host.IP("-6 route del default")
		b.RequireStatus(conf("1.1.0", "", nstest.StaticV4), "no default route interface found")
	})
})

var _ = It("adds and deletes many containers at once, several times", func() {
	b := newBed()
	config := conf("1.1.0", onUplink+`,"optimisticDAD":true`, b.HostLocal())
	b.RequireManyAtOnce(config, nstest.FullOrShort(32, 8), nstest.FullOrShort(6, 2))
})

var _ = DescribeTable("leaves nothing if any step of ADD or DEL fails",
	func(version, keys string, ipam func(b *nstest.Bed) string) {
		b := newBed()
		b.FaultSweep(nstest.Sweep{
			Config: conf(version, keys, ipam(b)),
			Prepare: func(host, container *nstest.NS) {
				outside := nstest.NewHost(GinkgoTB()).Named("outside")
				nstest.Join(GinkgoTB(), nstest.End{In: host, Name: "uplink0", Addrs: []string{"198.18.0.1/24"}},
					nstest.End{In: outside, Name: "uplink0", Addrs: []string{"198.18.0.2/24"}})
				host.IP("route add default via 198.18.0.2")
				container.SkipDAD(GinkgoTB())
			},
		})
	},
	Entry("dual stack", "1.1.0", onUplink, func(b *nstest.Bed) string { return b.HostLocal() }),
	Entry("optimistic", "1.1.0", onUplink+`,"mtu":1400,"optimisticDAD":true`, func(b *nstest.Bed) string { return b.HostLocal() }),
	Entry("default", "0.4.0", "", func(b *nstest.Bed) string { return b.HostLocal(nstest.RangeV4) }),
	Entry("layer 2", "1.1.0", onUplink, func(*nstest.Bed) string { return noIPAM }),
	Entry("static IPv4", "0.2.0", onUplink, func(*nstest.Bed) string { return nstest.StaticV4 }),
)
