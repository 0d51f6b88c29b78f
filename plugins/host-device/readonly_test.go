package main

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = It("ADD succeeds with a warning if /proc/sys is read-only; CHECK and DEL succeed", func() {
	b := newTestbed()
	nstest.RequireAddOnReadOnlySysctls(GinkgoTB(), b.plugin(), b.call("c1", nstest.New(GinkgoTB()), conf("1.1.0", byDevice, staticDual)))
})
