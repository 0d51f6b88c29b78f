package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// gcConfig returns the configuration of a GC that keeps the attachments.
func gcConfig(network string, attachments ...string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":"portmap","cni.dev/valid-attachments":[%s]}`, network, strings.Join(attachments, ","))
}

// attachment returns an element of cni.dev/valid-attachments.
func attachment(id, ifName string) string {
	return fmt.Sprintf(`{"containerID":%q,"ifname":%q}`, id, ifName)
}

// minimalConfig returns a configuration without runtimeConfig and without prevResult.
func minimalConfig(network string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":"portmap"}`, network)
}

// all contains a mapping for each protocol, and a mapping at 127.0.0.1.
var all = []string{portMapping(8080, 80, overTCP), portMapping(8081, 81, overUDP),
	portMapping(8082, 82, `"protocol":"sctp"`), portMapping(8083, 83, overTCP+`,"hostIP":"127.0.0.1"`)}

var _ = Describe("another bridge", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("the iptables backend works on a bridge with a quotation mark in its name", func() {
		b.Host.Must(GinkgoTB(), "ip", "link", "set", "cni0", "down")
		b.Host.Must(GinkgoTB(), "ip", "link", "set", "cni0", "name", `cni"0`, "up")
		c := b.call("one", strings.ReplaceAll(conf(withBackend(backendIPTables)+`"snat":true,`, all[0]), `"cni0"`, `"cni\"0"`))
		b.OK("ADD", c)
		b.OK("ADD", c)
		b.OK("CHECK", c)
	})

	It("CHECK names a route to the container through another interface, and not its route_localnet", func() {
		c := b.call("one", conf("", portMapping(8080, 80, overTCP)))
		b.OK("ADD", c)
		b.Host.Batch(GinkgoTB(), "link add br9 type bridge", "link set br9 up", "route replace 10.9.0.0/24 dev br9")
		f := b.Run("CHECK", c).Failure(GinkgoTB())
		Expect(f.Msg).To(ContainSubstring("packets of the host for 10.9.0.2 leave through br9, and the container is behind cni0"))
		Expect(f.Msg).NotTo(ContainSubstring("route_localnet"))
		b.Fails("REPAIR", c, types.CodeChanged, "leave through br9")
		Expect(b.Host.Sysctl(GinkgoTB(), "net/ipv4/conf/br9/route_localnet")).To(Equal("0"))
	})

	DescribeTable("ADD does not set route_localnet on an interface to other hosts, and warns", func(backend, hostInterface, address, device, reason string) {
		b.Host.Batch(GinkgoTB(), "link add br9 type bridge", "addr add 10.20.0.1/24 dev br9", "link set br9 up",
			"route add 10.30.0.0/24 via 10.20.0.5", "route add 10.40.0.0/24 via 10.20.0.1")
		c := b.call("one", strings.Replace(confFor(withBackend(backend)+`"name":"net1",`, []string{address}, portMapping(8080, 80, overTCP)), `"cni0"`, `"`+hostInterface+`"`, 1))
		want, text := "1", Equal("")
		if reason != "" {
			want, text = "0", Equal("portmap: warning: host ports do not answer at 127.0.0.1: "+reason+"\n")
		}
		Expect(b.OK("ADD", c).Stderr).To(text)
		Expect(b.Host.Sysctl(GinkgoTB(), "net/ipv4/conf/"+device+"/route_localnet")).To(Equal(want))
		b.OK("CHECK", c)
		b.OK("DEL", c)
	},
		Entry("the default route", backendNFTables, "vethx", "198.51.100.7/24", nstest.Uplink, "packets of the host for 198.51.100.7 leave through uplink0, which is not the container's interface on the host"),
		Entry("the default route, with iptables", backendIPTables, "vethx", "198.51.100.7/24", nstest.Uplink, "packets of the host for 198.51.100.7 leave through uplink0, which is not the container's interface on the host"),
		Entry("the network of the default route", backendNFTables, "vethx", "198.18.0.77/24", nstest.Uplink, "packets of the host for 198.18.0.77 leave through uplink0, which is not the container's interface on the host"),
		Entry("the container's interface with the default route", backendNFTables, nstest.Uplink, "198.18.0.77/24", nstest.Uplink, ""),
		Entry("a gateway", backendNFTables, "vethx", "10.30.0.2/24", "br9", "packets of the host for 10.30.0.2 leave through br9, which is not the container's interface on the host"),
		Entry("an address of the interface as gateway", backendNFTables, "vethx", "10.40.0.2/24", "br9", ""),
	)

	It("ADD warns if the host has no route to the container", func() {
		b.Host.IP("route del default")
		c := b.call("one", confFor(`"name":"net1",`, []string{"198.51.100.7/24"}, portMapping(8080, 80, overTCP)))
		Expect(b.OK("ADD", c).Stderr).To(Equal("portmap: warning: host ports do not answer at 127.0.0.1: the host has no route to 198.51.100.7\n"))
		b.OK("CHECK", c)
	})
})

// The specs change only the rules and the sysctl that reset resets, so that all can share a host.
var _ = Describe("portmap", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newTestbed() })
	BeforeEach(func() { b.reset() })
	dual := []string{addr4 + "/24", addr6 + "/64"}

	const v4only = "IPv4:" // stands before the keys if the container has an IPv4 address only
	DescribeTable("ADD adds the rules in the golden file, CHECK accepts them, and DEL deletes them", func(golden, keys string, mappings ...string) {
		c := b.call("one", conf(keys, mappings...))
		if rest, found := strings.CutPrefix(keys, v4only); found {
			c.Config = confFor(rest+`"name":"net1",`, []string{addr4 + "/24"}, mappings...)
		}
		b.OK("ADD", c)
		b.OK("CHECK", c)
		got := b.ruleset()
		if strings.HasPrefix(golden, backendIPTables) {
			got = b.saved()
		}
		nstest.Golden(GinkgoTB(), golden, got)
		if !strings.HasPrefix(golden, backendIPTables) {
			_, err := nstest.NewHost(GinkgoTB()).ExecInput(got, "nft", "-f", "-")
			Expect(err).NotTo(HaveOccurred(), "a saved ruleset can be loaded")
		}
		b.OK("DEL", c)
		b.OK("DEL", c)
		b.Fails("CHECK", c, types.CodeChanged)
		Expect(b.elements()).To(BeEmpty())
		Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
	},
		Entry(nil, "nftables", "", all[0], all[1], all[2], all[3]),
		Entry(nil, "nftables-example", v4only, all[0]),
		Entry(nil, "iptables-example", v4only+`"backend":"iptables",`, all[0]),
		Entry(nil, "nftables-snat-false", `"snat":false,"masqAll":true,`, all[0]),
		Entry(nil, "nftables-masqAll", `"masqAll":true,`, all[0]),
		Entry(nil, "nftables-markMasqBit", `"markMasqBit":0,`, all[0]),
		Entry(nil, "nftables-conditions", `"conditionsV4":["ip saddr !=","198.18.0.2"],"conditionsV6":["iifname \"uplink0\""],`, all[0], all[3]),
		Entry(nil, "nftables-conditions-snat-false", `"snat":false,"conditionsV4":["ip saddr != 198.18.0.2"],`, all[0]),
		Entry(nil, "iptables", `"backend":"iptables",`, all[0], all[1], all[2], all[3]),
		Entry(nil, "iptables-snat-false", `"backend":"iptables","snat":false,`, all[0]),
		Entry(nil, "iptables-masqAll", `"backend":"iptables","masqAll":true,`, all[0]),
		Entry(nil, "iptables-markMasqBit", `"backend":"iptables","markMasqBit":0,`, all[0]),
		Entry(nil, "iptables-conditions", `"conditionsV4":["!","-s","198.18.0.2/32"],"conditionsV6":["-i","uplink0"],`, all[0]),
	)

	It("packets are marked by externalSetMarkChain, and ADD fails with code 7 when that chain is missing", func() {
		c := b.call("one", conf(`"externalSetMarkChain":"KUBE-MARK-MASQ",`, all[0]))
		b.Fails("ADD", c, types.CodeConfig, "KUBE-MARK-MASQ")
		Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
		b.load("iptables-restore", "*nat\n-N KUBE-MARK-MASQ\nCOMMIT\n")
		b.load("ip6tables-restore", "*nat\n-N KUBE-MARK-MASQ\nCOMMIT\n")
		b.OK("ADD", c)
		b.OK("CHECK", c)
		nstest.Golden(GinkgoTB(), "iptables-externalSetMarkChain", b.saved())
		b.OK("DEL", c)
	})

	It("ADD without mappings only reads route_localnet, and takes no lock, opens no socket and runs no program", func() {
		c, steps := b.call("one", conf("")).RecordSteps()
		Expect(b.OK("ADD", c).Result(GinkgoTB()).IPs).To(HaveLen(2))
		Expect(*steps).To(Equal([]string{"read sysctl net/ipv4/conf/cni0/route_localnet"}))
		b.OK("CHECK", c)
		Expect(b.ruleset()).To(BeEmpty())
	})

	It("ADD without prevResult fails", func() {
		Expect(b.Run("ADD", b.call("one", minimalConfig("net1"))).Failure(GinkgoTB()).Msg).To(ContainSubstring("must be called as chained plugin"))
	})

	It("keys and protocols may be in upper or lower case, and empty conditions are none", func() {
		config := strings.NewReplacer("runtimeConfig", "RuntimeConfig", "portMappings", "PortMappings", "hostPort", "HostPort",
			"containerPort", "ContainerPort", "protocol", "Protocol").Replace(conf(`"conditionsV4":[],"conditionsV6":[""],`, portMapping(8080, 80, `"protocol":"TCP"`), portMapping(8080, 80, `"protocol":"Udp"`)))
		b.OK("ADD", b.call("one", config))
		Expect(b.elements()).To(And(ContainSubstring("tcp . 8080"), ContainSubstring("udp . 8080")))
	})

	It("ADD returns the error text of nft for an invalid condition, and leaves no elements", func() {
		got := b.Run("ADD", b.call("one", conf(`"conditionsV4":["nonsense"],`, all[0]))).Failure(GinkgoTB())
		Expect(got).To(And(HaveField("Code", BeEquivalentTo(types.CodeConfig)), HaveField("Msg", And(ContainSubstring("conditionsV4"), ContainSubstring("nonsense")))))
		Expect(b.elements()).To(BeEmpty())
	})

	It("ADD warns that masqAll has no effect without snat", func() {
		c := b.call("one", conf(`"snat":false,"masqAll":true,`, all[0]))
		Expect(b.Run("ADD", c).OK(GinkgoTB()).Stderr).To(ContainSubstring("masqAll has no effect because snat is false"))
		Expect(b.Run("DEL", c).OK(GinkgoTB()).Stderr).To(BeEmpty())
	})

	twice := func(version string) string {
		return "portmap: warning: host port 8080/tcp of IP version " + version + " is mapped twice; using container port 80, ignoring container port 81\n"
	}
	DescribeTable("ADD warns about a port that is mapped twice in a family", func(ips []string, warning, target4, target6 string, mappings ...string) {
		reply := b.OK("ADD", b.call("one", confFor(`"name":"net1",`, ips, mappings...)))
		Expect(reply.Stderr).To(Equal(warning))
		Expect(b.elements()).To(And(ContainSubstring(target4), ContainSubstring(target6)))
	},
		Entry(nil, dual, twice("4")+twice("6"), "tcp . 8080 comment \"net1/one/eth0\" : 10.9.0.2 . 80", "fd00:9::2 . 80",
			portMapping(8080, 80, overTCP), portMapping(8080, 81, overTCP), portMapping(8080, 80, overTCP)),
		Entry(nil, dual, twice("4"), "10.9.0.2 . 80", "fd00:9::2 . 81", portMapping(8080, 80, overTCP+`,"hostIP":"0.0.0.0"`), portMapping(8080, 81, overTCP)),
		Entry(nil, dual, "", "10.9.0.2 . 80", "fd00:9::2 . 81", portMapping(8080, 80, overTCP+`,"hostIP":"0.0.0.0"`), portMapping(8080, 81, overTCP+`,"hostIP":"::"`)),
		Entry(nil, dual[1:], "", "", "fd00:9::2 . 81", portMapping(8080, 80, overTCP+`,"hostIP":"0.0.0.0"`), portMapping(8080, 81, overTCP)),
	)

	DescribeTable("ADD warns that nothing is mapped when prevResult has no suitable address", func(text string, ips []string, mapping string) {
		c, steps := b.call("one", confFor(`"name":"net1",`, ips, mapping)).RecordSteps()
		reply := b.OK("ADD", c)
		Expect(*steps).To(Equal([]string{"read sysctl net/ipv4/conf/cni0/route_localnet"}))
		Expect(reply.Result(GinkgoTB()).IPs).To(HaveLen(len(ips)))
		Expect(reply.Stderr).To(Equal("portmap: warning: nothing is mapped: prevResult contains no " + text + " for eth0\n"))
		Expect(b.ruleset()).To(BeEmpty())
		b.OK("CHECK", c)
		b.OK("DEL", c)
	},
		Entry(nil, "address", nil, all[0]),
		Entry(nil, "address of the family of hostIP", []string{addr4 + "/24"}, portMapping(8080, 80, overTCP+`,"hostIP":"::"`)),
	)

	DescribeTable("ADD warns that an interface without a connection to the host gets no packets", func(warning string, create ...string) {
		container := nstest.New(GinkgoTB()).Named("alone")
		container.Batch(GinkgoTB(), create...)
		c := b.Call("one", container, strings.NewReplacer(`{"name":"cni0"},`, "", `"interface":1`, `"interface":0`).Replace(conf(`"snat":false,`, all[0])))
		reply := b.OK("ADD", c)
		if warning == "" {
			Expect(reply.Stderr).To(BeEmpty())
			return
		}
		Expect(reply.Stderr).To(ContainSubstring("other hosts cannot connect to the host ports: eth0 (" + warning + ") is not connected to the host"))
		c.Config = strings.Replace(c.Config, `"interfaces":[`, `"interfaces":[{"name":"cni0"},`, 1)
		c.Config = strings.ReplaceAll(c.Config, `"interface":0`, `"interface":1`)
		Expect(b.OK("ADD", c).Stderr).To(BeEmpty(), "the result lists an interface of the host")
	},
		Entry(nil, "macvlan", "link add base type veth peer name other", "link add eth0 link base type macvlan"),
		Entry(nil, "", "link add eth0 type veth peer name other"),
	)

	It("ADD lists the addresses and the connections of the host once per family, however many ports are mapped", func() {
		var ports []string
		for i := range 20 {
			ports = append(ports, portMapping(8000+i, 80, overUDP))
		}
		// The kernel tracks connections only if a rule needs that.
		b.OK("ADD", b.call("zero", confFor(`"name":"net0",`, []string{addr4 + "/24", addr6 + "/64"}, portMapping(9999, 80, overTCP))))
		_ = b.newTalker(b.Outside, nstest.HostV4+":7777")()
		c, steps := b.call("one", conf("", ports...)), map[string]int{}
		c.Before = func(step string) error { steps[step]++; return nil }
		b.OK("ADD", c)
		Expect(steps).To(And(HaveKeyWithValue("list own addresses", 2), HaveKeyWithValue("list conntrack and delete", 2)))
		for step := range steps {
			Expect(step).NotTo(ContainSubstring("delete conntrack"))
		}
	})

	DescribeTable("DEL with its mappings deletes the other elements when one is missing", func(element string) {
		call := b.call("one", confFor(`"name":"net1",`, []string{addr4 + "/24"}, portMapping(9000, 80, overTCP), portMapping(9001, 80, overTCP)))
		b.OK("ADD", call)
		b.Host.Must(GinkgoTB(), "nft", "delete element inet plumb "+element)
		b.OK("DEL", call)
		Expect(b.elements()).To(BeEmpty())
	},
		Entry(nil, "hostport4 { tcp . 9000 }"),
		Entry(nil, "hostport4_chain { tcp . 9001 }"),
	)

	DescribeTable("DEL and a repeated ADD delete all host ports of the attachment, whatever mappings they are called with", func(backend string) {
		first := []string{all[0], portMapping(9000, 80, overUDP), portMapping(9001, 80, overTCP+`,"hostIP":"127.0.0.1"`)}
		call := func(mappings ...string) nstest.Call { return b.call("one", conf(withBackend(backend), mappings...)) }
		rules := func() string { return b.elements() + b.saved() }
		other := b.call("other", confFor(withBackend(backend)+`"name":"net1",`, []string{peer4 + "/24", peer6 + "/64"}, portMapping(9200, 80, overTCP)))
		b.OK("ADD", other)
		before := rules()
		for _, later := range [][]string{{first[0]}, {portMapping(9100, 80, overTCP)}, {}} {
			b.OK("ADD", call(first...))
			b.OK("DEL", call(later...))
			Expect(rules()).To(Equal(before), "DEL with %v", later)
		}
		b.OK("ADD", call(first...))
		b.OK("ADD", call(portMapping(9100, 80, overTCP)))
		Expect(rules()).NotTo(Or(MatchRegexp(`tcp . (8080|9001) comment|udp . 9000 comment|-j DNAT.*:8080|dport (8080|9000|9001) -j DNAT`)))
		b.OK("CHECK", call(portMapping(9100, 80, overTCP)))
		b.OK("DEL", call())
		Expect(rules()).To(Equal(before))
		b.OK("CHECK", other)
	}, backends())

	DescribeTable("a newer ADD takes over a port, and the former owner's CHECK and DEL respect that", func(backend string) {
		former := b.call("former", conf(withBackend(backend), all[0], all[1]))
		newer := b.call("newer", confFor(withBackend(backend)+`"name":"net2",`, []string{peer4 + "/24"}, all[0]))
		b.OK("ADD", former)
		Expect(b.OK("ADD", newer).Stderr).To(And(ContainSubstring("host port 8080/tcp"), ContainSubstring("former"), Not(ContainSubstring("8081"))))
		nstest.ServeTCP(GinkgoTB(), b.containers[0], addr4+":80")
		nstest.ServeTCP(GinkgoTB(), b.containers[1], peer4+":80")
		reply, err := nstest.Dial(b.Outside, nstest.HostV4+":8080")
		Expect(err).NotTo(HaveOccurred())
		Expect(reply).To(HaveSuffix("local=" + peer4))
		b.OK("CHECK", newer)
		got := b.Run("CHECK", former).Failure(GinkgoTB())
		Expect(got.Msg).To(And(ContainSubstring("host port 8080/tcp"), ContainSubstring("newer"), Not(ContainSubstring("8081"))))
		b.OK("DEL", former)
		b.OK("CHECK", newer)
		reply, err = nstest.Dial(b.Outside, nstest.HostV4+":8080")
		Expect(err).NotTo(HaveOccurred())
		Expect(reply).To(HaveSuffix("local=" + peer4))
		b.OK("DEL", newer)
		Expect(b.elements()).To(BeEmpty())
		Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
	}, backends())

	DescribeTable("two networks of one container have the same port, and CHECK accepts that", func(backend string) {
		first := b.call("one", conf(withBackend(backend)+`"snat":true,`, all[0]))
		second := b.call("one", confFor(withBackend(backend)+`"name":"net2","snat":false,`, []string{peer4 + "/24", peer6 + "/64"}, all[0]))
		second.IfName = "eth1"
		second.Config = strings.ReplaceAll(second.Config, `"interface":1`, `"interface":2`)
		b.OK("ADD", first)
		Expect(b.OK("ADD", second).Stderr).To(BeEmpty())
		b.OK("CHECK", first)
		b.OK("CHECK", second)
		b.OK("DEL", second)
		b.OK("CHECK", first)
		b.OK("DEL", first)
		Expect(b.elements()).To(BeEmpty())
		Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
	}, backends())

	DescribeTable("a port goes back to its former owner", func(end func(b *testbed, newer nstest.Call)) {
		former := b.call("former", conf(`"snat":true,`, all[0], all[1], all[3]))
		b.OK("ADD", former)
		before := b.elements()
		newer := b.call("newer", confFor(`"name":"net2","snat":false,`, []string{peer4 + "/24"}, all[0], all[3]))
		b.OK("ADD", newer)
		b.OK("CHECK", newer)
		b.Fails("CHECK", former, types.CodeChanged, "host port 8080/tcp of IP version 4 belongs to net2/newer/eth0 now")
		end(b, newer)
		Expect(b.elements()).To(Equal(before))
		b.OK("CHECK", former)
		b.OK("DEL", former)
		Expect(b.elements()).To(BeEmpty())
	},
		Entry("by DEL", func(b *testbed, newer nstest.Call) { b.OK("DEL", newer) }),
		Entry("by DEL without mappings and prevResult", func(b *testbed, newer nstest.Call) { b.OK("DEL", b.call("newer", minimalConfig("net2"))) }),
		Entry("by GC", func(b *testbed, newer nstest.Call) { b.OK("GC", b.call("", gcConfig("net2"))) }),
		Entry("when another ADD took it over for a time", func(b *testbed, newer nstest.Call) {
			b.OK("DEL", newer)
			b.OK("ADD", newer)
			b.OK("DEL", newer)
		}),
	)

	It("a port does not go back to the owner before the former one", func() {
		call := func(id string) nstest.Call {
			return b.call(id, strings.Replace(conf(`"snat":true,`, all[0]), "net1", id, 1))
		}
		for _, id := range []string{"first", "second", "third"} {
			b.OK("ADD", call(id))
		}
		Expect(b.ruleset()).NotTo(ContainSubstring("setmark/first/"), "a chain without elements")
		b.OK("DEL", call("third"))
		b.OK("CHECK", call("second"))
		b.OK("DEL", call("second"))
		Expect(b.elements()).NotTo(ContainSubstring("jump"))
		b.OK("DEL", call("first"))
		Expect(b.elements()).To(BeEmpty())
	})

	It("ADD fails with code 7 when the table is dormant, and DEL succeeds", func() {
		c := b.call("one", conf("", all...))
		b.OK("ADD", c)
		b.Host.Must(GinkgoTB(), "nft", "add table inet plumb { flags dormant; }")
		b.Fails("CHECK", c, types.CodeChanged, "dormant")
		b.Fails("ADD", b.call("two", conf("", portMapping(9000, 80, overTCP))), types.CodeConfig, "dormant")
		b.Fails("STATUS", c, types.CodeNotAvailable)
		b.OK("DEL", c)
		Expect(b.elements()).To(BeEmpty())
	})

	Context("route_localnet", func() {
		const setting = "net/ipv4/conf/cni0/route_localnet"
		one := func(id string, port int) nstest.Call {
			return b.call(id, confFor(`"name":"net1",`, []string{addr4 + "/24"}, portMapping(port, 80, overTCP)))
		}
		value := func() string { return b.Host.Sysctl(GinkgoTB(), setting) }

		It("stays set after the last DEL and GC, with the guard", func() {
			b.OK("ADD", one("a", 8001))
			Expect(value()).To(Equal("1"))
			b.OK("DEL", one("a", 8001))
			b.OK("GC", b.call("", gcConfig("net1")))
			Expect(value()).To(Equal("1"))
			Expect(b.ruleset()).To(ContainSubstring(`ip daddr 127.0.0.0/8 meta iifkind != "vrf" drop`))
		})

		It("without a guard is reported by STATUS and CHECK, which change nothing", func() {
			b.OK("ADD", one("a", 8001))
			status, steps := b.call("", conf("")).RecordSteps()
			b.OK("STATUS", status)
			b.Host.Must(GinkgoTB(), "nft", "flush chain inet plumb localnet")
			before := b.ruleset()
			*steps = nil
			Expect(b.OK("STATUS", status).Stderr).To(ContainSubstring("other hosts and containers can reach 127.0.0.1 of the host through cni0"))
			Expect(*steps).To(And(ContainElement("read sysctl "+setting), Not(ContainElement(MatchRegexp("^read sysctl .*/port0/")))), "packets for a container do not leave through a port")
			b.Fails("CHECK", one("a", 8001), types.CodeChanged, "chain localnet of table inet plumb is missing or lacks rules")
			Expect(b.ruleset()).To(Equal(before))
			Expect(value()).To(Equal("1"))
			b.OK("ADD", one("b", 8002))
			Expect(b.OK("STATUS", status).Stderr).To(BeEmpty())
		})

		It("is guarded by the rule of the iptables backend, as STATUS knows", func() {
			b.OK("ADD", b.call("a", confFor(`"backend":"iptables","name":"net1",`, []string{addr4 + "/24"}, portMapping(8001, 80, overTCP))))
			Expect(b.OK("STATUS", b.call("", conf(`"backend":"iptables",`))).Stderr).To(BeEmpty())
			b.Host.Must(GinkgoTB(), "iptables", "-t", "raw", "-F")
			Expect(b.OK("STATUS", b.call("", conf(`"backend":"iptables",`))).Stderr).To(ContainSubstring("can reach 127.0.0.1"))
		})

		DescribeTable("is guarded again by an ADD or REPAIR without mappings after the ruleset was flushed", func(keys string, want string) {
			b.OK("ADD", b.call("one", conf(keys, all[0])))
			Expect(value()).To(Equal("1"))
			for _, verb := range []string{"ADD", "REPAIR"} {
				b.Host.Must(GinkgoTB(), "nft", "flush ruleset")
				b.OK(verb, b.call("two", conf(keys)))
				Expect(b.ruleset()).To(ContainSubstring(want))
			}
		},
			Entry(nil, "", `ip daddr 127.0.0.0/8 meta iifkind != "vrf" drop`),
			Entry(nil, `"backend":"iptables",`, "ip daddr 127.0.0.0/8"),
		)
	})

	It("ADD of a hundred mappings is one transaction, and another ADD takes all of them over", func() {
		var many []string
		for i := range 100 {
			many = append(many, portMapping(20000+i, 80, overTCP))
		}
		c, steps := b.call("one", conf("", many...)).RecordSteps()
		b.OK("ADD", b.call("first", conf("", all[0]))) // creates the table
		b.OK("ADD", c)
		commits := slices.DeleteFunc(*steps, func(step string) bool {
			return !strings.HasPrefix(step, "nft ") || strings.HasPrefix(step, "nft list") || strings.HasPrefix(step, "nft get")
		})
		Expect(commits).To(Equal([]string{"nft add port map of net1/one/eth0"}), "no chain is changed")
		Expect(b.OK("ADD", c).Stderr).To(BeEmpty())
		newer := b.call("two", confFor(`"name":"net1",`, []string{peer4 + "/24", peer6 + "/64"}, many...))
		Expect(strings.Count(b.OK("ADD", newer).Stderr, "is taken over")).To(Equal(200))
		b.OK("CHECK", newer)
		b.OK("DEL", c)
		b.OK("CHECK", newer)
		b.OK("DEL", newer)
		Expect(b.elements()).NotTo(Or(ContainSubstring("/one/"), ContainSubstring("/two/")))
	})

	DescribeTable("DEL deletes only the rules of one network and one interface of a container", func(backend string) {
		keys := withBackend(backend)
		eth0 := b.call("one", confFor(keys+`"name":"net1",`, []string{addr4 + "/24"}, all[0], all[1]))
		eth1 := b.call("one", strings.ReplaceAll(confFor(keys+`"name":"net1",`, []string{peer4 + "/24"}, portMapping(9080, 80, overTCP)), `"interface":1`, `"interface":2`))
		eth1.IfName = "eth1"
		other := b.call("one", confFor(keys+`"name":"net2",`, []string{"10.9.0.4/24"}, portMapping(9180, 80, overTCP)))
		calls := []nstest.Call{eth0, other, eth1}
		if backend == backendIPTables {
			calls = calls[:2] // the interfaces of a container in one network share a chain
		}
		for i, gone := range calls {
			for _, how := range []string{"with mappings", "without mappings and prevResult"} {
				for _, c := range calls {
					b.OK("ADD", c)
				}
				del := gone
				if how == "without mappings and prevResult" {
					del.Config = minimalConfig([]string{"net1", "net2", "net1"}[i])
				}
				b.OK("DEL", del)
				for k, c := range calls {
					Expect(b.Run("CHECK", c).Exit == 0).To(Equal(k != i), "%d of %d, %s", k, i, how)
				}
				for _, c := range calls {
					b.OK("DEL", c)
				}
				Expect(b.elements()).To(BeEmpty())
				Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
			}
		}
	}, backends())

	DescribeTable("a repeated ADD changes nothing, and an ADD repeated with other addresses replaces the former ones", func(backend string) {
		c := b.call("one", conf(withBackend(backend), all...))
		b.OK("ADD", c)
		before := b.elements() + b.saved()
		Expect(b.OK("ADD", c).Stderr).To(BeEmpty())
		Expect(b.elements() + b.saved()).To(Equal(before))
		c.Config = confFor(withBackend(backend)+`"name":"net1",`, []string{peer4 + "/24", peer6 + "/64"}, all...)
		b.OK("ADD", c)
		Expect(b.elements() + b.saved()).NotTo(Or(ContainSubstring(addr4), ContainSubstring(addr6)))
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(b.elements()).To(BeEmpty())
		Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
	}, backends())

	DescribeTable("DEL of the last container deletes the chains of the network", func(keys string) {
		b.OK("ADD", b.call("other", confFor(`"name":"net2",`, []string{peer4 + "/24"}, all[1])))
		before := b.ruleset()
		one, two := b.call("one", conf(keys, all[0])), b.call("two", confFor(keys+`"name":"net1",`, []string{peer4 + "/24", peer6 + "/64"}, all[3]))
		b.OK("ADD", one)
		b.OK("ADD", two)
		b.OK("DEL", b.call("one", minimalConfig("net1")))
		b.OK("CHECK", two)
		b.OK("DEL", two)
		Expect(b.ruleset()).To(Equal(before))
	},
		Entry(nil, `"snat":true,`),
		Entry(nil, `"snat":true,"conditionsV4":["ip saddr != 198.18.0.2"],"conditionsV6":["iifname \"uplink0\""],`),
	)

	It("DEL deletes the chains of the network if the ADD was killed before it added the elements", func() {
		conditions := `"conditionsV4":["ip saddr != 198.18.0.2"],`
		b.OK("ADD", b.call("other", confFor(conditions+`"name":"net2",`, []string{addr4 + "/24"}, all[1])))
		one := b.call("one", conf(conditions, all[0], all[3]))
		b.OK("ADD", one)
		for _, set := range tables.HostPortSets() {
			b.Host.Must(GinkgoTB(), "nft", "flush", "map", "inet", "plumb", set.Name)
		}
		Expect(b.ruleset()).To(And(ContainSubstring("chain setmark/net1/"), ContainSubstring("chain conditions/net1/")))
		one.Config, _, _ = strings.Cut(one.Config, `,"prevResult"`)
		one.Config += "}"
		b.OK("DEL", one)
		Expect(b.ruleset()).NotTo(ContainSubstring("/net1/"))
		Expect(b.ruleset()).To(And(ContainSubstring("chain setmark/net2/"), ContainSubstring("chain conditions/net2/")))
	})

	DescribeTable("GC deletes stale rules of its network only", func(backend string) {
		add := func(id, ifName, network string, port int) nstest.Call {
			c := b.call(id, strings.ReplaceAll(confFor(withBackend(backend)+fmt.Sprintf(`"name":%q,`, network), []string{fmt.Sprintf("10.9.0.%d/24", port-9000)},
				portMapping(port, 80, overTCP)), `"interface":1`, map[string]string{"eth0": `"interface":1`, "eth1": `"interface":2`}[ifName]))
			c.IfName = ifName
			b.OK("ADD", c)
			return c
		}
		keep, stale, sister := add("keep", "eth0", "net1", 9010), add("stale", "eth0", "net1", 9011), add("keep", "eth1", "net1", 9012)
		other := add("other", "eth0", "net10", 9013)
		b.OK("GC", b.call("", gcConfig("net1", attachment("keep", "eth0"))))
		b.OK("CHECK", keep)
		b.OK("CHECK", other)
		b.Fails("CHECK", stale, types.CodeChanged)
		if backend == backendNFTables { // with iptables, the interfaces of a container share a chain
			b.Fails("CHECK", sister, types.CodeChanged)
		}
		b.OK("GC", b.call("", gcConfig("net1")))
		b.OK("GC", b.call("", gcConfig("net10")))
		Expect(b.elements()).To(BeEmpty())
		Expect(b.ruleset()).NotTo(ContainSubstring("setmark/"))
		Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
	}, backends())

	It("the interfaces of a container in one network share a chain of iptables, which the first DEL deletes and a failed ADD keeps", func() {
		first := b.call("one", confFor(withBackend(backendIPTables)+`"name":"net1",`, []string{addr4 + "/24"}, all[0]))
		second := b.call("one", strings.ReplaceAll(confFor(withBackend(backendIPTables)+`"name":"net1",`, []string{peer4 + "/24"}, portMapping(9080, 80, overTCP)), `"interface":1`, `"interface":2`))
		second.IfName = "eth1"
		b.OK("ADD", first)
		before := b.saved()
		second = second.FailAt("ensure sysctls", errors.New("refused"))
		separate := second.Config
		for _, config := range []string{strings.ReplaceAll(separate, `"hostPort":9080`, `"hostPort":8080`), separate} {
			second.Config = config
			Expect(b.Run("ADD", second).Failure(GinkgoTB()).Msg).To(ContainSubstring("refused"))
			Expect(b.saved()).To(Equal(before))
		}
		second.Before = nil
		b.OK("ADD", second)
		b.OK("CHECK", first)
		b.OK("CHECK", second)
		b.OK("DEL", second)
		Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
		b.OK("DEL", first)
	})

	// A damage is what a command removes or changes, and a text in the error of CHECK.
	type damage struct{ command, text string }
	DescribeTable("CHECK names what is missing, and REPAIR restores it unless it belongs to another owner", func(backend string, damages ...damage) {
		c := b.call("one", conf(withBackend(backend), all[0]))
		for _, d := range damages {
			By(d.command)
			b.reset()
			b.OK("ADD", c)
			before := b.sorted()
			b.OK("REPAIR", c)
			Expect(b.sorted()).To(Equal(before))
			b.Host.MustLine(GinkgoTB(), d.command)
			b.Fails("CHECK", c, types.CodeChanged, d.text)
			if damaged := b.sorted(); strings.Contains(d.text, "belongs to") || strings.Contains(d.text, "another program") {
				b.Fails("REPAIR", c, types.CodeChanged, d.text)
				Expect(b.sorted()).To(Equal(damaged))
				if strings.Contains(d.text, "another program") {
					Expect(b.Run("CHECK", c).Stdout).To(ContainSubstring("nft delete element inet plumb hostport4 '{ tcp . 8080 }'"))
				}
				b.OK("ADD", c)
			} else {
				recorded, steps := c.RecordSteps()
				Expect(b.OK("REPAIR", recorded).Stderr).To(BeEmpty())
				Expect(b.sorted()).To(Equal(before))
				By("REPAIR lists the chains again only before and after a change of the IP version")
				lists := slices.DeleteFunc(*steps, func(step string) bool { return !strings.Contains(step, ": list the chains of table nat") })
				Expect(len(lists)).To(BeNumerically("<=", 5), "%q", lists) // four of one version if iptables-restore refuses the first script, and one of the other
			}
			b.OK("CHECK", c)
		}
	},
		Entry(backendNFTables, backendNFTables,
			damage{"nft delete element inet plumb hostport4 {tcp . 8080}", "map hostport4 of table inet plumb has no element for host port 8080/tcp of IP version 4"},
			damage{"nft delete element inet plumb hostport6_chain {tcp . 8080}", "map hostport6_chain of table inet plumb has no element for host port 8080/tcp of IP version 6"},
			damage{`nft delete element inet plumb hostport4_chain {tcp . 8080}; add element inet plumb hostport4_chain {tcp . 8080 comment "net1/other/eth0" : jump setmark/net1/10.9.0.0/24}`, "host port 8080/tcp of IP version 4 belongs to net1/other/eth0 now"},
			damage{"nft delete element inet plumb hostport4 {tcp . 8080}; add element inet plumb hostport4 {tcp . 8080 : 10.9.0.3 . 80}", "map hostport4 of table inet plumb contains an element of another program for host port 8080/tcp of IP version 4"},
			damage{`nft delete element inet plumb hostport4 {tcp . 8080}; add element inet plumb hostport4 {tcp . 8080 comment "net1/one/eth0" : 10.9.0.3 . 80}`, "map hostport4 of table inet plumb: want 10.9.0.2 . 80 for host port 8080/tcp of IP version 4, got 10.9.0.3 . 80"},
			damage{`nft delete element inet plumb hostport4_chain {tcp . 8080}; add element inet plumb hostport4_chain {tcp . 8080 comment "net1/one/eth0" : accept}`, "map hostport4_chain of table inet plumb: want chain setmark/net1/10.9.0.0/24 for host port 8080/tcp of IP version 4, got no chain"},
			damage{"nft flush chain inet plumb hostports", "chain hostports of table inet plumb is missing or lacks rules"},
			damage{"nft flush chain inet plumb setmark/net1/10.9.0.0/24", "chain setmark/net1/10.9.0.0/24"},
			damage{"sysctl -w net.ipv4.conf.cni0.route_localnet=0", "route_localnet"},
		),
		Entry(backendIPTables, backendIPTables,
			damage{"iptables -t nat -F PREROUTING", "has no rule -A PREROUTING"},
			damage{"iptables -t nat -F CNI-HOSTPORT-DNAT", "has no rule for host port 8080/tcp"},
			damage{"iptables -t raw -F PREROUTING", "table raw of iptables has no rule -A PREROUTING -d 127.0.0.0/8"},
			damage{"ip6tables -t nat -F CNI-HOSTPORT-MASQ", "has no rule -A CNI-HOSTPORT-MASQ"},
		),
	)

	DescribeTable("REPAIR leaves a host port with the container that owns it now, and restores the other ports", func(backend string) {
		older := b.call("one", conf(withBackend(backend), all[0], portMapping(9080, 80, overTCP)))
		newer := b.call("two", confFor(withBackend(backend)+`"name":"net1",`, []string{peer4 + "/24", peer6 + "/64"}, all[0]))
		b.OK("ADD", older)
		b.OK("ADD", newer)
		b.Host.Must(GinkgoTB(), "nft", "flush ruleset")
		b.OK("REPAIR", newer)
		reply := b.Run("REPAIR", older)
		Expect(reply.Failure(GinkgoTB()).Msg).To(And(MatchRegexp("host port 8080/tcp.* belongs to .*two.* now"), Not(ContainSubstring("9080"))))
		Expect(reply.Stderr).To(BeEmpty())
		b.OK("CHECK", newer)
		b.OK("DEL", newer)
		b.OK("REPAIR", older)
		before := b.sorted()
		b.OK("REPAIR", older)
		Expect(b.sorted()).To(Equal(before))
		b.OK("DEL", older)
		Expect(b.elements()).To(BeEmpty())
		Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
	}, backends())

	DescribeTable("REPAIR restores the rest after a REPAIR that failed, whichever step failed", func(backend string) {
		c := b.call("one", conf(withBackend(backend), all...))
		b.OK("ADD", c)
		b.RepairSweep(c, func() {
			b.Host.Must(GinkgoTB(), "nft", "flush ruleset")
			b.Host.SetSysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet", "0")
		}, b.sorted)
	}, backends())

	It("CHECK and DEL find the rules of the other backend", func() {
		by := map[string]nstest.Call{}
		for _, backend := range []string{backendNFTables, backendIPTables} {
			by[backend] = b.call("one", conf(withBackend(backend), all...))
		}
		for _, pair := range [][2]string{{backendNFTables, backendIPTables}, {backendIPTables, backendNFTables}} {
			b.OK("ADD", by[pair[0]])
			b.OK("CHECK", by[pair[1]])
			b.OK("DEL", by[pair[1]])
			Expect(b.elements()).To(BeEmpty())
			Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
		}
	})

	It("ADD with conditions succeeds if the last DEL of another container deletes the chain after them", func() {
		c := b.call("one", conf(`"conditionsV4":["ip saddr != 198.18.0.2"],`, portMapping(8080, 80, overTCP)))
		b.OK("ADD", c)
		b.OK("CHECK", c)
		chain := regexp.MustCompile(`goto (setmark\S+)`).FindStringSubmatch(b.ruleset())[1]
		b.OK("DEL", c)
		c.Before = func(step string) error {
			if strings.HasPrefix(step, "run nft") {
				b.Host.Must(GinkgoTB(), "nft", "delete", "chain", "inet", "plumb", chain)
			}
			return nil
		}
		b.OK("ADD", c)
		b.OK("CHECK", c)
	})

	DescribeTable("concurrent calls of each verb succeed, and shared rules exist once", func(backend string) {
		calls := make([]nstest.Call, nstest.FullOrShort(60, 8))
		for i := range calls {
			calls[i] = b.call(fmt.Sprint("cid", i), confFor(withBackend(backend)+`"name":"net1",`,
				[]string{fmt.Sprintf("10.9.1.%d/16", i), fmt.Sprintf("fd00:9::1:%x/64", i)}, portMapping(10000+i, 80, overTCP), portMapping(20000+i, 80, overUDP)))
		}
		each := func(command string) {
			GinkgoHelper()
			var wg sync.WaitGroup
			errs := make([]error, len(calls))
			for i, c := range calls {
				wg.Go(func() {
					r := b.Run(command, c)
					for r.Exit != 0 && r.Failure(GinkgoTB()).Code == types.CodeTryAgain { // on a slow machine, others may hold the lock for too long
						r = b.Run(command, c)
					}
					if r.Exit != 0 {
						errs[i] = errors.New(r.Stdout)
					}
				})
			}
			wg.Wait()
			Expect(errors.Join(errs...)).To(Succeed())
		}
		each("ADD")
		each("CHECK")
		if backend == backendIPTables {
			By("repairing missing shared rules once")
			b.Host.Must(GinkgoTB(), "iptables", "-t", "nat", "-F", "PREROUTING")
			b.Host.Must(GinkgoTB(), "ip6tables", "-t", "nat", "-F", "POSTROUTING")
			each("ADD")
			each("CHECK")
		}
		each("DEL")
		b.OK("GC", b.call("", gcConfig("net1")))
		nstest.Golden(GinkgoTB(), backend+"-cleaned", map[string]func() string{backendNFTables: b.ruleset, backendIPTables: func() string { return b.saved() }}[backend]())
	}, backends())

	It("STATUS returns code 50 when the kernel lacks nf_tables, and changes nothing", func() {
		for _, keys := range []string{"", `"backend":"nftables",`, `"backend":"iptables",`, `"conditionsV4":["ip","saddr","x"],`} {
			b.OK("STATUS", b.call("", conf(keys)))
		}
		Expect(b.ruleset()).To(BeEmpty())
		c := b.call("", conf(`"backend":"nftables",`)).FailAt("open nftables", nft.ErrUnavailable)
		b.Fails("STATUS", c, types.CodeNotAvailable)
	})

	It("ADD uses iptables on a kernel without nf_tables, unless backend is nftables", func() {
		c := b.call("one", conf("", all...)).FailAt("open nftables", nft.ErrUnavailable)
		b.OK("ADD", c)
		Expect(b.saved()).To(ContainSubstring("CNI-DN-"))
		b.OK("CHECK", c)
		c.Before = nil
		b.OK("DEL", c)
		Expect(b.saved()).NotTo(ContainSubstring("CNI-DN-"))
		c = b.call("one", conf(`"backend":"nftables",`, all...)).FailAt("open nftables", nft.ErrUnavailable)
		b.Fails("ADD", c, types.CodeConfig)
	})

	It("ADD undoes what an iptables program has applied before it failed", func() {
		b.OK("ADD", b.call("one", conf(`"backend":"iptables",`, all...)))
		before := b.saved()
		c := b.call("two", conf(`"backend":"iptables",`, all...))
		c.After = func(step string) error {
			if strings.HasPrefix(step, "iptables-restore: add port map") {
				Expect(b.saved()).NotTo(Equal(before))
				return errors.New("killed")
			}
			return nil
		}
		Expect(b.Run("ADD", c).Failure(GinkgoTB()).Msg).To(ContainSubstring("killed"))
		Expect(b.saved()).To(Equal(before))
	})

	It("ADD uses iptables if table inet plumb exists, and the kernel lacks what host ports need in it", func() {
		b.load("nft", "add table inet plumb")
		c := b.call("one", conf("", all...))
		c.Before = func(step string) error {
			if strings.HasPrefix(step, "nft create table") || strings.HasPrefix(step, "nft propose table") {
				return syscall.ENOENT
			}
			return nil
		}
		b.OK("ADD", c)
		Expect(b.saved()).To(ContainSubstring("CNI-DN-"))
		b.OK("STATUS", c)
	})
})

var _ = DescribeTable("a failed ADD or DEL leaves nothing, whichever step fails", func(keys string) {
	p := plugin()
	// The container that exists before the sweep must have other host ports.
	swept := p.Add
	p.Add = func(r *skel.Request) (*types.Result, error) {
		if r.ContainerID == "warm" {
			r.Stdin = []byte(strings.ReplaceAll(string(r.Stdin), `"hostPort":8`, `"hostPort":18`))
		}
		return swept(r)
	}
	nstest.FaultSweep(GinkgoTB(), nstest.Sweep{
		Plugin: p,
		Config: conf(keys, portMapping(8080, 80, overTCP), portMapping(8081, 81, overUDP)),
		Prepare: func(host, _ *nstest.NS) {
			addBridge(GinkgoTB(), host)
		},
		// ADD and DEL succeed without this number, which only shows whether there are connections.
		MayFail: []string{"read sysctl net/netfilter/nf_conntrack_count"},
	})
},
	Entry(nil, ""),
	Entry(nil, `"masqAll":true,"conditionsV4":["ip","saddr","!=","192.0.2.1"],`),
	Entry(nil, `"onConflict":"fail",`),
	Entry(nil, `"backend":"iptables",`),
	Entry(nil, `"backend":"iptables","onConflict":"fail",`),
)

// A refused call changes nothing, so that all calls can share a host.
var _ = Describe("an invalid configuration", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newTestbed() })

	DescribeTable("ADD refuses an invalid configuration before its first step, and DEL accepts it", func(config string, code int, texts ...string) {
		c, steps := b.call("one", config).RecordSteps()
		b.Fails("ADD", c, code, texts...)
		Expect(*steps).To(BeEmpty())
		b.OK("DEL", c)
		if code == types.CodeConfig {
			b.Fails("STATUS", b.call("", config), types.CodeNotAvailable)
		}
	},
		Entry(nil, conf("", portMapping(0, 80, overTCP)), 7, "Invalid host port number: 0", "runtimeConfig.portMappings[0]."),
		Entry(nil, conf("", portMapping(80, 0, overTCP)), 7, "Invalid container port number: 0"),
		Entry(nil, conf("", portMapping(-1, 65536, overTCP)), 7, "Invalid host port number: -1", "Invalid container port number: 65536"),
		Entry(nil, conf("", all[0], portMapping(65536, 80, overUDP), portMapping(1, 2, `"protocol":"icmp"`)), 7, "runtimeConfig.portMappings[1].", "65536", "runtimeConfig.portMappings[2].", `"icmp"`),
		Entry(nil, conf("", portMapping(1, 2, `"protocol":""`)), 7, `protocol "" must be tcp, udp or sctp`),
		Entry(nil, conf("", portMapping(1, 2, overTCP+`,"hostIP":"nowhere"`)), 7, "runtimeConfig.portMappings[0].", `"nowhere"`),
		Entry(nil, conf("", portMapping(1, 2, overTCP+`,"hostIP":"fe80::1%eth0"`)), 7, "fe80::1%eth0"),
		Entry(nil, conf("", all[0], "null"), 7, "runtimeConfig.portMappings[1]: want an object, got null"),
		Entry(nil, conf(`"backend":"ebpf",`, all[0]), 7, `"ebpf"`),
		Entry(nil, conf(`"onConflict":"",`, all[0]), 7, `onConflict "" must be "replace" or "fail"`),
		Entry(nil, conf(`"onConflict":"keep",`, all[0]), 7, `onConflict "keep" must be "replace" or "fail"`),
		Entry(nil, conf(`"markMasqBit":32,`, all[0]), 7, "markMasqBit 32"),
		Entry(nil, conf(`"markMasqBit":-1,`, all[0]), 7, "markMasqBit -1"),
		Entry(nil, conf(`"markMasqBit":1,"externalSetMarkChain":"X",`, all[0]), 7, "exclude each other"),
		Entry(nil, conf(`"externalSetMarkChain":"X\n-F",`, all[0]), 7, "externalSetMarkChain"),
		Entry(nil, conf(`"externalSetMarkChain":"../../etc",`, all[0]), 7, "externalSetMarkChain"),
		Entry(nil, conf(`"externalSetMarkChain":"`+strings.Repeat("X", 29)+`",`, all[0]), 7, "externalSetMarkChain"),
		Entry(nil, conf(`"backend":"nftables","conditionsV4":["-s","x"],"externalSetMarkChain":"X",`, all[0]), 7,
			"nftables backend was requested but configuration contains iptables-specific options [conditionsV4 externalSetMarkChain]"),
		Entry(nil, conf(`"backend":"iptables","conditionsV4":["ip","saddr","x"],"conditionsV6":["a"],`, all[0]), 7,
			"iptables backend was requested but configuration contains nftables-specific options [conditionsV4 conditionsV6]"),
		Entry(nil, conf(`"conditionsV4":["ip","saddr","x"],"conditionsV6":["!","-s","::"],`, all[0]), 7, "[conditionsV4]", "[conditionsV6]"),
		Entry(nil, conf(`"conditionsV4":["ip saddr 1.2.3.4; drop"],`, all[0]), 7, "cannot be part of a condition"),
		Entry(nil, conf(`"conditionsV4":["-s","1.2.3.4\n-F"],`, all[0]), 7, "cannot be part of a condition"),
	)
})
