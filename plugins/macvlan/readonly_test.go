package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = It("ADD succeeds and warns with a read-only /proc/sys", func() {
	b := newBed()
	c := b.call("c1", nstest.New(GinkgoTB()), conf("1.1.0", onUplink, staticDual))
	nstest.ReadOnlySysctls(GinkgoTB())
	reply := run(c, "ADD").OK(GinkgoTB())
	Expect(reply.Stderr).To(ContainSubstring("warning: sysctls that cannot be written keep their values (read-only file system): "))
	c.Config = withPrev(c.Config, reply)
	run(c, "CHECK").OK(GinkgoTB())
	run(c, "DEL").OK(GinkgoTB())
})
