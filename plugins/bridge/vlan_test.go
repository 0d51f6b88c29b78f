package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const vlan100 = `"vlan":100,`

var _ = Describe("VLANs", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() {
		nstest.RequireFeature(GinkgoTB(), "bridge VLAN filtering", vlanFiltering())
		b = newTestbedOn(nstest.NewHost(GinkgoTB()))
	})
	// vlansOfPort returns the VLANs of a port of the host as `bridge` prints them.
	vlansOfPort := func(port string) string {
		GinkgoHelper()
		_, lines, _ := strings.Cut(b.Host.MustLine(GinkgoTB(), "bridge -compressvlans vlan show dev "+port), port)
		return strings.Join(strings.Fields(strings.ReplaceAll(strings.TrimSpace(lines), "\n", " , ")), " ")
	}
	gatewayPort := func() string {
		GinkgoHelper()
		return regexp.MustCompile(`cni0\.100@(\S+):`).FindStringSubmatch(b.Host.IP("link show cni0.100"))[1]
	}

	DescribeTable("the port is a member of", func(keys, want string) {
		conf := b.conf("1.1.0", keys)
		c := b.Call("one", newContainer(), conf)
		reply := b.OK("ADD", c)
		Expect(b.Host.IP("-d link show cni0")).To(ContainSubstring("vlan_filtering 1"))
		Expect(vlansOfPort(reply.Result(GinkgoTB()).Interfaces[1].Name)).To(Equal(want))
		c.Config = nstest.WithPrevResult(conf, reply.Stdout)
		b.OK("CHECK", c)
	},
		Entry("its VLAN, and not of the default VLAN", vlan100, "100 PVID Egress Untagged"),
		Entry("the default VLAN as well, with preserveDefaultVlan", vlan100+`"preserveDefaultVlan":true,`,
			"1 Egress Untagged , 100 PVID Egress Untagged"),
		Entry("VLAN 1, if that is configured", `"vlan":1,`, "1 PVID Egress Untagged"),
		Entry("the VLANs of the trunk, and VLAN 1 untagged", `"vlanTrunk":[{"id":200},{"minID":300,"maxID":302}],`,
			"1 PVID Egress Untagged , 200 , 300-302"),
		Entry("the VLANs of the trunk and its VLAN", vlan100+`"vlanTrunk":[{"id":200},{"minID":300,"maxID":302},{"id":100}],`,
			"100 PVID Egress Untagged , 200 , 300-302"),
		Entry("the default VLAN, tagged, if the trunk contains it", vlan100+`"vlanTrunk":[{"id":1}],`, "1 , 100 PVID Egress Untagged"),
		Entry("all 4094 VLANs", vlan100+`"vlanTrunk":[{"minID":1,"maxID":4094}],`, "1-99 , 100 PVID Egress Untagged , 101-4094"),
		Entry("the default VLAN with an empty trunk, which only enables filtering", `"vlanTrunk":[],`, "1 PVID Egress Untagged"),
	)

	It("removes the port from the bridge's default VLAN, even if that is not VLAN 1", func() {
		b.Host.IP("link add cni0 type bridge vlan_filtering 1 vlan_default_pvid 5")
		one := b.Add(b.Call("one", newContainer(), b.conf("1.1.0", vlan100)))
		Expect(vlansOfPort(one.Interfaces[1].Name)).To(Equal("100 PVID Egress Untagged"))
		two := b.Add(b.Call("two", newContainer(), b.conf("1.1.0", `"vlanTrunk":[{"id":200}],`)))
		Expect(vlansOfPort(two.Interfaces[1].Name)).To(Equal("1 PVID Egress Untagged , 200"))
		three := b.Add(b.Call("three", newContainer(), b.conf("1.1.0", "")))
		Expect(vlansOfPort(three.Interfaces[1].Name)).To(Equal("5 PVID Egress Untagged"))
	})

	It("passes the trunk's frames tagged, and all other frames untagged", func() {
		trunk, untagged, native := newContainer(), newContainer(), newContainer()
		b.Add(b.Call("trunk", trunk, b.conf("1.1.0", vlan100+`"vlanTrunk":[{"id":200}],`)))
		b.Add(b.Call("untagged", untagged, b.conf("1.1.0", `"vlan":200,`)))
		b.Add(b.Call("native", native, b.conf("1.1.0", vlan100)))
		_, err := trunk.Exec("ip", "link", "add", "link", "eth0", "name", "eth0.200", "type", "vlan", "id", "200")
		nstest.RequireFeature(GinkgoTB(), "8021q", err)
		trunk.Batch(GinkgoTB(), "addr add 10.200.0.1/24 dev eth0.200", "link set eth0.200 up", "addr add 10.100.0.1/24 dev eth0")
		untagged.Batch(GinkgoTB(), "addr add 10.200.0.2/24 dev eth0")
		native.Batch(GinkgoTB(), "addr add 10.100.0.2/24 dev eth0")
		nstest.ServeTCP(GinkgoTB(), untagged, "10.200.0.2:80")
		nstest.ServeTCP(GinkgoTB(), native, "10.100.0.2:80")
		nstest.MustDial(GinkgoTB(), trunk, "10.200.0.2:80", "10.200.0.1")
		nstest.MustDial(GinkgoTB(), trunk, "10.100.0.2:80", "10.100.0.1")
	})

	Describe("the gateway", func() {
		It("is an interface in the VLAN that all containers share, and the first packet passes", func() {
			conf := b.conf("1.1.0", gatewayed+vlan100+`"mtu":1400,`, v4range, v6range)
			one, two, stranger := newContainer(), newContainer(), newContainer()
			first := b.Add(b.Call("one", one, conf))
			for _, addr := range []string{"10.9.0.1:80", "[fd00:9::1]:80"} {
				nstest.ServeTCP(GinkgoTB(), b.Host, addr)
			}
			nstest.MustDial(GinkgoTB(), one, "10.9.0.1:80", "10.9.0.2")
			nstest.MustDial(GinkgoTB(), one, "[fd00:9::1]:80", "fd00:9::2")

			By("listing the gateway's interface in the result")
			Expect(first.Interfaces).To(HaveLen(4))
			Expect(first.Interfaces[3]).To(And(HaveField("Name", "cni0.100"), HaveField("MTU", 1400), HaveField("Sandbox", "")))
			Expect(first.IPs).To(HaveEach(HaveField("Interface", containerIndex)))

			By("adding its port to the VLAN, and the addresses to the interface and not to the bridge")
			Expect(vlansOfPort(gatewayPort())).To(Equal("100 PVID Egress Untagged"))
			shown := b.Host.IP("addr show cni0.100")
			Expect(shown).To(And(ContainSubstring("inet 10.9.0.1/24"), ContainSubstring("inet6 fd00:9::1/64"), ContainSubstring("mtu 1400"),
				ContainSubstring(first.Interfaces[3].MAC)))
			Expect(b.Host.IP("addr show cni0")).NotTo(Or(ContainSubstring("10.9.0.1"), ContainSubstring("fd00:9::1")))
			Expect(b.Host.IP("link show " + gatewayPort())).To(ContainSubstring("master cni0"))
			for _, name := range []string{"cni0.100", gatewayPort()} {
				Expect(b.Host.Sysctl(GinkgoTB(), "net/ipv6/conf/"+name+"/accept_ra")).To(Equal("0"), name)
			}

			By("sharing the interface with the next container, but not with a container in another VLAN")
			links := b.Host.IP("-br link")
			second := b.Add(b.Call("two", two, conf))
			Expect(second.Interfaces[3]).To(Equal(first.Interfaces[3]))
			Expect(strings.Count(b.Host.IP("-br link"), "\n")).To(Equal(strings.Count(links, "\n") + 1))
			b.Add(b.Call("stranger", stranger, b.conf("1.1.0", `"vlan":200,`, v4range)))
			Expect(stranger.IP("-br addr show eth0")).To(ContainSubstring("10.9.0.4/24"))
			nstest.ServeTCP(GinkgoTB(), one, "10.9.0.2:80")
			nstest.ServeTCP(GinkgoTB(), one, "[fd00:9::2]:80")
			nstest.MustDial(GinkgoTB(), two, "10.9.0.1:80", "10.9.0.3")
			nstest.MustDial(GinkgoTB(), two, "10.9.0.2:80", "10.9.0.3")
			nstest.MustDial(GinkgoTB(), two, "[fd00:9::2]:80", "fd00:9::3")
			nstest.MustDial(GinkgoTB(), b.Host, "10.9.0.2:80", "10.9.0.1")
			for _, addr := range []string{"10.9.0.2:80", "10.9.0.1:80"} {
				_, err := nstest.Dial(stranger, addr)
				Expect(err).To(HaveOccurred(), addr)
			}
		})

		It("is created once by concurrent ADDs, and each container reaches it", func() {
			nstest.ServeTCP(GinkgoTB(), b.Host, "0.0.0.0:80")
			conf := b.conf("1.1.0", gatewayed+vlan100, v4range)
			for round := range 3 {
				const count = 8
				containers, results := make([]*nstest.NS, count), make([]*types.Result, count)
				for i := range containers {
					containers[i] = newContainer()
				}
				var wg sync.WaitGroup
				for i, container := range containers {
					wg.Go(func() {
						defer GinkgoRecover()
						results[i] = b.Add(b.Call(fmt.Sprintf("container%d.%d", round, i), container, conf))
						nstest.MustDial(GinkgoTB(), container, "10.9.0.1:80", "")
					})
				}
				wg.Wait()
				for _, result := range results {
					Expect(result).NotTo(BeNil())
					Expect(result.Interfaces[3]).To(Equal(results[0].Interfaces[3]))
				}
				Expect(b.Host.IP("link show cni0.100")).To(ContainSubstring(results[0].Interfaces[3].MAC))
				Expect(vlansOfPort(gatewayPort())).To(Equal("100 PVID Egress Untagged"))
				Expect(strings.Split(b.Host.IP("-br link show master cni0"), "\n")).To(HaveLen(count + 1))
				for i, container := range containers {
					b.OK("DEL", b.Call(fmt.Sprintf("container%d.%d", round, i), container, conf))
				}
				b.Host.IP("link del cni0.100")
				b.Host.IP("link del cni0")
			}
		})

		It("is completed by the next ADD, regardless of the step at which the first ADD stopped", func() {
			nstest.ServeTCP(GinkgoTB(), b.Host, "0.0.0.0:80")
			conf := b.conf("1.1.0", gatewayed+vlan100, v4range)
			b.Add(b.Call("warm", newContainer(), conf))
			port := gatewayPort()
			for k := 1; ; k += nstest.SweepStride() {
				b.Host.IP("link del cni0.100")
				seen, container := 0, newContainer()
				c := b.Call("stopped", container, conf)
				c.Before = func(step string) error {
					if !strings.Contains(step, "cni0.100") && !strings.Contains(step, port) {
						return nil
					}
					if seen++; seen != k {
						return nil
					}
					return errors.New("stopped before: " + step)
				}
				reply := b.Run("ADD", c)
				if seen < k {
					reply.OK(GinkgoTB())
					Expect(k).To(BeNumerically(">", 8))
					break
				}
				Expect(reply.Failure(GinkgoTB()).Msg).To(ContainSubstring("stopped before"))
				c.Before = nil
				Expect(b.Run("ADD", c).Result(GinkgoTB()).Interfaces[3].Name).To(Equal("cni0.100"))
				nstest.MustDial(GinkgoTB(), container, "10.9.0.1:80", "")
				Expect(vlansOfPort(port)).To(Equal("100 PVID Egress Untagged"))
				b.OK("DEL", c)
			}
		})

		It("is an error if another interface has its name", func() {
			b.Host.IP("link add cni0.100 type ifb")
			b.Fails("ADD", b.Call("one", newContainer(), b.conf("1.1.0", gatewayed+vlan100, v4range)), types.CodeConfig, `interface "cni0.100" exists`)
		})
	})

	Describe("with a bridge that does not filter VLANs", func() {
		BeforeEach(func() { b.Host.IP("link add cni0 up address 02:00:00:00:00:b0 type bridge") })

		It("ADD enables filtering if the bridge has no ports", func() {
			one := b.Add(b.Call("one", newContainer(), b.conf("1.1.0", vlan100)))
			Expect(b.Host.IP("-d link show cni0")).To(ContainSubstring("vlan_filtering 1"))
			Expect(vlansOfPort(one.Interfaces[1].Name)).To(Equal("100 PVID Egress Untagged"))
		})

		It("ADD and STATUS fail if the bridge has ports, and the bridge is unchanged", func() {
			b.Add(b.Call("other", newContainer(), b.conf("1.1.0", "")))
			conf := b.conf("1.1.0", gatewayed+vlan100, v4range)
			c := b.Call("one", newContainer(), conf)
			// The kernel updates the state of a bridge some time after the state of its ports.
			Eventually(b.Host.IP).WithArguments("-br link show cni0").Should(MatchRegexp(`^cni0 +UP `))
			restored := b.Restored(b.Host, c.Container)
			b.Fails("ADD", c, types.CodeConfig, "bridge cni0 does not filter VLANs and is in use (ports: 1); run")
			restored()
			b.RequireStatus(conf, "does not filter VLANs")
		})
	})

	Describe("CHECK", func() {
		var c nstest.Call
		var host, port string
		BeforeEach(func() {
			conf := b.conf("1.1.0", gatewayed+vlan100+`"vlanTrunk":[{"id":200}],`, v4range)
			c = b.Call("one", newContainer(), conf)
			reply := b.OK("ADD", c)
			host, port = reply.Result(GinkgoTB()).Interfaces[1].Name, gatewayPort()
			c.Config = nstest.WithPrevResult(conf, reply.Stdout)
			b.OK("CHECK", c)
		})
		DescribeTable("names the difference, and REPAIR restores it", func(line, want string) {
			named := strings.NewReplacer("HOST", host, "FAR", port)
			// A new port has another MAC, which no container knows.
			b.Omit = []string{"bridge ifname=" + port + " mac=", "link " + port + " address=", "link " + port + " addr_info="}
			b.RequireRepair(c, func() { b.Host.MustLine(GinkgoTB(), named.Replace(line)) }, named.Replace(want))
		},
			Entry("missing VLAN", "bridge vlan del vid 100 dev HOST", "port HOST is not in vlan 100 pvid untagged"),
			Entry("missing VLAN of the trunk", "bridge vlan del vid 200 dev HOST", "port HOST is not in vlan 200"),
			Entry("tagging", "bridge vlan add vid 100 dev HOST pvid", "port HOST is not in vlan 100 pvid untagged"),
			Entry("extra VLAN", "bridge vlan add vid 50 dev HOST", "port HOST is in vlan 50"),
			Entry("extra default VLAN", "bridge vlan add vid 1 dev HOST untagged", "port HOST is in vlan 1 untagged"),
			Entry("filtering", "ip link set cni0 type bridge vlan_filtering 0", "bridge cni0 does not filter VLANs"),
			Entry("gateway's address", "ip addr del 10.9.0.1/24 dev cni0.100", "interface cni0.100 has no gateway address 10.9.0.1/24"),
			Entry("gateway's interface", "ip link del cni0.100", "find link cni0.100"),
			Entry("bridge", "ip link del cni0", "bridge cni0 does not exist"),
			Entry("gateway down", "ip link set cni0.100 down", "interface cni0.100 is down"),
			Entry("gateway's port", "ip link set FAR nomaster", "interface FAR is not a port of bridge cni0"),
			Entry("gateway's VLAN", "bridge vlan del vid 100 dev FAR", "port FAR is not in vlan 100 pvid untagged"),
		)

		It("REPAIR does not enable filtering if the bridge has a port that plumb did not create", func() {
			b.Host.Batch(GinkgoTB(), "link add other type veth peer name far", "link set other master cni0")
			b.Host.MustLine(GinkgoTB(), "ip link set cni0 type bridge vlan_filtering 0")
			b.Fails("REPAIR", c, types.CodeConfig, "bridge cni0 does not filter VLANs and is in use (ports: 3)")
			Expect(b.Host.IP("-d link show cni0")).To(ContainSubstring("vlan_filtering 0"))
		})

		It("allows the default VLAN with preserveDefaultVlan, and no other VLAN", func() {
			conf := b.conf("1.1.0", vlan100+`"preserveDefaultVlan":true,`)
			c := b.Call("two", newContainer(), conf)
			reply := b.OK("ADD", c)
			c.Config = nstest.WithPrevResult(conf, reply.Stdout)
			b.OK("CHECK", c)
			b.Host.MustLine(GinkgoTB(), "bridge vlan add vid 50 dev "+reply.Result(GinkgoTB()).Interfaces[1].Name)
			Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Msg).To(ContainSubstring("is in vlan 50"))
		})
	})
})

var _ = Describe("fault sweep over VLANs", Label(nstest.Kernel), func() {
	It("leaves nothing if any single step fails", func() {
		nstest.RequireFeature(GinkgoTB(), "bridge VLAN filtering", vlanFiltering())
		sweep(nil, gatewayed+vlan100+`"vlanTrunk":[{"id":200}],`, v4range)
	})
})

// vlanFiltering returns an error if the kernel lacks VLAN filtering. Such a kernel accepts
// vlan_filtering, but rejects the first VLAN.
func vlanFiltering() error {
	host := newContainer()
	_, err := host.Exec("ip", "link", "add", "br0", "type", "bridge", "vlan_filtering", "1")
	if err == nil {
		_, err = host.Exec("bridge", "vlan", "add", "vid", "2", "dev", "br0", "self")
	}
	return err
}
