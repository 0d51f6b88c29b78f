package dhcp4

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// startDnsmasq starts dnsmasq with leases of two minutes.
func (b testbed) startDnsmasq(args ...string) *nstest.Dnsmasq {
	return nstest.StartDnsmasq(GinkgoTB(), nstest.End{In: b.server, Name: "lan0"}, append(args, "--dhcp-range=10.8.0.50,10.8.0.59,255.255.255.0,120s")...)
}

var _ = Describe("with dnsmasq", func() {
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
})
