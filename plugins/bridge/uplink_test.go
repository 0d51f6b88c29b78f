package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("uplinkInterface", func() {
	const uplink = `"uplinkInterface":"uplink1",`
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "uplink1"}, nstest.End{In: b.Outside, Name: "uplink1"})
	})
	// disconnect sets the uplink down and removes its link-local addresses.
	disconnect := func() { b.Host.IP("link set uplink1 down") }
	conf := func(keys string, ranges ...string) string { return b.conf("1.1.0", keys, ranges...) }

	It("connects the containers to the segment of the interface, and DEL keeps the port", func() {
		disconnect()
		b.Outside.IP("addr replace 10.9.0.200/24 dev uplink1")
		b.Outside.IP("link set uplink1 up")
		container := newContainer()
		reply := b.OK("ADD", b.Call("one", container, conf(uplink, v4range)))
		nstest.ServeTCP(GinkgoTB(), b.Outside, "10.9.0.200:80")
		nstest.MustDial(GinkgoTB(), container, "10.9.0.200:80", "10.9.0.2")
		c := b.Call("one", container, nstest.WithPrevResult(conf(uplink, v4range), reply.Stdout))
		b.OK("CHECK", c)
		for command, text := range map[string]string{
			"link set uplink1 nomaster": "interface uplink1 is not a port of bridge cni0",
			"link set uplink1 down":     "port uplink1 is down",
		} {
			b.Host.IP(command)
			b.Fails("CHECK", c, types.CodeChanged, text)
			b.OK("REPAIR", c)
			b.OK("CHECK", c)
		}
		b.OK("DEL", c)
		Expect(b.Host.IP("link show uplink1")).To(ContainSubstring("master cni0"))
		b.OK("ADD", b.Call("two", newContainer(), conf(uplink, v4range)))
	})

	It("lets containers accept router advertisements, as a port of another program does, until the port is removed", func() {
		disconnect()
		b.RequireAutoconfiguration(conf(uplink, v4range), "uplink1")
		for id, want := range map[string]string{"port": "1", "none": "0"} {
			b.Host.IP("link del cni0")
			b.Host.IP("link add cni0 up type bridge")
			if id == "port" {
				b.Host.IP("link set uplink1 master cni0")
			}
			container := newContainer()
			b.Add(b.Call(id+"1", newContainer(), conf("", v4range)))
			b.Add(b.Call(id+"2", container, conf("", v4range)))
			Expect(container.Sysctl(GinkgoTB(), "net/ipv6/conf/eth0/accept_ra")).To(Equal(want), id)
		}
	})

	DescribeTable("is rejected, and ADD changes nothing, if the interface", func(line, name, text string) {
		disconnect()
		if line != "" {
			b.Host.Batch(GinkgoTB(), strings.Split(line, "; ")...)
		}
		keys := strings.Replace(uplink, "uplink1", name, 1)
		before := b.Host.IP("-d link show")
		b.Fails("ADD", b.NewCall(conf(keys)), types.CodeConfig, text)
		Expect(b.Host.IP("-d link show")).To(Equal(before))
		b.RequireStatus(conf(keys), text)
	},
		Entry("does not exist", "", "absent", "uplinkInterface: "),
		Entry("has an address", "addr add 10.7.0.1/24 dev uplink1", "uplink1", "uplinkInterface uplink1 has the address 10.7.0.1/24"),
		Entry("has a default route", "link set uplink1 up; route add default dev uplink1 metric 7", "uplink1", "uplinkInterface uplink1 has the route 0.0.0.0/0"),
		Entry("is a port of another bridge", "link add br7 type bridge; link set uplink1 master br7", "uplink1", "uplinkInterface uplink1 is already a port of another interface"),
	)

	It("names an interface that the kernel does not accept as a port", func() {
		b.Host.Batch(GinkgoTB(), "link add br7 type bridge")
		b.Fails("ADD", b.NewCall(conf(`"uplinkInterface":"br7",`)), types.CodeConfig, "uplinkInterface br7 cannot be a port of a bridge")
	})

	It("does not count as a port of another program", func() {
		disconnect()
		b.Add(b.Call("one", newContainer(), conf(uplink)))
		b.Add(b.Call("two", newContainer(), conf(uplink+`"groupFwdMask":16384,`)))
	})

	It("is a tagged member of the containers' VLANs", Label(nstest.Kernel), func() {
		nstest.RequireFeature(GinkgoTB(), "bridge VLAN filtering", vlanFiltering())
		disconnect()
		b.Outside.Batch(GinkgoTB(), "link set uplink1 up", "link add link uplink1 name vlan100 type vlan id 100", "addr add 10.9.0.200/24 dev vlan100", "link set vlan100 up")
		container := newContainer()
		keys := uplink + `"vlan":100,"vlanTrunk":[{"id":200}],`
		reply := b.OK("ADD", b.Call("one", container, conf(keys, v4range)))
		nstest.ServeTCP(GinkgoTB(), b.Outside, "10.9.0.200:80")
		nstest.MustDial(GinkgoTB(), container, "10.9.0.200:80", "10.9.0.2")
		c := b.Call("one", container, nstest.WithPrevResult(conf(keys, v4range), reply.Stdout))
		b.OK("CHECK", c)
		b.Host.MustLine(GinkgoTB(), "bridge vlan del dev uplink1 vid 200")
		b.Fails("CHECK", c, types.CodeChanged, "port uplink1 is not in")
		b.OK("REPAIR", c)
		b.OK("CHECK", c)
	})
})
