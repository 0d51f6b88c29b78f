package main

import (
	"os"
	"regexp"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// reference is where Debian's containernetworking-plugins has its bandwidth. It is
// run as a black box; what it is known to do stands in the goldens as well.
const reference = "/usr/lib/cni/bandwidth"

// withoutSecondAction takes out what the reference plugin adds to its redirection, and no packet
// ever reaches.
func withoutSecondAction(text string) string {
	return regexp.MustCompile(`\n\n\taction order 2: .*\n\s+index 2.*`).ReplaceAllString(text, "")
}

var _ = Describe("beside the reference plugin", func() {
	var w *world

	run := func(command, keys string) nstest.Reply {
		GinkgoHelper()
		c := w.call.With(command)
		c.Config = w.config(keys)
		return nstest.Exec(GinkgoTB(), reference, c)
	}

	BeforeEach(func() {
		if _, err := os.Stat(reference); err != nil {
			Skip("containernetworking-plugins is not installed: " + err.Error())
		}
		nstest.LeakCheck(GinkgoTB())
		w = ptp()
	})

	DescribeTable("makes the same as plumb for the same configuration", func(keys string) {
		run("ADD", keys).OK(GinkgoTB())
		theirs := withoutSecondAction(tcText(w.node))
		w = ptp()
		w.run("ADD", keys).OK(GinkgoTB())
		Expect(tcText(w.node)).To(Equal(theirs))
	},
		Entry("I.5", i5),
		Entry("ingress", `"ingressRate": 1234567, "ingressBurst": 7654321`),
		Entry("egress", `"egressRate": 987654321, "egressBurst": 123456789`),
		Entry("runtimeConfig", `"runtimeConfig": {"bandwidth": {"IngressRate": 56000, "IngressBurst": 80000, "EgressRate": 8000000, "EgressBurst": 999999}}`),
		Entry("64-bit rates", rates(100e9, 40e9, 80e6)),
		Entry("low rate", rates(1000, 2000, 20000)),
	)

	DescribeTable("makes attachments that plumb checks and deletes", func(keys string) {
		before := w.shape()
		run("ADD", keys).OK(GinkgoTB())
		w.run("CHECK", keys).OK(GinkgoTB())
		w.run("DEL", keys).OK(GinkgoTB())
		Expect(w.shape()).To(Equal(before))
		run("DEL", keys).OK(GinkgoTB())
		run("ADD", keys).OK(GinkgoTB()) // without what it leaves itself, it can add again
	},
		Entry("I.5", i5), Entry("as containerd calls", fromContainerd), Entry("as CRI-O calls", rates(10e6, 20e6, crio)),
		Entry("as kubelet calls", rates(10e6, 20e6, kubelet)), Entry("less than a frame", rates(10e6, 20e6, 456)))

	It("checks and deletes attachments that plumb made", func() {
		w.run("ADD", i5).OK(GinkgoTB())
		run("CHECK", i5).OK(GinkgoTB())
		run("DEL", i5).OK(GinkgoTB())
		Expect(w.node.Must(GinkgoTB(), "ip", "-br", "link")).NotTo(ContainSubstring("bwp"))
		w.run("DEL", i5).OK(GinkgoTB()) // and what it leaves on the pair is ours to take
		Expect(tcText(w.node)).To(BeEmpty())
	})

	It("makes an attachment for which plumb refuses a second ADD", func() {
		run("ADD", i5).OK(GinkgoTB())
		f := w.run("ADD", i5).Failure(GinkgoTB())
		Expect(f.Msg).To(ContainSubstring("an earlier ADD was not followed by a DEL"))
		w.run("CHECK", i5).OK(GinkgoTB())
	})
})
