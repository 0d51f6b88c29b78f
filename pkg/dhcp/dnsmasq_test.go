package dhcp_test

import (
	"errors"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/dhcp"
	"github.com/plumb-cni/plumb/test/nstest"
)

// startDnsmasq starts dnsmasq with leases of two minutes.
func (b testbed) startDnsmasq(args ...string) *nstest.Dnsmasq {
	return nstest.StartDnsmasq(GinkgoTB(), nstest.End{In: b.server, Name: "lan0"}, append(args, "--dhcp-range=10.8.0.50,10.8.0.59,255.255.255.0,120s")...)
}

var _ = Describe("with dnsmasq", func() {
	It("a lease is obtained, renewed, rebound and released", func() {
		b := newTestbed()
		d := b.startDnsmasq()
		l := b.obtain()
		addr := l.Address.Addr().String()
		d.AwaitLog(GinkgoTB(), "DHCPDISCOVER(lan0)", b.client.MAC.String())
		d.AwaitLog(GinkgoTB(), "DHCPOFFER(lan0)", addr)
		d.AwaitLog(GinkgoTB(), "DHCPREQUEST(lan0)", addr)
		d.AwaitLog(GinkgoTB(), "DHCPACK(lan0)", addr)
		Expect(d.HasLease(addr)).To(BeTrue())
		Expect([]time.Duration{l.Duration, l.RenewAfter, l.RebindAfter}).To(Equal([]time.Duration{120 * time.Second, 60 * time.Second, 105 * time.Second}))
		b.setAddress(l)

		_, index := linkOf(b.server, "lan0")
		frames := capture(b.server, index)
		renewed, err := b.client.Renew(limit(), l)
		Expect(err).NotTo(HaveOccurred())
		Expect(renewed.Address).To(Equal(l.Address))
		Eventually(frames).Should(Receive(Satisfy(func(frame []byte) bool { return string(frame[:6]) == string(b.serverMAC) })))
		d.AwaitLog(GinkgoTB(), "DHCPREQUEST(lan0)", addr)
		d.AwaitLog(GinkgoTB(), "DHCPACK(lan0)", addr)

		_, err = b.client.Rebind(limit(), l)
		Expect(err).NotTo(HaveOccurred())
		d.AwaitLog(GinkgoTB(), "DHCPACK(lan0)", addr)

		Expect(b.client.Release(limit(), l)).To(Succeed())
		Expect(d.AwaitLog(GinkgoTB(), "DHCPRELEASE(lan0)", addr)).NotTo(ContainSubstring("unknown"))
		Eventually(d.HasLease).WithArguments(addr).Should(BeFalse())
	})

	It("a lease is requested again after a restart, and a wrong lease is refused", func() {
		b := newTestbed()
		d := b.startDnsmasq("--dhcp-authoritative")
		l := b.obtain()
		again, err := b.client.Reboot(limit(), l.Address.Addr())
		Expect(err).NotTo(HaveOccurred())
		Expect(again.Address).To(Equal(l.Address))
		d.AwaitLog(GinkgoTB(), "DHCPACK(lan0)")
		d.AwaitLog(GinkgoTB(), "DHCPACK(lan0)", l.Address.Addr().String())
		_, err = b.client.Reboot(limit(), netip.MustParseAddr("10.77.0.1"))
		Expect(err).To(MatchError(dhcp.ErrNAK))
		d.AwaitLog(GinkgoTB(), "DHCPNAK(lan0)", "10.77.0.1")
	})

	It("a declined address is not offered again", func() {
		b := newTestbed()
		d := b.startDnsmasq()
		l := b.obtain()
		Expect(b.client.Decline(limit(), l)).To(Succeed())
		d.AwaitLog(GinkgoTB(), "DHCPDECLINE(lan0)", l.Address.Addr().String())
		Expect(b.obtain().Address).NotTo(Equal(l.Address))
	})

	It("an identifier of 255 bytes is sent and recognized", func() {
		b := newTestbed()
		d := b.startDnsmasq()
		b.client.ID = append([]byte{0}, make([]byte, 254)...)
		for i := range b.client.ID[1:] {
			b.client.ID[i+1] = 'x'
		}
		first := b.obtain()
		b.client.MAC, b.client.Broadcast = "\x02\x00\x00\x00\x00\x09", true // the same client with another interface
		Expect(b.obtain().Address).To(Equal(first.Address))
		d.AwaitLog(GinkgoTB(), "DHCPACK(lan0)", "02:00:00:00:00:09")
	})

	It("30 clients get leases at the same time", func() {
		b := newTestbed()
		nstest.StartDnsmasq(GinkgoTB(), nstest.End{In: b.server, Name: "lan0"}, "--dhcp-range=10.8.0.50,10.8.0.199,255.255.255.0,120s")
		ctx := limit()
		leases := make(chan netip.Addr)
		for i := range 30 {
			c := *b.client
			c.ID = []byte{0, byte(i)}
			go func() {
				for {
					// dnsmasq offers one address to several clients, and refuses all but one of them.
					offer, err := c.Discover(ctx)
					l := dhcp.Lease{}
					if err == nil {
						l, err = c.Accept(ctx, offer)
					}
					if !errors.Is(err, dhcp.ErrNAK) {
						leases <- l.Address.Addr()
						return
					}
				}
			}()
		}
		all := map[netip.Addr]bool{}
		for range 30 {
			all[<-leases] = true
		}
		Expect(all).To(HaveLen(30))
		Expect(all).NotTo(HaveKey(netip.Addr{}))
	})
})
