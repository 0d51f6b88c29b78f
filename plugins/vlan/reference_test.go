package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("beside the reference plugin", Label(nstest.Kernel), func() {
	It("checks and deletes the reference plugin's attachments, and the reference plugin plumb's", func() {
		b := newTaggedTestbed()
		ipam := strings.TrimSuffix(b.HostLocal(), "}") + `,"routes":[{"dst":"0.0.0.0/0","gw":"198.18.0.2"}]}`
		b.RequireSwap("vlan", b.NewCall(conf("1.0.0", in100+`,"mtu":1400`, ipam)))
	})
})
