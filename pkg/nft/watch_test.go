package nft_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("WatchDeletions", func() {
	It("reports deleted tables, sets and maps, but no elements, rules or new objects, until the handle is closed", func() {
		host, tb := nstest.NewHost(GinkgoTB()), GinkgoTB()
		h, err := ns.Open(host.Path(), nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(connect(host, nil).Ensure(tableLayout().WithChains(subnetChain(subnet)))).To(Succeed())
		deletions, err := nft.WatchDeletions(h)
		Expect(err).NotTo(HaveOccurred())

		c := connect(host, nil)
		Expect(add(c, element(addr, owner))).To(Succeed())
		Expect(del(c, element(addr, owner))).To(Succeed())
		host.MustLine(tb, "nft add set inet plumb other { type ipv4_addr; }")
		host.MustLine(tb, "nft add table ip foreign")
		host.MustLine(tb, "nft delete table ip foreign")
		host.MustLine(tb, "nft delete set inet plumb other")
		host.MustLine(tb, "nft flush ruleset")
		var received []nft.Deletion
		for table := range deletions {
			received = append(received, table)
			if table.Table.Name == "plumb" {
				break
			}
		}
		Expect(received).To(Equal([]nft.Deletion{
			{Table: nft.Table{Family: nft.IPv4, Name: "foreign"}}, {Set: "other"}, {Set: "masq4"}, {Set: "masq6"}, {Table: table},
		}))

		Expect(h.Close()).To(Succeed())
		Eventually(deletions).WithTimeout(10 * time.Second).Should(BeClosed())
	})
})
