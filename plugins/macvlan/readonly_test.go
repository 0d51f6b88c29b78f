package main

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = It("ADD succeeds and warns with a read-only /proc/sys", func() {
	b := newBed()
	nstest.RequireAddOnReadOnlySysctls(GinkgoTB(), plugin(), b.call("c1", nstest.New(GinkgoTB()), conf("1.1.0", onUplink, staticDual)))
})
