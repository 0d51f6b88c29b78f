package nft_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("Chains", func() {
	It("reports which chains drop the packets that the host forwards", func() {
		host := nstest.NewHost(GinkgoTB())
		c := connect(host, nil)
		Expect(c.Chains(nft.Table{})).To(BeEmpty())
		for _, chain := range []string{
			"inet one { chain drops { type filter hook forward priority 0; policy drop; }; }",
			"ip filter { chain FORWARD { type filter hook forward priority 0; }; chain none { }; }",
			"ip6 two { chain in { type filter hook input priority 0; policy drop; }; }",
			"bridge three { chain frames { type filter hook forward priority 0; policy drop; }; }",
		} {
			host.Must(GinkgoTB(), "nft", "table "+chain)
		}
		Expect(c.Chains(nft.Table{})).To(ConsistOf(
			nft.ListedChain{Table: nft.Table{Family: nft.Inet, Name: "one"}, Name: "drops", Drops: true},
			nft.ListedChain{Table: nft.Table{Family: nft.IPv4, Name: "filter"}, Name: "FORWARD"},
			nft.ListedChain{Table: nft.Table{Family: nft.IPv4, Name: "filter"}, Name: "none"},
			nft.ListedChain{Table: nft.Table{Family: nft.IPv6, Name: "two"}, Name: "in"},
		))
	})
})
