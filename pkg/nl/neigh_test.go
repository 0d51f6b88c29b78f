package nl_test

import (
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("AddNeighbor", func() {
	It("adds or replaces an entry in the state STALE", func() {
		a, b := nstest.NewHostAndContainer(GinkgoTB())
		nstest.Join(GinkgoTB(), nstest.End{In: a, Name: "eth0", Addrs: []string{"10.0.0.1/24"}}, nstest.End{In: b, Name: "eth0"})
		c := connect(a, nil)
		l, err := c.Link("eth0")
		Expect(err).NotTo(HaveOccurred())
		Expect(c.AwaitRunning(l, 5*time.Second)).To(Succeed())
		for range 2 { // the second call replaces the entries
			Expect(c.AddNeighbor(l, netip.MustParseAddr("10.0.0.2"), nl.RandomMAC())).To(Succeed())
			Expect(c.AddNeighbor(l, netip.MustParseAddr("fe80::2"), "\x02\x00\x00\x00\x00\x02")).To(Succeed())
		}
		Expect(a.Must(GinkgoTB(), "ip", "-4", "neigh")).To(MatchRegexp(`^10\.0\.0\.2 dev eth0 lladdr [0-9a-f:]{17} STALE \n$`))
		Expect(a.Must(GinkgoTB(), "ip", "-6", "neigh")).To(Equal("fe80::2 dev eth0 lladdr 02:00:00:00:00:02 STALE \n"))
	})
})
