package main

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("with an IPAM plugin that works over the link", func() {
	It("calls its ADD when both ends are up, and its DEL before the link is deleted", func() {
		nstest.RequireLinkForIPAM(GinkgoTB(), plugin(), `{"cniVersion":"1.1.0","name":"net1","type":"ptp","ipam":{"type":"dhcp"}}`, "ip -o link show type veth")
	})
})
