package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("an interface of another kind", Label(nstest.Kernel), func() {
	DescribeTable("has the settings after ADD, and the former ones after DEL", func(link string) {
		host, container := nstest.NewHostAndContainer(GinkgoTB())
		container.Batch(GinkgoTB(), "link add base type veth peer name far", "link set base up", "link set far up")
		_, err := container.Exec("ip", strings.Fields("link add eth0 address 02:00:00:00:00:01 "+link)...)
		nstest.RequireFeature(GinkgoTB(), link, err)
		container.Batch(GinkgoTB(), "link set eth0 addrgenmode none", "link set eth0 up")
		c := nstest.Call{Host: host, Container: container, Config: fmt.Sprintf(
			`{"cniVersion": "1.1.0", "name": "net", "type": "tuning", "dataDir": %q, %s, "prevResult": %s}`,
			GinkgoTB().TempDir(), everything, strings.ReplaceAll(prevResult, "SANDBOX", container.Path()))}
		state := func() string { return nstest.Snapshot(GinkgoTB(), container) }
		run := func(command string) { nstest.Run(machine{}.plugin(), c.With(command)).OK(GinkgoTB()) }

		before := nstest.WaitStable(state)
		run("ADD")
		run("CHECK")
		Expect(container.Must(GinkgoTB(), "ip", "link", "show", "eth0")).To(And(ContainSubstring("c2:b0:57:49:47:f1"), ContainSubstring("mtu 1454"),
			ContainSubstring("PROMISC"), ContainSubstring("ALLMULTI"), ContainSubstring("qlen 20000")))
		run("DEL")
		Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
	},
		Entry(nil, "type dummy"),
		Entry(nil, "link base type vlan id 5"),
	)
})
