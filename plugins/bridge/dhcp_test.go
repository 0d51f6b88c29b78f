package main

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("with an IPAM plugin that works over the link", func() {
	var l nstest.LinkForIPAM
	BeforeEach(func() {
		node, pod := nstest.NewNodeAndPod(GinkgoTB())
		l = nstest.LinkForIPAM{Plugin: plugin(), HostEnds: "ip -o link show master cni0", Want: 1, Call: nstest.Call{
			Node: node, Pod: pod, Config: `{"cniVersion":"1.1.0","name":"net1","type":"bridge","ipam":{"type":"dhcp"}}`,
		}}
	})
	It("calls its ADD when the port is up, and its DEL before the link is deleted", func() { l.Require(GinkgoTB(), "DEL") })
	It("calls its GC before the link is deleted", func() { l.Require(GinkgoTB(), "GC") })
})
