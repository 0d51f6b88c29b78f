package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("an interface of another kind", Label(nstest.Kernel), func() {
	DescribeTable("is shaped in the container, and DEL restores it", func(link string) {
		bed := newTestbed()
		outside := nstest.NewHost(GinkgoTB()).Named("outside")
		nstest.Join(GinkgoTB(), nstest.End{In: bed.host, Name: "up0"}, nstest.End{In: outside, Name: "up0"})
		_, err := bed.host.Exec("ip", strings.Fields("link add link up0 name kind0 type "+link)...)
		nstest.RequireFeature(GinkgoTB(), link, err)
		bed.host.Batch(GinkgoTB(), "link set kind0 netns "+bed.container.Path()+" name eth0")
		bed.container.Batch(GinkgoTB(), "link set eth0 up", "addr add "+containerV4+"/24 dev eth0")
		outsideDev := "up0"
		if strings.HasPrefix(link, "vlan") {
			outside.Batch(GinkgoTB(), "link add link up0 name up0.5 type "+link, "link set up0.5 up")
			outsideDev = "up0.5"
		}
		outside.Batch(GinkgoTB(), "addr add "+hostV4+"/24 dev "+outsideDev)
		bed.prev = bed.result("")
		before := bed.shape()

		keys := rates(8_000_000, 8_000_000, 8_000_000)
		bed.run("ADD", keys).OK(GinkgoTB())
		bed.run("CHECK", keys).OK(GinkgoTB())
		nstest.ServeTCP(GinkgoTB(), outside, hostV4+":80")
		nstest.MustDial(GinkgoTB(), bed.container, hostV4+":80", containerV4)
		for _, dev := range []string{"eth0", ifbX} {
			Expect(bed.container.Must(GinkgoTB(), "tc", "-s", "qdisc", "show", "dev", dev, "root")).
				To(And(ContainSubstring("tbf"), MatchRegexp(`Sent [1-9]`)), dev)
		}
		bed.run("DEL", keys).OK(GinkgoTB())
		Expect(bed.shape()).To(Equal(before))
	},
		Entry(nil, "vlan id 5"),
		Entry(nil, "ipvlan mode l2"),
	)

	It("is shaped if it is a dummy", func() {
		bed := newTestbed()
		_, err := bed.container.Exec("ip", "link", "add", "eth0", "type", "dummy")
		nstest.RequireFeature(GinkgoTB(), "dummy", err)
		bed.container.Batch(GinkgoTB(), "link set eth0 up", "addr add "+containerV4+"/24 dev eth0")
		bed.prev = bed.result("")
		before := bed.shape()
		keys := rates(8_000_000, 8_000_000, 8_000_000)
		bed.run("ADD", keys).OK(GinkgoTB())
		bed.run("CHECK", keys).OK(GinkgoTB())
		Expect(bed.container.Must(GinkgoTB(), "tc", "qdisc", "show", "dev", "eth0")).To(And(ContainSubstring("tbf"), ContainSubstring("ingress")))
		bed.run("DEL", keys).OK(GinkgoTB())
		Expect(bed.shape()).To(Equal(before))
	})
})
