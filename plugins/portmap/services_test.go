package main

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// The addresses of a Service of Kubernetes.
const (
	service4 = "10.96.0.10"
	service6 = "fd00:96::10"
)

// addServiceAddrs does what kube-proxy does when it starts in its mode ipvs. Its rules are the first rules of each chain.
// kube-proxy creates kube-ipvs0 as a dummy interface, a kind that some kernels lack. The kernel delivers packets to ip_vs, in
// the hook input. A server on the host takes its place. test/e2e runs kube-proxy itself on a kernel with ip_vs.
func (b *testbed) addServiceAddrs() {
	GinkgoHelper()
	b.Host.Batch(GinkgoTB(), "link add kube-ipvs0 type bridge", "addr add "+service4+"/32 dev kube-ipvs0", "addr add "+service6+"/128 dev kube-ipvs0 nodad")
	for program, addr := range map[string]string{"iptables-restore": service4, "ip6tables-restore": service6} {
		b.load(program, fmt.Sprintf(`*nat
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-I PREROUTING -j KUBE-SERVICES
-I OUTPUT -j KUBE-SERVICES
-I POSTROUTING -j KUBE-POSTROUTING
-A KUBE-SERVICES -d %s -p tcp --dport 8080 -j KUBE-MARK-MASQ
-A KUBE-SERVICES -d %[1]s -p tcp --dport 8080 -j ACCEPT
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE
COMMIT
`, addr))
	}
}

// expectServices expects that packets to the Service reach it, and that packets to the host's address reach the first
// container.
func (b *testbed) expectServices() {
	GinkgoHelper()
	for _, from := range []*nstest.NS{b.containers[1], b.Host} {
		for addr, local := range map[string]string{service4 + ":8080": service4, "[" + service6 + "]:8080": service6} {
			reply, err := nstest.Dial(from, addr)
			Expect(err).NotTo(HaveOccurred(), "%s", addr)
			Expect(reply).To(HaveSuffix("local="+local), "%s", addr)
		}
		expectAnswer(nstest.Dial, from, nstest.HostV4+":8080", "")
		expectAnswer(nstest.Dial, from, "["+nstest.HostV6+"]:8080", "")
	}
	expectAnswer(nstest.Dial, b.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
}

var _ = Describe("beside kube-proxy in its mode ipvs", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		b.serve()
	})
	mappings := []string{portMapping(8080, 80, overTCP), portMapping(8080, 80, overTCP+`,"hostIP":"`+nstest.HostV4+`"`)}

	DescribeTable("host ports do not take packets to a Service", func(keys string) {
		b.addServiceAddrs()
		c := b.call("one", conf(keys, mappings...))
		b.OK("ADD", c)
		nstest.ServeTCP(GinkgoTB(), b.Host, service4+":8080")
		nstest.ServeTCP(GinkgoTB(), b.Host, "["+service6+"]:8080")
		b.expectServices()
		b.OK("CHECK", c)
		b.Host.Batch(GinkgoTB(), "link del kube-ipvs0")
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(b.elements() + b.saved()).NotTo(ContainSubstring("one"))
	}, Entry("iptables, by default", ""), Entry("nftables", withBackend(backendNFTables)))

	It("host ports in nftables do not take packets to Services that are added later, after REPAIR", func() {
		c := b.call("one", conf("", mappings...))
		b.OK("ADD", c)
		b.OK("CHECK", c)
		b.addServiceAddrs()
		nstest.ServeTCP(GinkgoTB(), b.Host, service4+":8080")
		nstest.ServeTCP(GinkgoTB(), b.Host, "["+service6+"]:8080")
		b.Fails("CHECK", c, 100, "host ports take the packets", service4, service6)
		b.OK("REPAIR", c)
		b.OK("CHECK", c)
		b.expectServices()
		Expect(b.saved()).NotTo(ContainSubstring("CNI-HOSTPORT"))

		By("and apply to an address that is no longer an address of a Service")
		b.Host.Batch(GinkgoTB(), "addr del "+service4+"/32 dev kube-ipvs0")
		b.OK("CHECK", c)
		b.Host.Batch(GinkgoTB(), "addr add "+service4+"/32 dev cni0")
		b.Fails("CHECK", c, 100, "host ports do not apply", service4)
		b.OK("REPAIR", c)
		expectAnswer(nstest.Dial, b.containers[1], service4+":8080", "")
		Expect(b.Host.MustLine(GinkgoTB(), "nft list set inet plumb service4")).NotTo(ContainSubstring(service4))
		Expect(b.Host.MustLine(GinkgoTB(), "nft list set inet plumb service6")).To(ContainSubstring(service6))
	})

	It("an address that the host has on another interface as well is not a Service's own", func() {
		b.addServiceAddrs()
		b.Host.Batch(GinkgoTB(), "addr add "+nstest.HostV4+"/32 dev kube-ipvs0")
		c := b.call("one", conf(withBackend(backendNFTables), mappings...))
		b.OK("ADD", c)
		expectAnswer(nstest.Dial, b.containers[1], nstest.HostV4+":8080", "")
		b.OK("CHECK", c)
	})

	It("ADD warns of a hostIP that is the address of a Service, and does not forward its packets", func() {
		b.addServiceAddrs()
		nstest.ServeTCP(GinkgoTB(), b.Host, service4+":8080")
		c := b.call("one", conf(withBackend(backendNFTables), portMapping(8080, 80, overTCP+`,"hostIP":"`+service4+`"`)))
		Expect(b.OK("ADD", c).Stderr).To(ContainSubstring("host port " + service4 + ":8080/tcp has no effect"))
		reply, err := nstest.Dial(b.containers[1], service4+":8080")
		Expect(err).NotTo(HaveOccurred())
		Expect(reply).To(HaveSuffix("local=" + service4))
	})
})
