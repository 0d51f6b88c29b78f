package nft_test

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

var _ = DescribeTable("Key.Text prints keys as nft does", func(k nft.Key, want string, keyTypes ...nft.Type) {
	Expect(k.Text(keyTypes)).To(Equal(want))
},
	Entry(nil, nft.AddrKey(netip.MustParseAddr("10.1.2.3")), "10.1.2.3", nft.IPv4Addr),
	Entry(nil, nft.AddrKey(netip.MustParseAddr("fd00::2")), "fd00::2", nft.IPv6Addr),
	Entry(nil, nft.Concat(nft.ProtoKey(6), nft.PortKey(8080)), "tcp . 8080", nft.InetProto, nft.InetService),
	Entry(nil, nft.Concat(nft.ProtoKey(47), nft.PortKey(1)), "47 . 1", nft.InetProto, nft.InetService),
	Entry(nil, nft.Concat(nft.IfNameKey("veth1"), nft.MACKey(types.MAC("\x02\x00\x00\x00\x00\x01"))), `"veth1" . 02:00:00:00:00:01`, nft.IfName, nft.EtherAddr),
	Entry("of an unknown type", nft.Key("\x01\x02"), "0x0102", nft.Type(60)),
	Entry("shorter than its type", nft.Key("\x01\x02"), "0x0102", nft.IPv4Addr),
	Entry("that cannot be printed", nft.IfNameKey("a\x01"), "0x61010000000000000000000000000000", nft.IfName),
)
