package nft_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("Chains", func() {
	It("reports which chains drop the packets that the host forwards", func() {
		host := nstest.NewHost(GinkgoTB())
		c := connect(host, nil)
		Expect(c.AllChains()).To(BeEmpty())
		for _, chain := range []string{
			"inet one { chain drops { type filter hook forward priority 0; policy drop; }; }",
			"ip filter { chain FORWARD { type filter hook forward priority 0; }; chain none { }; }",
			"inet last { chain f { type filter hook forward priority 0; ct state established accept; counter log drop; }; }",
			"ip last { chain f { type filter hook forward priority 0; reject; }; }",
			"ip6 last { chain f { type filter hook forward priority 0; jump one; }; chain one { goto two; }; chain two { iif lo accept; reject with icmpv6 admin-prohibited; }; }",
			"inet conditional { chain f { type filter hook forward priority 0; ct state invalid drop; limit rate 9/second drop; jump back; accept; drop; }; chain back { return; drop; }; }",
			"ip6 two { chain in { type filter hook input priority 0; policy drop; }; }",
			"bridge three { chain frames { type filter hook forward priority 0; policy drop; }; }",
		} {
			host.Must(GinkgoTB(), "nft", "table "+chain)
		}
		chain := func(f nft.Family, table, name string) nft.ListedChain {
			return nft.ListedChain{Table: nft.Table{Family: f, Name: table}, Name: name}
		}
		forward := func(f nft.Family, table, name string, drop nft.DropReason) nft.ListedChain {
			ch := chain(f, table, name)
			at := nft.Forward
			ch.At, ch.Drop, ch.Discards = &at, drop, drop == nft.PolicyDrop
			return ch
		}
		in := chain(nft.IPv6, "two", "in")
		input := nft.Input
		in.At, in.Discards = &input, true
		Expect(c.AllChains()).To(ConsistOf(
			forward(nft.Inet, "one", "drops", nft.PolicyDrop),
			forward(nft.IPv4, "filter", "FORWARD", ""),
			chain(nft.IPv4, "filter", "none"),
			forward(nft.Inet, "last", "f", nft.RuleDrop),
			forward(nft.IPv4, "last", "f", nft.RuleDrop),
			forward(nft.IPv6, "last", "f", nft.RuleDrop), chain(nft.IPv6, "last", "one"), chain(nft.IPv6, "last", "two"),
			forward(nft.Inet, "conditional", "f", ""), chain(nft.Inet, "conditional", "back"),
			in,
			forward(nft.Bridge, "three", "frames", nft.PolicyDrop),
		))
	})
})
