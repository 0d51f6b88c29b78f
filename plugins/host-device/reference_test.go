package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("beside the reference plugin", func() {
	var b *testbed
	var c nstest.Call
	BeforeEach(func() {
		b = newTestbed()
		b.Host.Batch(GinkgoTB(), "addr add 192.0.2.1/24 brd + dev hd0")
		c = b.NewCall(conf("1.0.0", byDevice, b.HostLocal(nstest.RangeV4)))
	})
	byReference := func(command string) nstest.Reply {
		GinkgoHelper()
		return nstest.ExecReference(GinkgoTB(), "host-device", c.With(command)).OK(GinkgoTB())
	}

	It("returns a device that the reference plugin moved, in the same state", func() {
		added := byReference("ADD")
		Expect(c.Container.IP("link show eth0")).To(And(ContainSubstring("UP"), ContainSubstring("alias hd0")))
		c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
		b.OK("CHECK", c)
		for range 2 {
			b.OK("DEL", c)
			Expect(b.Host.IP("addr show hd0")).NotTo(Or(ContainSubstring("UP"), ContainSubstring("192.0.2.1"), ContainSubstring("alias")))
			Expect(b.Reservations()).To(BeEmpty())
		}
	})

	It("lets the reference plugin return the device, and GC deletes the rest", func() {
		added := b.OK("ADD", c)
		c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
		byReference("CHECK")
		byReference("DEL")
		Expect(b.Host.IP("link show hd0")).To(ContainSubstring("altname plumb-"))
		Expect(b.Reservations()).To(BeEmpty())
		By("moving the device again meanwhile")
		next := b.Call("two", b.NewContainer(), conf("1.1.0", byDevice, b.HostLocal(nstest.RangeV4)))
		b.Add(next)
		b.OK("DEL", next)
		b.OK("GC", b.Call("", nil, conf("1.1.0", byDevice+`,"cni.dev/valid-attachments":[]`, b.HostLocal(nstest.RangeV4))))
		Expect(b.Host.IP("link show hd0")).To(And(ContainSubstring("UP"), Not(ContainSubstring("altname")), Not(ContainSubstring("alias"))))
		Expect(b.stateFiles()).To(BeEmpty())
	})

	Describe("with useInterfaceNetwork", func() {
		BeforeEach(func() {
			b.Host.Batch(GinkgoTB(),
				"addr add 2001:db8:18::50/64 dev hd0 nodad",
				"route add 192.0.2.128/25 dev hd0 table 100",
				"route add default via 192.0.2.254 table 100 metric 5",
				"route add 2001:db8:1::/64 via 2001:db8:18::1 dev hd0",
				"rule add from 192.0.2.1 lookup 100 pref 1000")
			c.Config = conf("1.1.0", useNetwork, noIPAM)
		})

		It("returns the same result", func() {
			restored := b.Restored(b.Host, c.Container)
			added := b.OK("ADD", c)
			b.OK("DEL", c)
			restored()
			want := byReference("ADD").Result(GinkgoTB())
			got := added.Result(GinkgoTB())
			Expect(got.IPs).To(ConsistOf(want.IPs))
			Expect(got.Routes).To(ConsistOf(want.Routes))
			byReference("DEL")
		})

		for _, version := range []string{"1.0.0", "1.1.0"} {
			It("checks and returns a device that the reference plugin moved, in version "+version, func() {
				c.Config = conf(version, useNetwork, b.HostLocal(nstest.RangeV4))
				added := byReference("ADD")
				c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
				b.OK("CHECK", c)
				b.OK("DEL", c)
				Expect(b.Host.IP("addr show hd0")).NotTo(Or(ContainSubstring("UP"), ContainSubstring("192.0.2.1"), ContainSubstring("alias")))
			})
		}

		It("lets the reference plugin return the device, and GC restores the configuration", func() {
			restored := b.Restored(b.Host, c.Container)
			added := b.OK("ADD", c)
			c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
			byReference("DEL")
			b.OK("GC", b.Call("", nil, conf("1.1.0", useNetwork+`,"cni.dev/valid-attachments":[]`, noIPAM)))
			restored()
			Expect(b.stateFiles()).To(BeEmpty())
		})
	})
})
