package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("host-access", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	setRPFilter := func(value string) {
		for _, dev := range []string{"all", "default", nstest.Uplink} {
			b.Host.SetSysctl(GinkgoTB(), "net/ipv4/conf/"+dev+"/rp_filter", value)
		}
	}

	// Without host-access, the spec waits for an answer that must not arrive.
	It("connects the host and the container, and returns prevResult", func() {
		setRPFilter("1")
		for _, dev := range []string{"all", "default", nstest.Uplink} {
			b.Host.SetSysctl(GinkgoTB(), "net/ipv4/conf/"+dev+"/arp_ignore", "1")
			b.Host.SetSysctl(GinkgoTB(), "net/ipv4/conf/"+dev+"/arp_announce", "2")
		}
		c := b.newCall("")
		nstest.MustNotAnswer(GinkgoTB(), b.Host, nstest.ServeTCP(GinkgoTB(), c.Container, nstest.ContainerV4+":0").String())
		b.OK("ADD", c)
		b.OK("DEL", c)
		restored := b.Restored(b.Host, c.Container) // with what all attachments share
		result := b.Add(c)
		Expect(result.Interfaces).To(HaveExactElements(HaveField("Name", "eth0")))
		b.dialBoth(c.Container)
		b.OK("CHECK", c)
		Expect(b.Host.IP("link show " + b.hostEnd())).To(ContainSubstring("alias plumb:net1/one/eth0"))
		b.OK("DEL", c)
		b.expectNothing()
		restored()
	})

	It("drops what is not from an address of the attachment to a listed address", func() {
		b.Host.SetForwarding(GinkgoTB(), "1")
		third := nstest.NewHost(GinkgoTB()).Named("third")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "third0", Addrs: []string{"203.0.113.1/24", "2001:db8:113::1/64"}},
			nstest.End{In: third, Name: "third0", Addrs: []string{"203.0.113.2/24", "2001:db8:113::2/64"}})
		third.Batch(GinkgoTB(), "route add default via 203.0.113.1", "route add default via 2001:db8:113::1")
		c := b.Attach(b.newCall(""))
		c.Container.Batch(GinkgoTB(), "link set lo up", "addr add 198.51.100.8/32 dev lo", "addr add 2001:db8:8::8/128 dev lo",
			"route add 203.0.113.0/24 via 169.254.113.1 dev h-eth0 onlink", "route add 2001:db8:113::/64 via fe80::1 dev h-eth0")
		b.Host.Batch(GinkgoTB(), "route add 198.51.100.8/32 via 169.254.113.1 dev "+b.hostEnd()+" onlink", "route add 2001:db8:8::8/128 via fe80::1 dev "+b.hostEnd())
		count := func(n *nstest.NS, rules ...string) (requireNone func()) {
			script := "add table inet probe; add chain inet probe in { type filter hook prerouting priority 0; }"
			for _, rule := range rules {
				script += "; add rule inet probe in " + rule + " counter"
			}
			n.Must(GinkgoTB(), "nft", script)
			return func() {
				Expect(n.Must(GinkgoTB(), "nft", "list", "table", "inet", "probe")).NotTo(MatchRegexp(`counter packets [1-9]`))
			}
		}
		noneAtThird := count(third, "ip saddr != 203.0.113.0/24", "ip6 saddr != { 2001:db8:113::/64, fe80::/10, :: }")
		noneInContainer := count(c.Container, "iifname h-eth0 ip saddr 203.0.113.2", "iifname h-eth0 ip6 saddr 2001:db8:113::2")
		for name, target := range map[string]struct {
			in   *nstest.NS
			addr string
		}{
			"another address of the host":      {b.Host, "203.0.113.1:0"},
			"another IPv6 address of the host": {b.Host, "[2001:db8:113::1]:0"},
			"another host":                     {third, "203.0.113.2:0"},
			"another host's IPv6 address":      {third, "[2001:db8:113::2]:0"},
		} {
			By(name)
			nstest.MustNotAnswer(GinkgoTB(), c.Container, nstest.ServeTCP(GinkgoTB(), target.in, target.addr).String())
		}
		By("a source that is not the attachment's")
		server := nstest.ServeTCP(GinkgoTB(), b.Host, nstest.HostV4+":0").String()
		nstest.MustDial(GinkgoTB(), c.Container, server, nstest.ContainerV4)
		c.Container.Batch(GinkgoTB(), "rule add pref 10 to "+nstest.HostV4+" lookup 77", "route add "+nstest.HostV4+" via 169.254.113.1 dev h-eth0 onlink src 198.51.100.8 table 77")
		nstest.MustNotAnswer(GinkgoTB(), c.Container, server)
		c.Container.IP("rule del pref 10")
		b.dialBoth(c.Container)
		By("forwarding into the pair")
		nstest.MustNotAnswer(GinkgoTB(), third, nstest.ServeTCP(GinkgoTB(), c.Container, "198.51.100.8:0").String())
		nstest.MustNotAnswer(GinkgoTB(), third, nstest.ServeTCP(GinkgoTB(), c.Container, "[2001:db8:8::8]:0").String())
		noneAtThird()
		noneInContainer()
		b.OK("CHECK", c)
		b.OK("DEL", c)
	})

	It("connects the addresses in hostAddresses, and no others", func() {
		b.Host.Batch(GinkgoTB(), "addr add 203.0.113.77/32 dev lo", "addr add 2001:db8:77::77/128 dev lo")
		c := b.Attach(b.newCall(`"hostAddresses":["203.0.113.77","2001:db8:77::77"]`))
		b.dial(c.Container, [2]string{"203.0.113.77", nstest.ContainerV4}, [2]string{"2001:db8:77::77", nstest.ContainerV6})
		Expect(c.Container.IP("route get " + nstest.HostV4)).To(ContainSubstring("dev eth0"))
		b.OK("CHECK", c)
		b.OK("DEL", c)
	})

	It("connects an interface without a parent to the addresses in hostAddresses", func() {
		container := b.NewContainer()
		container.Batch(GinkgoTB(), "link add eth0 type veth peer name eth1", "link set eth0 up", "link set eth1 up", "addr add "+nstest.ContainerV4+"/24 dev eth0")
		c := b.Call("one", container, confOf(container, "", "eth0", nstest.ContainerV4))
		b.Refuse(c, types.CodeConfig, "interface eth0 is not on an interface of the host", "set hostAddresses")
		c.Config = confOf(container, `"hostAddresses":["`+nstest.HostV4+`"]`, "eth0", nstest.ContainerV4)
		c = b.Attach(c)
		b.dial(container, [2]string{nstest.HostV4, nstest.ContainerV4})
		b.OK("CHECK", c)
		b.OK("DEL", c)
	})

	It("connects the container before the parent has a carrier", func() {
		b.Outside.IP("link set uplink0 down")
		container := nstest.New(GinkgoTB()) // with duplicate address detection
		b.Host.Must(GinkgoTB(), "ip", "link", "add", "link", nstest.Uplink, "name", "mv0", "type", "macvlan", "mode", "bridge")
		b.Host.Must(GinkgoTB(), "ip", "link", "set", "mv0", "netns", container.Path(), "name", "eth0")
		container.Batch(GinkgoTB(), "link set eth0 up", "addr add "+nstest.ContainerV4+"/24 dev eth0", "addr add "+nstest.ContainerV6+"/64 dev eth0")
		c := b.Attach(b.Call("one", container, conf(container, "")))
		b.OK("CHECK", c)
		b.dial(container, [2]string{nstest.HostV4, nstest.ContainerV4})
		b.Outside.IP("link set uplink0 up")
		server := nstest.ServeTCP(GinkgoTB(), b.Host, "["+nstest.HostV6+"]:0").String()
		Eventually(func() error { _, err := nstest.Dial(container, server); return err }).Should(Succeed())
	})

	It("serves two interfaces of one container, one of them with a long name, and keeps a third one reachable", func() {
		container := b.NewContainer()
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "cni0", Addrs: []string{"10.9.0.1/24"}}, nstest.End{In: container, Name: "net0", Addrs: []string{"10.9.0.2/24"}})
		b.Host.IP("route change 10.9.0.0/24 dev cni0 src " + nstest.HostV4)
		container.IP("route add default via 10.9.0.1")
		for _, n := range []*nstest.NS{b.Host, container} {
			n.SetSysctl(GinkgoTB(), "net/ipv4/conf/default/rp_filter", "2")
		}
		var calls []nstest.Call
		addrs := map[string]string{"eth0": "198.18.0.50", "pod6270ef7e9bb": "198.18.0.51"}
		for ifName, addr := range addrs {
			addMacvlan(b.Host, container, ifName, addr+"/24")
		}
		restored := b.Restored(container)
		for ifName, addr := range addrs {
			c := b.Call("one", container, confOf(container, "", ifName, addr))
			c.IfName = ifName
			calls = append(calls, b.Attach(c))
		}
		for i, c := range calls {
			// Without host-access, the answers from this address would be lost on the macvlan.
			nstest.MustDial(GinkgoTB(), b.Host, nstest.ServeTCP(GinkgoTB(), container, "10.9.0.2:0").String(), nstest.HostV4)
			for _, left := range calls[i:] {
				nstest.MustDial(GinkgoTB(), b.Host, nstest.ServeTCP(GinkgoTB(), container, addrs[left.IfName]+":0").String(), nstest.HostV4)
				b.OK("CHECK", left)
			}
			b.OK("DEL", c)
		}
		restored()
	})

	It("follows the address of a lease only with --container-side, because the container can add addresses", func() {
		c := b.Attach(b.newCall(""))
		c.Container.Batch(GinkgoTB(), "addr del "+nstest.ContainerV4+"/24 dev eth0", "addr add 198.18.0.61/24 dev eth0")
		b.Fails("REPAIR", c, types.CodeChanged, "address 198.18.0.61 of interface eth0 is not connected to the host")
		b.OK("REPAIR", c.OnContainerSide())
		b.OK("CHECK", c)
		b.dial(c.Container, [2]string{nstest.HostV4, "198.18.0.61"})
		Expect(b.Host.IP("route show table 11300")).NotTo(ContainSubstring(nstest.ContainerV4))
		Expect(b.elements()).NotTo(ContainSubstring(nstest.ContainerV4 + " "))
		c.Container.IP("addr add 198.18.0.62/24 dev eth0")
		b.RequireNoRepair(c, func() {}, "address 198.18.0.62 of interface eth0 is not connected to the host")
		b.OK("DEL", c)
		b.expectNothing()
	})
})
