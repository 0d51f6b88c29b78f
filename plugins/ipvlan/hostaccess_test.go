package main

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("hostAccess", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() { b = newIPVlanTestbed() })

	withKeys := func(keys string) string {
		if keys != "" {
			keys = "," + keys
		}
		return b.conf("1.1.0", onUplink+keys, nstest.StaticDual)
	}

	// Without hostAccess, the spec waits for an answer that must not arrive.
	It("connects the host and the container, and nothing else", func() {
		b.RequireHostAccess(func(keys string) string { return withKeys(joinKeys(`"mode":"l3"`, keys)) })
	})

	It("works in the other modes", func() {
		for _, mode := range []string{"l2", "l3s"} {
			b.RequireHostAccessDial(withKeys(`"hostAccess":true,"mode":"` + mode + `"`))
		}
	})

	It("is checked, repaired and deleted with the attachment", func() { b.RequireHostAccessVerbs(withKeys) })

	It("rejects what it cannot serve", func() {
		b.RequireHostAccessRefusals(func(keys, ipam string) string { return b.conf("1.1.0", onUplink+","+keys, ipam) })
	})
})

func joinKeys(keys, more string) string {
	if more == "" {
		return keys
	}
	return keys + "," + more
}
