package nl_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("WatchChanges", func() {
	It("reports deleted links, added and deleted addresses, and links that are set down, but no other change, until the handle is closed", func() {
		host, tb := nstest.NewHost(GinkgoTB()), GinkgoTB()
		h, err := ns.Open(host.Path(), nil)
		Expect(err).NotTo(HaveOccurred())
		changes, err := nl.WatchChanges(h)
		Expect(err).NotTo(HaveOccurred())
		host.Batch(tb, "link add cni0 type bridge", "link add port0 type veth peer name port1", "link set port0 master cni0",
			"link set cni0 up", "addr add 10.1.2.1/24 dev cni0", "link set cni0 mtu 1400")
		bridge, err := connect(host, nil).Link("cni0")
		Expect(err).NotTo(HaveOccurred())
		host.Batch(tb, "link set port0 nomaster", "addr del 10.1.2.1/24 dev cni0", "addr add 10.1.2.1/24 dev cni0",
			"link set cni0 down", "link del cni0", "link add end type bridge", "link del end")

		received := map[nl.ChangeKind]int{}
		for l := range changes {
			if l.Link.Name == "end" {
				Expect(l.Kind).To(Equal(nl.Deleted))
				break
			}
			if l.Kind == nl.AddressAdded || l.Kind == nl.AddressDeleted {
				l.Link.Name, l.Link.Kind = "cni0", "bridge" // only the index is set
			}
			Expect([]any{l.Link.Index, l.Link.Name, l.Link.Kind}).To(Equal([]any{bridge.Index, "cni0", "bridge"}), "%s", l.Kind)
			received[l.Kind]++
		}
		Expect(received).To(Equal(map[nl.ChangeKind]int{
			nl.AddressAdded: received[nl.AddressAdded], nl.AddressDeleted: received[nl.AddressDeleted], nl.SetDown: 1, nl.Deleted: 1}))
		Expect(received[nl.AddressAdded]).To(BeNumerically(">=", 2), "the address, twice")
		Expect(received[nl.AddressDeleted]).To(BeNumerically(">=", 2), "the address, and the address again with its bridge")

		Expect(h.Close()).To(Succeed())
		Eventually(changes).WithTimeout(10 * time.Second).Should(BeClosed())
	})
})
