package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// refChain is the reference plugin's chain for container cid1 in network net1.
const refChain = "CNI-DN-e8f6f419596f7f47b3468"

// referenceIPTables returns the rules of the reference plugin's iptables backend for net1/cid1 with host
// port 8080/tcp.
func referenceIPTables(subnet, to string) string {
	return fmt.Sprintf(`*nat
-N CNI-HOSTPORT-DNAT
-N CNI-HOSTPORT-SETMARK
-N CNI-HOSTPORT-MASQ
-N %[1]s
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-A %[1]s -p tcp --dport 8080 -s %[2]s -j CNI-HOSTPORT-SETMARK
-A %[1]s -p tcp --dport 8080 -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK
-A %[1]s -p tcp --dport 8080 -j DNAT --to-destination %[3]s
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net1\" id: \"cid1\"" -m multiport --destination-ports 8080 -j %[1]s
COMMIT
`, refChain, subnet, to)
}

// referenceNFT is the ruleset of the reference plugin's nftables backend for two networks of cid1 and for
// cid2.
const referenceNFT = `
table ip cni_hostport {
	comment "CNI portmap plugin"
	chain hostports {
		tcp dport 8080 dnat to 10.9.0.2:80 comment "cid1"
		tcp dport 9180 dnat to 10.77.0.2:80 comment "cid1"
		tcp dport 9080 dnat to 10.9.0.3:80 comment "cid2"
	}
	chain hostip_hostports { }
	chain hostports_all {
		jump hostip_hostports
		jump hostports
	}
	chain prerouting {
		type nat hook prerouting priority dstnat;
		fib daddr type local jump hostports_all
	}
	chain masquerading {
		type nat hook postrouting priority srcnat;
		ip saddr 10.9.0.2 ip daddr 10.9.0.2 masquerade comment "cid1"
		ip saddr 127.0.0.1 ip daddr 10.9.0.2 masquerade comment "cid1"
		ip saddr 10.77.0.2 ip daddr 10.77.0.2 masquerade comment "cid1"
	}
}
`

var _ = Describe("rules of the reference plugin", func() {
	var b *testbed
	var c nstest.Call
	v4only := func(keys string) string {
		return confFor(keys+`"name":"net1",`, []string{addr4 + "/24"}, portMapping(8080, 80, overTCP))
	}
	BeforeEach(func() {
		b = newTestbed()
		c = b.call("cid1", v4only(""))
		b.Host.SetSysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet", "1") // as the reference plugin does
	})

	for _, program := range []string{"iptables-nft", "iptables-legacy"} {
		It("are accepted by CHECK, and deleted by DEL and GC, when added by "+program, func() {
			b.load(program+"-restore", referenceIPTables("10.9.0.0/24", addr4+":80"))
			b.OK("CHECK", c)
			for _, config := range []string{v4only(""), minimalConfig("net1")} {
				c.Config = config
				del, steps := c.RecordSteps()
				b.OK("DEL", del)
				if program == "iptables-nft" {
					Expect(*steps).NotTo(ContainElement(MatchRegexp("^ip6?tables")), "DEL runs no program")
				}
				Expect(b.saved(program + "-save")).NotTo(Or(ContainSubstring(refChain), ContainSubstring("dnat name")))
				Expect(b.saved(program + "-save")).To(ContainSubstring("-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"))
				b.Host.Must(GinkgoTB(), program, "-t", "nat", "-F")
				b.Host.Must(GinkgoTB(), program, "-t", "nat", "-X")
				b.load(program+"-restore", referenceIPTables("10.9.0.0/24", addr4+":80"))
			}
			By("DEL keeps the rules for another interface of the container")
			c.Config = strings.ReplaceAll(v4only(""), addr4, peer4)
			b.OK("DEL", c)
			Expect(b.saved(program + "-save")).To(ContainSubstring(refChain))
			By("GC deletes them only if the attachment is not kept")
			b.OK("GC", b.call("", gcConfig("net1", attachment("cid1", "eth0"))))
			Expect(b.saved(program + "-save")).To(ContainSubstring(refChain))
			b.OK("GC", b.call("", gcConfig("net1")))
			Expect(b.saved(program + "-save")).NotTo(ContainSubstring(refChain))
		})
	}

	It("stay in REPAIR, which sets route_localnet only with the guard", func() {
		b.Host.SetSysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet", "0")
		b.OK("ADD", b.call("cid1", confFor(`"name":"net1",`, []string{addr4 + "/24"}))) // deletes the mark of another spec's DEL
		b.load("iptables-nft-restore", referenceIPTables("10.9.0.0/24", addr4+":80"))
		before := b.saved()
		b.OK("REPAIR", c)
		Expect(b.Host.Sysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet")).To(Equal("1"))
		Expect(b.ruleset()).To(ContainSubstring("ip daddr 127.0.0.0/8"))
		Expect(b.saved()).To(Equal(before))
		Expect(b.elements()).To(BeEmpty())
	})

	It("of its nftables backend are accepted, and deleted for this network only", func() {
		b.load("nft", referenceNFT)
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(b.ruleset()).To(And(ContainSubstring("10.77.0.2"), ContainSubstring("cid2"), Not(ContainSubstring(addr4+" "))))
		b.Fails("CHECK", c, types.CodeChanged)
		c.Config = minimalConfig("net1")
		b.OK("DEL", c)
		Expect(b.ruleset()).To(And(Not(ContainSubstring("cid1")), ContainSubstring("cid2")))
	})

	Context("with the reference plugin's executable", func() {
		reference := func(command, config string) nstest.Reply {
			GinkgoHelper()
			call := b.call("cid1", strings.ReplaceAll(config, `"cniVersion":"1.1.0"`, `"cniVersion":"1.0.0"`))
			return nstest.ExecReference(GinkgoTB(), "portmap", call.With(command))
		}

		It("the reference plugin deletes what plumb added", func() {
			b.OK("ADD", b.call("cid1", v4only(`"backend":"iptables",`)))
			reference("DEL", v4only("")).OK(GinkgoTB())
			Expect(b.saved()).NotTo(ContainSubstring(refChain))
			Expect(b.saved("iptables-save")).To(ContainSubstring("-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"))
		})

		It("the reference plugin checks what plumb added", func() {
			dual := conf(`"backend":"iptables",`, portMapping(8080, 80, overTCP), portMapping(8081, 80, overUDP))
			b.OK("ADD", b.call("cid1", dual))
			// Version 1.1.1 finds no difference in iptables, and then looks for IPv4 addresses in ip6tables.
			Expect(reference("CHECK", dual).Stdout).To(Or(BeEmpty(), ContainSubstring("could not check ipv6")))
			b.Host.Must(GinkgoTB(), "iptables", "-t", "nat", "-F", refChain)
			Expect(reference("CHECK", dual).Stdout).To(ContainSubstring("could not check ipv4"))
		})

		It("plumb checks and deletes what the reference plugin added", func() {
			dual := conf(`"backend":"iptables","conditionsV4":["!","-s","192.0.2.0/24"],`, portMapping(8080, 80, overTCP), portMapping(8081, 80, overUDP+`,"hostIP":"127.0.0.1"`))
			reference("ADD", dual).OK(GinkgoTB())
			b.OK("CHECK", b.call("cid1", dual))
			before := b.saved()
			b.OK("DEL", b.call("cid1", dual))
			Expect(b.saved()).NotTo(ContainSubstring(refChain))
			By("and adds the same rules, and a mark of the guard")
			b.OK("ADD", b.call("cid1", dual))
			var same []string
			for line := range strings.Lines(b.saved()) {
				if !strings.Contains(line, tables.GuardComment) {
					same = append(same, line)
				}
			}
			Expect(same).To(ConsistOf(strings.SplitAfter(strings.TrimSuffix(before, "\n")+"\n", "\n")[:len(same)]))
		})
	})
})
