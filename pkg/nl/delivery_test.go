package nl_test

import (
	"net/netip"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("AwaitDelivery", func() {
	It("returns when each IPv6 address has a local route", func() {
		a, b := nstest.NewHostAndContainer(GinkgoTB())
		nstest.Join(GinkgoTB(), nstest.End{In: a, Name: "eth0"}, nstest.End{In: b, Name: "eth0"})
		c := connect(a, nil)
		l, err := c.Link("eth0")
		Expect(err).NotTo(HaveOccurred())
		for i := range 20 {
			ip := netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i + 1)})
			ll := netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: byte(i + 1)})
			for _, a := range []netip.Addr{ip, ll} {
				Expect(c.AddAddr(l, nl.Addr{Prefix: netip.PrefixFrom(a, 128), NoDAD: true})).To(Succeed())
			}
			Expect(c.AwaitDelivery(l, []netip.Addr{netip.MustParseAddr("10.0.0.1"), ip, ll}, 5*time.Second)).To(Succeed())
			routes := a.Must(GinkgoTB(), "ip", "-6", "route", "show", "table", "local")
			Expect(routes).To(And(ContainSubstring("local %s ", ip), ContainSubstring("local %s ", ll)))
		}
	})

	It("returns an error that names an address without a local route", func() {
		a, b := nstest.NewHostAndContainer(GinkgoTB())
		nstest.Join(GinkgoTB(), nstest.End{In: a, Name: "eth0"}, nstest.End{In: b, Name: "eth0"})
		a.Must(GinkgoTB(), "ip", "-6", "route", "add", "default", "dev", "eth0")
		c := connect(a, nil)
		l, err := c.Link("eth0")
		Expect(err).NotTo(HaveOccurred())
		err = c.AwaitDelivery(l, []netip.Addr{netip.MustParseAddr("fd00::1")}, 50*time.Millisecond)
		Expect(err).To(MatchError(os.ErrDeadlineExceeded))
		Expect(err).To(MatchError(ContainSubstring("await delivery to eth0: not within 50ms: fd00::1 is not in the routing table")))
	})
})
