package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("host-access", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("drops the packets of a container that has renamed its interface, after the ruleset was flushed", func() {
		c := b.Attach(b.newCall(""))
		b.Host.IP("addr add 203.0.113.77/32 dev lo")
		c.Container.Batch(GinkgoTB(), "link set eth0 down", "link set eth0 name foo", "link set foo up", "link set lo up", "addr add "+nstest.ContainerV4+"/32 dev lo",
			"rule flush", "rule add lookup main", "route add 203.0.113.77/32 via 169.254.113.1 dev h-eth0 onlink src "+nstest.ContainerV4)
		server := nstest.ServeTCP(GinkgoTB(), b.Host, "203.0.113.77:0").String()
		b.Host.Must(GinkgoTB(), "nft", "flush ruleset")
		nstest.MustDial(GinkgoTB(), c.Container, server, nstest.ContainerV4)
		b.Fails("REPAIR", c, types.CodeChanged, "the container has no interface eth0")
		nstest.MustNotAnswer(GinkgoTB(), c.Container, server)
		b.OK("DEL", c)
		b.expectNothing()
	})

	It("restores what CHECK reports", func() {
		c := b.Attach(b.newCall(""))
		hostEnd := b.hostEnd()
		b.Omit = []string{"/conf/"} // no test of the sysctls' order
		for line, text := range map[string]string{
			"link set " + hostEnd + " down":                                               "interface " + hostEnd + " is down",
			"route flush table 11300 dev " + hostEnd:                                      "interface " + hostEnd + " has no route 198.18.0.50/32 via 169.254.113.1 table 11300",
			"-6 route flush table 11300":                                                  "has no route 2001:db8:18::50/128",
			"rule del iif lo lookup 11300":                                                "no rule -4 iif lo lookup 11300",
			"neigh del 169.254.113.1 dev " + hostEnd:                                      "interface " + hostEnd + " has no permanent neighbor entry 169.254.113.1",
			"neigh replace fe80::1 lladdr 02:00:00:00:00:01 nud permanent dev " + hostEnd: "has no permanent neighbor entry fe80::1",
		} {
			By("after " + line)
			b.RequireRepair(c, func() { b.Host.IP(line) }, text)
		}
		for script, text := range map[string]string{
			"delete table inet plumb":                    "set host_access of table inet plumb has no element for the host access of " + hostEnd,
			"flush set inet plumb host_access4":          "set host_access4 of table inet plumb has no element",
			"flush chain inet plumb host_access_input":   "chain host_access_input of table inet plumb is missing or lacks rules",
			"flush chain inet plumb host_access_forward": "chain host_access_forward of table inet plumb is missing or lacks rules",
			"add element inet plumb host_access4 { " + hostEnd + ` . 192.0.2.8 . 192.0.2.9 comment "net1/one/eth0" }`: "set host_access4 of table inet plumb lets packets pass that are not wanted",
		} {
			By("after nft " + script)
			b.RequireRepair(c, func() { b.Host.Must(GinkgoTB(), "nft", script) }, text)
		}
		for line, text := range map[string]string{
			"link set h-eth0 down":               "interface h-eth0 is down",
			"rule del from 198.18.0.50":          "no rule -4 from 198.18.0.50 iif lo lookup ",
			"neigh del 169.254.113.1 dev h-eth0": "interface h-eth0 has no permanent neighbor entry",
		} {
			By("in the container after " + line)
			b.RequireContainerRepair(c, func() { c.Container.IP(line) }, text)
		}
		By("after the address of the parent has changed")
		b.Host.Batch(GinkgoTB(), "addr del "+nstest.HostV4+"/24 dev "+nstest.Uplink, "addr add 198.18.0.3/24 dev "+nstest.Uplink)
		b.Fails("CHECK", c, types.CodeChanged, "interface h-eth0 has no route 198.18.0.3/32", "set host_access4")
		b.OK("REPAIR", c.OnContainerSide())
		b.dial(c.Container, [2]string{"198.18.0.3", nstest.ContainerV4})
		Expect(c.Container.IP("route show table all")).To(And(ContainSubstring("198.18.0.3 "), Not(ContainSubstring(nstest.HostV4+" "))))
		Expect(b.elements()).NotTo(ContainSubstring(nstest.HostV4 + " "))
		b.Host.Batch(GinkgoTB(), "addr flush dev "+nstest.Uplink)
		b.Fails("CHECK", c, types.CodeChanged, "no address of the host in [] has the family")
		b.RequireNoRepair(c, func() { c.Container.IP("link del h-eth0") }, "h-eth0")
		b.OK("DEL", c)
		b.expectNothing()
	})

	DescribeTable("DEL needs only the attachment", func(change func(c nstest.Call) nstest.Call) {
		c := b.newCall("")
		b.OK("ADD", c)
		b.OK("DEL", change(c))
		b.expectNothing()
		if c.Container.FD() >= 0 {
			b.OK("DEL", c)
			Expect(c.Container.IP("rule")).NotTo(ContainSubstring("300:"))
		}
	},
		Entry("without prevResult", func(c nstest.Call) nstest.Call { c.Config = nstest.Conf("host-access", "1.1.0", "", ""); return c }),
		Entry("without a namespace", func(c nstest.Call) nstest.Call { c.Container = nil; return c }),
		Entry("with an invalid configuration", func(c nstest.Call) nstest.Call {
			c.Config, c.Container = nstest.Conf("host-access", "1.1.0", `"hostAddresses":[5]`, ""), nil
			return c
		}),
		Entry("after the container", func(c nstest.Call) nstest.Call { c.Container.Remove(GinkgoTB()); return c }),
		Entry("without the alias and a namespace", func(c nstest.Call) nstest.Call {
			b.Host.Must(GinkgoTB(), "ip", "link", "set", b.hostEnd(), "alias", "")
			c.Container = nil
			return c
		}),
		Entry("without the alias and the elements", func(c nstest.Call) nstest.Call {
			b.Host.Must(GinkgoTB(), "ip", "link", "set", b.hostEnd(), "alias", "")
			b.Host.Must(GinkgoTB(), "nft", "flush", "ruleset")
			return c
		}),
	)

	It("does not delete a veth of another program that has its name", func() {
		c := b.newCall("")
		b.OK("ADD", c)
		name := b.hostEnd()
		b.OK("DEL", c)
		b.Host.IP("link add " + name + " type veth peer name other0")
		b.OK("ADD", c)
		b.OK("DEL", c)
		b.OK("DEL", c)
		Expect(b.Host.IP("-br link show type veth")).To(And(ContainSubstring(name+"@other0"), ContainSubstring("other0@"+name)))
		Expect(strings.Count(b.Host.IP("-br link show type veth"), "veth")).To(Equal(2), "only the other program's pair")
	})

	It("deletes the pairs of invalid attachments in GC", func() {
		b.OK("ADD", b.newCall(""))
		gc := func(valid string) {
			GinkgoHelper()
			b.OK("GC", b.Call("", nil, nstest.Conf("host-access", "1.1.0", `"cni.dev/valid-attachments":[`+valid+`]`, "")))
		}
		gc(`{"containerID":"one","ifname":"eth0"}`)
		Expect(b.elements()).To(ContainSubstring(b.hostEnd()))
		gc("")
		b.expectNothing()
	})

	It("leaves nothing if any step of ADD, DEL or REPAIR fails", func() {
		containers := 0
		nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
			Plugin: plugin(),
			Config: `{"cniVersion":"1.1.0","name":"net1","type":"host-access","hostAddresses":["198.18.0.1","2001:db8:18::1"],"prevResult":{"cniVersion":"1.1.0",` +
				`"interfaces":[{"name":"eth0","sandbox":"/any"}],"ips":[{"interface":0,"address":"198.18.0.50/24"},{"interface":0,"address":"198.18.0.51/24"},` +
				`{"interface":0,"address":"2001:db8:18::50/64"},{"interface":0,"address":"2001:db8:18::51/64"}]}}`,
			Prepare: func(host, _ *nstest.NS) {
				host.Batch(GinkgoTB(), "addr add 198.18.0.1/32 dev lo", "addr add 2001:db8:18::1/128 dev lo")
			},
			PrepareContainer: func(container *nstest.NS) {
				suffix := fmt.Sprint(50 + containers%2)
				containers++
				container.Batch(GinkgoTB(), "link add eth0 type veth peer name eth1", "link set eth0 up", "link set eth1 up",
					"addr add 198.18.0."+suffix+"/24 dev eth0", "addr add 2001:db8:18::"+suffix+"/64 dev eth0 nodad")
			},
			Damage: []string{"ip route flush table 11300", "nft delete table inet plumb"},
		})
	})

	It("rejects what it cannot serve", func() {
		b.Watch = append(b.Watch, b.Host)
		for value, text := range map[string]string{
			`[]`:                         "hostAddresses must not be an empty list",
			`["10.0.0.1/32"]`:            `hostAddresses[0] "10.0.0.1/32" must be an IP address of the host`,
			`["::ffff:10.0.0.1"]`:        `hostAddresses[0] "::ffff:10.0.0.1" must be an IP address of the host`,
			`["127.0.0.1"]`:              `hostAddresses[0] "127.0.0.1" must not be a loopback`,
			`["fe80::1"]`:                `hostAddresses[0] "fe80::1" must not be a loopback, link-local`,
			`["198.18.0.1","x"]`:         `hostAddresses[1] "x" must be an IP address`,
			`["0.0.0.0"]`:                `hostAddresses[0] "0.0.0.0" must not be`,
			`["fd00::1","fd00::1"]`:      `hostAddresses[1] "fd00::1" is listed twice`,
			`["198.18.0.1","192.0.2.1"]`: "hostAddresses[1] 192.0.2.1 is not an address of the host",
		} {
			b.Refuse(b.newCall(`"hostAddresses":`+value), types.CodeConfig, text)
		}
		listed := func(address string) string {
			return nstest.Conf("host-access", "1.1.0", `"hostAddresses":["`+address+`"]`, "")
		}
		b.RequireStatus(listed("192.0.2.1"), "hostAddresses[0] 192.0.2.1 is not an address of the host")
		b.RequireStatus(listed(nstest.HostV4), "")

		c := b.newCall("")
		c.IfName = "eth9"
		b.Refuse(c, types.CodeConfig, "the container has no interface eth9; list host-access after the plugin that creates it")
		c = b.newCall("")
		c.Config = strings.Replace(c.Config, `"interfaces":[`, `"interfaces":[{"name":"tap0","sandbox":"one"},`, 1)
		b.Refuse(c, types.CodeConfig, "prevResult contains an interface of a virtual machine")
		c = b.newCall("")
		c.Container.Batch(GinkgoTB(), "addr flush dev eth0")
		b.Refuse(c, types.CodeConfig, "interface eth0 has no permanent address")
		c = b.newCall("")
		c.Container.IP("link add h-eth0 type veth peer name other0")
		b.Refuse(c, types.CodeConfig, `interface "h-eth0" already exists in container`)

		b.Host.IP("addr add " + nstest.ContainerV4 + "/32 dev lo")
		b.Refuse(b.newCall(""), types.CodeConfig, nstest.ContainerV4+", the container's address, is also an address of the host")
		b.Host.Batch(GinkgoTB(), "addr del "+nstest.ContainerV4+"/32 dev lo", "addr add "+nstest.HostV4+"/16 dev "+nstest.Uplink)
		c = b.Attach(b.newCall(""))
		second := b.newCall("")
		second.ContainerID = "two"
		b.Refuse(second, types.CodeConfig, "another attachment has the same address")
		b.OK("DEL", c)
		b.Host.IP("-4 addr flush dev " + nstest.Uplink)
		b.Host.IP("-6 addr flush dev " + nstest.Uplink)
		b.Refuse(b.newCall(""), types.CodeConfig, "no address of the host in [] has the family of an address of the container")
	})
})
