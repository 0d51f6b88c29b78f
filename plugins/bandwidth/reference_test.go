package main

import (
	"regexp"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// withoutSecondAction removes the second action of the reference plugin's redirection from the output
// of tc. No packet reaches that action.
func withoutSecondAction(text string) string {
	return regexp.MustCompile(`\n\n\taction order 2: .*\n\s+index 2.*`).ReplaceAllString(text, "")
}

var _ = Describe("the reference plugin", func() {
	var bed *testbed

	run := func(command, keys string) nstest.Reply {
		GinkgoHelper()
		c := bed.call.With(command)
		c.Config = bed.config(keys)
		return nstest.ExecReference(GinkgoTB(), "bandwidth", c)
	}

	BeforeEach(func() {
		nstest.LeakCheck(GinkgoTB())
		bed = ptp()
	})

	DescribeTable("creates the same qdiscs and filters as plumb", func(keys string) {
		run("ADD", keys).OK(GinkgoTB())
		want := withoutSecondAction(tcText(bed.host))
		bed = ptp()
		bed.run("ADD", keys).OK(GinkgoTB())
		Expect(tcText(bed.host)).To(Equal(want))
	},
		Entry("both limits", bothLimits),
		Entry("ingress", `"ingressRate": 1234567, "ingressBurst": 7654321`),
		Entry("egress", `"egressRate": 987654321, "egressBurst": 123456789`),
		Entry("runtimeConfig", `"runtimeConfig": {"bandwidth": {"IngressRate": 56000, "IngressBurst": 80000, "EgressRate": 8000000, "EgressBurst": 999999}}`),
		Entry("64-bit rates", rates(100e9, 40e9, 80e6)),
		Entry("low rate", rates(1000, 2000, 20000)),
	)

	DescribeTable("creates attachments that plumb checks and deletes", func(keys string) {
		before := bed.shape()
		run("ADD", keys).OK(GinkgoTB())
		bed.run("CHECK", keys).OK(GinkgoTB())
		bed.run("DEL", keys).OK(GinkgoTB())
		Expect(bed.shape()).To(Equal(before))
		run("DEL", keys).OK(GinkgoTB())
		run("ADD", keys).OK(GinkgoTB()) // an ADD fails if something is left
	},
		Entry("both limits", bothLimits), Entry("as containerd calls", fromContainerd), Entry("as CRI-O calls", rates(10e6, 20e6, crio)),
		Entry("as kubelet calls", rates(10e6, 20e6, kubelet)), Entry("less than a frame", rates(10e6, 20e6, 456)))

	It("creates attachments for which plumb's ADD fails", func() {
		run("ADD", bothLimits).OK(GinkgoTB())
		f := bed.run("ADD", bothLimits).Failure(GinkgoTB())
		Expect(f.Msg).To(ContainSubstring("an earlier ADD was not followed by a DEL"))
		bed.run("CHECK", bothLimits).OK(GinkgoTB())
	})
})
