package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("an interface of another kind", Label(nstest.Kernel), func() {
	DescribeTable("is shaped in the container, and DEL removes all of it", func(link string) {
		w := newWorld()
		outside := nstest.NewNode(GinkgoTB()).Named("outside")
		nstest.Join(GinkgoTB(), nstest.End{In: w.node, Name: "up0"}, nstest.End{In: outside, Name: "up0"})
		_, err := w.node.Exec("ip", strings.Fields("link add link up0 name kind0 type "+link)...)
		nstest.RequireFeature(GinkgoTB(), link, err)
		w.node.Batch(GinkgoTB(), "link set kind0 netns "+w.pod.Path()+" name eth0")
		w.pod.Batch(GinkgoTB(), "link set eth0 up", "addr add "+podV4+"/24 dev eth0")
		outsideDev := "up0"
		if strings.HasPrefix(link, "vlan") {
			outside.Batch(GinkgoTB(), "link add link up0 name up0.5 type "+link, "link set up0.5 up")
			outsideDev = "up0.5"
		}
		outside.Batch(GinkgoTB(), "addr add "+hostV4+"/24 dev "+outsideDev)
		w.prev = w.result("")
		before := w.shape()

		keys := rates(8_000_000, 8_000_000, 8_000_000)
		w.run("ADD", keys).OK(GinkgoTB())
		w.run("CHECK", keys).OK(GinkgoTB())
		nstest.ServeTCP(GinkgoTB(), outside, hostV4+":80")
		nstest.MustDial(GinkgoTB(), w.pod, hostV4+":80", podV4)
		for _, dev := range []string{"eth0", ifbX} {
			Expect(w.pod.Must(GinkgoTB(), "tc", "-s", "qdisc", "show", "dev", dev, "root")).
				To(And(ContainSubstring("tbf"), MatchRegexp(`Sent [1-9]`)), dev)
		}
		w.run("DEL", keys).OK(GinkgoTB())
		Expect(w.shape()).To(Equal(before))
	},
		Entry(nil, "vlan id 5"),
		Entry(nil, "ipvlan mode l2"),
	)

	It("is shaped without a peer on the other side", func() {
		w := newWorld()
		_, err := w.pod.Exec("ip", "link", "add", "eth0", "type", "dummy")
		nstest.RequireFeature(GinkgoTB(), "dummy", err)
		w.pod.Batch(GinkgoTB(), "link set eth0 up", "addr add "+podV4+"/24 dev eth0")
		w.prev = w.result("")
		before := w.shape()
		keys := rates(8_000_000, 8_000_000, 8_000_000)
		w.run("ADD", keys).OK(GinkgoTB())
		w.run("CHECK", keys).OK(GinkgoTB())
		Expect(w.pod.Must(GinkgoTB(), "tc", "qdisc", "show", "dev", "eth0")).To(And(ContainSubstring("tbf"), ContainSubstring("ingress")))
		w.run("DEL", keys).OK(GinkgoTB())
		Expect(w.shape()).To(Equal(before))
	})
})
