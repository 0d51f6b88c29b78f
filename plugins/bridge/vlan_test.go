package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

const vlan100 = `"vlan":100,`

var _ = Describe("VLANs", Label(nstest.Kernel), func() {
	var b *bed
	BeforeEach(func() {
		nstest.Need(GinkgoTB(), "bridge VLAN filtering", vlanFiltering())
		b = newBedOn(nstest.NewNode(GinkgoTB()))
		nstest.LeakCheck(GinkgoTB())
	})
	in := func(n *nstest.NS, line string) string {
		GinkgoHelper()
		words := strings.Fields(line)
		return n.Must(GinkgoTB(), words[0], words[1:]...)
	}
	// members are the VLANs of a port of the node as `bridge` shows them.
	members := func(port string) string {
		GinkgoHelper()
		_, lines, _ := strings.Cut(in(b.node, "bridge -compressvlans vlan show dev "+port), port)
		return strings.Join(strings.Fields(strings.ReplaceAll(strings.TrimSpace(lines), "\n", " , ")), " ")
	}
	// farEnd is the port that the gateway's interface is plugged in with.
	farEnd := func() string {
		GinkgoHelper()
		return regexp.MustCompile(`cni0\.100@(\S+):`).FindStringSubmatch(in(b.node, "ip link show cni0.100"))[1]
	}

	DescribeTable("has the port in", func(keys, want string) {
		conf := b.conf("1.1.0", keys)
		c := b.call("one", newPod(), conf)
		reply := run(c, "ADD").OK(GinkgoTB())
		Expect(in(b.node, "ip -d link show cni0")).To(ContainSubstring("vlan_filtering 1"))
		Expect(members(reply.Result(GinkgoTB()).Interfaces[1].Name)).To(Equal(want))
		c.Config = withPrev(conf, reply)
		run(c, "CHECK").OK(GinkgoTB())
	},
		Entry("its VLAN and not the default one", vlan100, "100 PVID Egress Untagged"),
		Entry("the default VLAN too, with preserveDefaultVlan", vlan100+`"preserveDefaultVlan":true,`,
			"1 Egress Untagged , 100 PVID Egress Untagged"),
		Entry("VLAN 1 where that is asked for", `"vlan":1,`, "1 PVID Egress Untagged"),
		Entry("a trunk, with VLAN 1 as the native one", `"vlanTrunk":[{"id":200},{"minID":300,"maxID":302}],`,
			"1 PVID Egress Untagged , 200 , 300-302"),
		Entry("a trunk beside its VLAN", vlan100+`"vlanTrunk":[{"id":200},{"minID":300,"maxID":302},{"id":100}],`,
			"100 PVID Egress Untagged , 200 , 300-302"),
		Entry("the default VLAN tagged, as part of a trunk", vlan100+`"vlanTrunk":[{"id":1}],`, "1 , 100 PVID Egress Untagged"),
		Entry("all VLANs there are", vlan100+`"vlanTrunk":[{"minID":1,"maxID":4094}],`, "1-99 , 100 PVID Egress Untagged , 101-4094"),
		Entry("the default VLAN under an empty trunk, which only turns filtering on", `"vlanTrunk":[],`, "1 PVID Egress Untagged"),
	)

	It("takes the port out of whatever VLAN is the bridge's default", func() {
		in(b.node, "ip link add cni0 type bridge vlan_filtering 1 vlan_default_pvid 5")
		one := add1(b.call("one", newPod(), b.conf("1.1.0", vlan100)))
		Expect(members(one.Interfaces[1].Name)).To(Equal("100 PVID Egress Untagged"))
		two := add1(b.call("two", newPod(), b.conf("1.1.0", `"vlanTrunk":[{"id":200}],`)))
		Expect(members(two.Interfaces[1].Name)).To(Equal("1 PVID Egress Untagged , 200"))
		three := add1(b.call("three", newPod(), b.conf("1.1.0", "")))
		Expect(members(three.Interfaces[1].Name)).To(Equal("5 PVID Egress Untagged"))
	})

	It("carries a trunk's frames tagged and the others untagged", func() {
		trunk, untagged, native := newPod(), newPod(), newPod()
		add1(b.call("trunk", trunk, b.conf("1.1.0", vlan100+`"vlanTrunk":[{"id":200}],`)))
		add1(b.call("untagged", untagged, b.conf("1.1.0", `"vlan":200,`)))
		add1(b.call("native", native, b.conf("1.1.0", vlan100)))
		_, err := trunk.Exec("ip", "link", "add", "link", "eth0", "name", "eth0.200", "type", "vlan", "id", "200")
		nstest.Need(GinkgoTB(), "8021q", err)
		trunk.Batch(GinkgoTB(), "addr add 10.200.0.1/24 dev eth0.200", "link set eth0.200 up", "addr add 10.100.0.1/24 dev eth0")
		untagged.Batch(GinkgoTB(), "addr add 10.200.0.2/24 dev eth0")
		native.Batch(GinkgoTB(), "addr add 10.100.0.2/24 dev eth0")
		nstest.ServeTCP(GinkgoTB(), untagged, "10.200.0.2:80")
		nstest.ServeTCP(GinkgoTB(), native, "10.100.0.2:80")
		nstest.MustDial(GinkgoTB(), trunk, "10.200.0.2:80", "10.200.0.1")
		nstest.MustDial(GinkgoTB(), trunk, "10.100.0.2:80", "10.100.0.1")
	})

	Describe("the gateway", func() {
		It("is an interface in the VLAN, which all its pods share, usable at once", func() {
			conf := b.conf("1.1.0", gatewayed+vlan100+`"mtu":1400,`, v4range, v6range)
			one, two, stranger := newPod(), newPod(), newPod()
			first := add1(b.call("one", one, conf))
			for _, addr := range []string{"10.9.0.1:80", "[fd00:9::1]:80"} {
				nstest.ServeTCP(GinkgoTB(), b.node, addr)
			}
			nstest.MustDial(GinkgoTB(), one, "10.9.0.1:80", "10.9.0.2")
			nstest.MustDial(GinkgoTB(), one, "[fd00:9::1]:80", "fd00:9::2")

			By("telling of it in the result")
			Expect(first.Interfaces).To(HaveLen(4))
			Expect(first.Interfaces[3]).To(And(HaveField("Name", "cni0.100"), HaveField("MTU", 1400), HaveField("Sandbox", "")))
			Expect(first.IPs).To(HaveEach(HaveField("Interface", podIndex)))

			By("plugging it in as a container, with its addresses and no bridge with any")
			Expect(members(farEnd())).To(Equal("100 PVID Egress Untagged"))
			shown := in(b.node, "ip addr show cni0.100")
			Expect(shown).To(And(ContainSubstring("inet 10.9.0.1/24"), ContainSubstring("inet6 fd00:9::1/64"), ContainSubstring("mtu 1400"),
				ContainSubstring(first.Interfaces[3].MAC.String())))
			Expect(in(b.node, "ip addr show cni0")).NotTo(Or(ContainSubstring("10.9.0.1"), ContainSubstring("fd00:9::1")))
			Expect(in(b.node, "ip link show "+farEnd())).To(ContainSubstring("master cni0"))
			for _, name := range []string{"cni0.100", farEnd()} {
				Expect(b.node.Sysctl(GinkgoTB(), "net/ipv6/conf/"+name+"/accept_ra")).To(Equal("0"), name)
			}

			By("sharing it with the next pod, and with nobody in another VLAN")
			links := in(b.node, "ip -br link")
			second := add1(b.call("two", two, conf))
			Expect(second.Interfaces[3]).To(Equal(first.Interfaces[3]))
			Expect(strings.Count(in(b.node, "ip -br link"), "\n")).To(Equal(strings.Count(links, "\n") + 1))
			add1(b.call("stranger", stranger, b.conf("1.1.0", `"vlan":200,`, v4range)))
			Expect(in(stranger, "ip -br addr show eth0")).To(ContainSubstring("10.9.0.4/24"))
			nstest.ServeTCP(GinkgoTB(), one, "10.9.0.2:80")
			nstest.ServeTCP(GinkgoTB(), one, "[fd00:9::2]:80")
			nstest.MustDial(GinkgoTB(), two, "10.9.0.1:80", "10.9.0.3")
			nstest.MustDial(GinkgoTB(), two, "10.9.0.2:80", "10.9.0.3")
			nstest.MustDial(GinkgoTB(), two, "[fd00:9::2]:80", "fd00:9::3")
			nstest.MustDial(GinkgoTB(), b.node, "10.9.0.2:80", "10.9.0.1")
			for _, addr := range []string{"10.9.0.2:80", "10.9.0.1:80"} {
				_, err := nstest.Dial(stranger, addr)
				Expect(err).To(HaveOccurred(), addr)
			}
		})

		It("is made once, whoever is first, and usable for each", func() {
			nstest.ServeTCP(GinkgoTB(), b.node, "0.0.0.0:80")
			conf := b.conf("1.1.0", gatewayed+vlan100, v4range)
			for round := range 3 {
				const count = 8
				pods, results := make([]*nstest.NS, count), make([]*types.Result, count)
				for i := range pods {
					pods[i] = newPod()
				}
				var wg sync.WaitGroup
				for i, pod := range pods {
					wg.Go(func() {
						defer GinkgoRecover()
						results[i] = add1(b.call(fmt.Sprintf("pod%d.%d", round, i), pod, conf))
						nstest.MustDial(GinkgoTB(), pod, "10.9.0.1:80", "")
					})
				}
				wg.Wait()
				for _, result := range results {
					Expect(result).NotTo(BeNil())
					Expect(result.Interfaces[3]).To(Equal(results[0].Interfaces[3]))
				}
				Expect(in(b.node, "ip link show cni0.100")).To(ContainSubstring(results[0].Interfaces[3].MAC.String()))
				Expect(members(farEnd())).To(Equal("100 PVID Egress Untagged"))
				Expect(strings.Count(in(b.node, "ip -br link show master cni0"), "\n")).To(Equal(count + 1))
				for i, pod := range pods {
					run(b.call(fmt.Sprintf("pod%d.%d", round, i), pod, conf), "DEL").OK(GinkgoTB())
				}
				in(b.node, "ip link del cni0.100")
				in(b.node, "ip link del cni0")
			}
		})

		It("is finished by the next ADD, wherever the first was stopped", func() {
			nstest.ServeTCP(GinkgoTB(), b.node, "0.0.0.0:80")
			conf := b.conf("1.1.0", gatewayed+vlan100, v4range)
			add1(b.call("warm", newPod(), conf))
			port := farEnd()
			for k := 1; ; k++ {
				in(b.node, "ip link del cni0.100")
				seen, pod := 0, newPod()
				c := b.call("stopped", pod, conf)
				c.Before = func(step string) error {
					if !strings.Contains(step, "cni0.100") && !strings.Contains(step, port) {
						return nil
					}
					if seen++; seen != k {
						return nil
					}
					return errors.New("stopped before: " + step)
				}
				reply := run(c, "ADD")
				if seen < k {
					reply.OK(GinkgoTB())
					Expect(k).To(BeNumerically(">", 8))
					break
				}
				Expect(reply.Failure(GinkgoTB()).Msg).To(ContainSubstring("stopped before"))
				c.Before = nil
				Expect(run(c, "ADD").Result(GinkgoTB()).Interfaces[3].Name).To(Equal("cni0.100"))
				nstest.MustDial(GinkgoTB(), pod, "10.9.0.1:80", "")
				Expect(members(port)).To(Equal("100 PVID Egress Untagged"))
				run(c, "DEL").OK(GinkgoTB())
			}
		})

		It("is refused where its name is another's", func() {
			in(b.node, "ip link add cni0.100 type ifb")
			f := run(b.call("one", newPod(), b.conf("1.1.0", gatewayed+vlan100, v4range)), "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
			Expect(f.Msg).To(ContainSubstring(`interface "cni0.100" exists`))
		})
	})

	Describe("a bridge that does not filter", func() {
		BeforeEach(func() { in(b.node, "ip link add cni0 up type bridge") })

		It("is made to while it has no ports", func() {
			one := add1(b.call("one", newPod(), b.conf("1.1.0", vlan100)))
			Expect(in(b.node, "ip -d link show cni0")).To(ContainSubstring("vlan_filtering 1"))
			Expect(members(one.Interfaces[1].Name)).To(Equal("100 PVID Egress Untagged"))
		})

		It("is refused while it has, and left as it is; STATUS says so", func() {
			add1(b.call("other", newPod(), b.conf("1.1.0", "")))
			conf := b.conf("1.1.0", gatewayed+vlan100, v4range)
			c := b.call("one", newPod(), conf)
			// A bridge's state follows its ports' when the kernel comes to it.
			Eventually(in).WithArguments(b.node, "ip -br link show cni0").Should(MatchRegexp(`^cni0 +UP `))
			before := taken(b.node, c.Pod)
			f := run(c, "ADD").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeConfig))
			Expect(f.Msg).To(ContainSubstring("bridge cni0 does not filter VLANs and has 1 ports in use"))
			expectAsBefore(before, b.node, c.Pod)
			f = run(nstest.Call{Node: b.node, Path: b.path, Config: conf}, "STATUS").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeNotAvailable))
			Expect(f.Msg).To(ContainSubstring("does not filter VLANs"))
		})
	})

	Describe("CHECK", func() {
		var c nstest.Call
		var host, far string
		BeforeEach(func() {
			conf := b.conf("1.1.0", gatewayed+vlan100+`"vlanTrunk":[{"id":200}],`, v4range)
			c = b.call("one", newPod(), conf)
			reply := run(c, "ADD").OK(GinkgoTB())
			host, far = reply.Result(GinkgoTB()).Interfaces[1].Name, farEnd()
			c.Config = withPrev(conf, reply)
			run(c, "CHECK").OK(GinkgoTB())
		})
		DescribeTable("names what was changed", func(line, want string) {
			named := strings.NewReplacer("HOST", host, "FAR", far)
			in(b.node, named.Replace(line))
			f := run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(codeChanged))
			Expect(f.Msg).To(ContainSubstring(named.Replace(want)))
		},
			Entry("missing VLAN", "bridge vlan del vid 100 dev HOST", "port HOST is not in vlan 100 pvid untagged"),
			Entry("missing VLAN of the trunk", "bridge vlan del vid 200 dev HOST", "port HOST is not in vlan 200"),
			Entry("tagging", "bridge vlan add vid 100 dev HOST pvid", "port HOST is not in vlan 100 pvid untagged"),
			Entry("extra VLAN", "bridge vlan add vid 50 dev HOST", "port HOST is in vlan 50"),
			Entry("extra default VLAN", "bridge vlan add vid 1 dev HOST untagged", "port HOST is in vlan 1 untagged"),
			Entry("filtering", "ip link set cni0 type bridge vlan_filtering 0", "bridge cni0 does not filter VLANs"),
			Entry("gateway's address", "ip addr del 10.9.0.1/24 dev cni0.100", "interface cni0.100 has no gateway address 10.9.0.1/24"),
			Entry("gateway's interface", "ip link del cni0.100", "find link cni0.100"),
			Entry("gateway down", "ip link set cni0.100 down", "interface cni0.100 is down"),
			Entry("gateway's port", "ip link set FAR nomaster", "interface FAR is no port of bridge cni0"),
			Entry("gateway's VLAN", "bridge vlan del vid 100 dev FAR", "port FAR is not in vlan 100 pvid untagged"),
		)

		It("grants preserveDefaultVlan the default VLAN and no other", func() {
			conf := b.conf("1.1.0", vlan100+`"preserveDefaultVlan":true,`)
			c := b.call("two", newPod(), conf)
			reply := run(c, "ADD").OK(GinkgoTB())
			c.Config = withPrev(conf, reply)
			run(c, "CHECK").OK(GinkgoTB())
			in(b.node, "bridge vlan add vid 50 dev "+reply.Result(GinkgoTB()).Interfaces[1].Name)
			Expect(run(c, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring("is in vlan 50"))
		})
	})

	It("leaves nothing after DEL, with and without the container, and after GC", func() {
		conf := b.conf("1.1.0", gatewayed+vlan100+`"vlanTrunk":[{"id":200}],"ipMasq":true,`, v4range, v6range)
		add1(b.call("warm", newPod(), conf))
		pod := newPod()
		before := taken(b.node, pod)
		run(b.call("one", pod, conf), "ADD").OK(GinkgoTB())
		run(b.call("one", pod, conf), "DEL").OK(GinkgoTB())
		expectAsBefore(before, b.node, pod)
		run(b.call("one", pod, conf), "ADD").OK(GinkgoTB())
		run(b.call("one", nil, conf), "DEL").OK(GinkgoTB())
		expectAsBefore(before, b.node, pod)
		run(b.call("one", pod, conf), "ADD").OK(GinkgoTB())
		keep := strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[{"containerID":"warm","ifname":"eth0"}]}`
		run(nstest.Call{Node: b.node, Path: b.path, Config: keep}, "GC").OK(GinkgoTB())
		expectAsBefore(before, b.node, pod)
	})
})

var _ = Describe("fault sweep over VLANs", Label(nstest.Kernel), func() {
	It("leaves nothing, whichever step fails", func() {
		nstest.Need(GinkgoTB(), "bridge VLAN filtering", vlanFiltering())
		sweep(gatewayed+vlan100+`"vlanTrunk":[{"id":200}],`, v4range)
	})
})

// vlanFiltering is the error of a kernel whose bridges cannot tell VLANs apart. It
// takes vlan_filtering without a word, and refuses the first VLAN.
func vlanFiltering() error {
	node := newPod()
	_, err := node.Exec("ip", "link", "add", "br0", "type", "bridge", "vlan_filtering", "1")
	if err == nil {
		_, err = node.Exec("bridge", "vlan", "add", "vid", "2", "dev", "br0", "self")
	}
	return err
}
