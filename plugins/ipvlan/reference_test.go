package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("beside the reference plugin", Label(nstest.Kernel), func() {
	DescribeTable("checks and deletes the reference plugin's attachments, and the reference plugin plumb's", func(mode string) {
		b := newIPVlanTestbed()
		b.Dirs = nil // the reference plugin leaves plumb's record
		ipam := strings.TrimSuffix(b.HostLocal(), "}") + `,"routes":[{"dst":"0.0.0.0/0"}]}`
		c := b.NewCall(b.conf("1.0.0", onUplink+`,"mtu":1400,"mode":"`+mode+`"`, ipam))
		b.RequireSwap("ipvlan", c)
	}, EntryDescription("mode %s"), Entry(nil, "l2"), Entry(nil, "l3"), Entry(nil, "l3s"))
})
