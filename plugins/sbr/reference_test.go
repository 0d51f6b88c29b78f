package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("beside the reference plugin", func() {
	var b *testbed
	var c nstest.Call

	runReference := func(command string) { // supports cniVersion up to 1.0.0
		GinkgoHelper()
		nstest.ExecReference(GinkgoTB(), "sbr", c.With(command)).OK(GinkgoTB())
	}

	BeforeEach(func() {
		b = newTestbed()
		b.container.Batch(GinkgoTB(), "route del default via 10.66.0.1 metric 100", "route prepend default via 10.66.0.1")
		c = b.call(confOf("1.0.0", "net1", "", net1Prev))
	})

	It("creates the same rules and tables, except for protocol numbers and link-local routes", func() {
		tables := func() []string {
			GinkgoHelper()
			var lines []string
			for _, text := range []string{b.container.IP("-4 rule"), b.container.IP("-6 rule"), b.table("-4", 100), b.table("-6", 101)} {
				for line := range strings.SplitSeq(text, "\n") {
					line = strings.NewReplacer(" proto 113", "", " proto 112", "", " proto kernel", "").Replace(line)
					if line != "" && !strings.HasPrefix(line, "fe80::") {
						lines = append(lines, line)
					}
				}
			}
			return lines
		}
		runReference("ADD")
		want := tables()
		b = newTestbed()
		b.container.Batch(GinkgoTB(), "route del default via 10.66.0.1 metric 100", "route prepend default via 10.66.0.1")
		c.Container = b.container
		b.OK("ADD", c)
		Expect(tables()).To(ConsistOf(want))
	})

	It("creates attachments that plumb checks and deletes", func() {
		before := b.container.IP("-4 route")
		runReference("ADD")
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(append(b.rules("-4"), b.rules("-6")...)).To(BeEmpty())
		Expect(strings.Split(b.container.IP("-4 route"), "\n")).To(ConsistOf(strings.Split(before, "\n")))
		Expect(b.container.IP("-6 route show table 101")).To(BeEmpty())
	})

	It("deletes the rules of attachments that plumb created", func() {
		b.OK("ADD", c)
		runReference("CHECK")
		runReference("DEL")
		Expect(append(b.rules("-4"), b.rules("-6")...)).To(BeEmpty())
		b.OK("DEL", c)
	})
})
