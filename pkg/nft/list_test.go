package nft_test

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("listing the sets of a table", func() {
	It("returns them with the types of keys and values", func() {
		c := connect(nstest.New(GinkgoTB()), nil)
		Expect(c.Sets(table)).To(BeEmpty(), "without the table")
		l := tableLayout()
		l.Sets = append(l.Sets,
			nft.Set{Name: "ports", Key: []nft.Type{nft.IPv6Addr, nft.InetProto, nft.InetService}, Data: []nft.Type{nft.IPv4Addr, nft.InetService}},
			nft.Set{Name: "allowed", Key: []nft.Type{nft.IfName, nft.EtherAddr}})
		Expect(c.Ensure(l)).To(Succeed())
		Expect(c.Sets(table)).To(ConsistOf(l.Sets))
	})

	DescribeTable("prints keys as nft does", func(k nft.Key, want string, of ...nft.Type) {
		Expect(k.Text(of)).To(Equal(want))
	},
		Entry(nil, nft.AddrKey(netip.MustParseAddr("10.1.2.3")), "10.1.2.3", nft.IPv4Addr),
		Entry(nil, nft.AddrKey(netip.MustParseAddr("fd00::2")), "fd00::2", nft.IPv6Addr),
		Entry(nil, nft.Concat(nft.ProtoKey(6), nft.PortKey(8080)), "tcp . 8080", nft.InetProto, nft.InetService),
		Entry(nil, nft.Concat(nft.ProtoKey(47), nft.PortKey(1)), "47 . 1", nft.InetProto, nft.InetService),
		Entry(nil, nft.Concat(nft.IfNameKey("veth1"), nft.MACKey(types.MAC("\x02\x00\x00\x00\x00\x01"))), `"veth1" . 02:00:00:00:00:01`, nft.IfName, nft.EtherAddr),
		Entry("of a type that is not known", nft.Key("\x01\x02"), "0x0102", nft.Type(60)),
		Entry("shorter than its type", nft.Key("\x01\x02"), "0x0102", nft.IPv4Addr),
		Entry("that cannot be printed", nft.IfNameKey("a\x01"), "0x61010000000000000000000000000000", nft.IfName),
	)
})
