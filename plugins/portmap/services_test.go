package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// The addresses of a Service of Kubernetes.
const (
	service4 = "10.96.0.10"
	service6 = "fd00:96::10"
)

// addServiceAddrs does what kube-proxy does when it starts in its mode ipvs. Its rules are the first rules of each chain.
// kube-proxy creates kube-ipvs0 as a dummy interface, a kind that some kernels lack.
func (b *testbed) addServiceAddrs(kind string) {
	GinkgoHelper()
	b.Host.Batch(GinkgoTB(), "link add kube-ipvs0 type "+kind, "addr add "+service4+"/32 dev kube-ipvs0", "addr add "+service6+"/128 dev kube-ipvs0 nodad")
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

// removeServiceAddrs reverts addServiceAddrs.
func (b *testbed) removeServiceAddrs() {
	GinkgoHelper()
	b.Host.Batch(GinkgoTB(), "link del kube-ipvs0")
	for _, program := range []string{"iptables-restore", "ip6tables-restore"} {
		b.load(program, `*nat
-F KUBE-SERVICES
-F KUBE-MARK-MASQ
-F KUBE-POSTROUTING
-D PREROUTING -j KUBE-SERVICES
-D OUTPUT -j KUBE-SERVICES
-D POSTROUTING -j KUBE-POSTROUTING
-X KUBE-SERVICES
-X KUBE-MARK-MASQ
-X KUBE-POSTROUTING
COMMIT
`)
	}
}

// expectServices expects that packets to the Service reach its servers at local4 and local6, and that packets to the host's
// address reach the first container.
func (b *testbed) expectServices(local4, local6 string) {
	GinkgoHelper()
	for _, from := range []*nstest.NS{b.containers[1], b.Host} {
		for addr, local := range map[string]string{service4 + ":8080": local4, "[" + service6 + "]:8080": local6} {
			reply, err := nstest.Dial(from, addr)
			Expect(err).NotTo(HaveOccurred(), "%s", addr)
			Expect(reply).To(HaveSuffix("local="+local), "%s", addr)
		}
		expectAnswer(nstest.Dial, from, nstest.HostV4+":8080", "")
		expectAnswer(nstest.Dial, from, "["+nstest.HostV6+"]:8080", "")
	}
	expectAnswer(nstest.Dial, b.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
}

// The kernel delivers packets to kube-ipvs0 to ip_vs, in the hook input. On a kernel without ip_vs, a server on the host
// takes its place.
var _ = Describe("beside kube-proxy in its mode ipvs", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		b.serve()
	})
	mappings := []string{portMapping(8080, 80, overTCP), portMapping(8080, 80, overTCP+`,"hostIP":"`+nstest.HostV4+`"`)}

	DescribeTable("host ports do not take packets to a Service", func(keys string) {
		b.addServiceAddrs("bridge")
		c := b.call("one", conf(keys, mappings...))
		b.OK("ADD", c)
		nstest.ServeTCP(GinkgoTB(), b.Host, service4+":8080")
		nstest.ServeTCP(GinkgoTB(), b.Host, "["+service6+"]:8080")
		b.expectServices(service4, service6)
		b.OK("CHECK", c)
		b.Host.Batch(GinkgoTB(), "link del kube-ipvs0")
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(b.elements() + b.saved()).NotTo(ContainSubstring("one"))
	}, Entry("nftables, by default", ""), Entry("iptables", withBackend(backendIPTables)))

	It("host ports in nftables do not take packets to Services that are added later, after REPAIR", func() {
		c := b.call("one", conf("", mappings...))
		b.OK("ADD", c)
		b.OK("CHECK", c)
		b.addServiceAddrs("bridge")
		nstest.ServeTCP(GinkgoTB(), b.Host, service4+":8080")
		nstest.ServeTCP(GinkgoTB(), b.Host, "["+service6+"]:8080")
		b.Fails("CHECK", c, 100, "host ports take the packets", service4, service6)
		b.OK("REPAIR", c)
		b.OK("CHECK", c)
		b.expectServices(service4, service6)
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
		b.addServiceAddrs("bridge")
		b.Host.Batch(GinkgoTB(), "addr add "+nstest.HostV4+"/32 dev kube-ipvs0")
		c := b.call("one", conf(withBackend(backendNFTables), mappings...))
		b.OK("ADD", c)
		expectAnswer(nstest.Dial, b.containers[1], nstest.HostV4+":8080", "")
		b.OK("CHECK", c)
	})

	It("ADD warns of a hostIP that is the address of a Service, and does not forward its packets", func() {
		b.addServiceAddrs("bridge")
		nstest.ServeTCP(GinkgoTB(), b.Host, service4+":8080")
		c := b.call("one", conf(withBackend(backendNFTables), portMapping(8080, 80, overTCP+`,"hostIP":"`+service4+`"`)))
		Expect(b.OK("ADD", c).Stderr).To(ContainSubstring("host port " + service4 + ":8080/tcp has no effect"))
		reply, err := nstest.Dial(b.containers[1], service4+":8080")
		Expect(err).NotTo(HaveOccurred())
		Expect(reply).To(HaveSuffix("local=" + service4))
	})

	DescribeTable("ip_vs gets the packets to a Service", Label(nstest.Kernel), func(keys string, later bool) {
		b.addVirtualServer("-t "+service4+":8080", nstest.OutsideV4+":9090")
		b.addVirtualServer("-t ["+service6+"]:8080", "["+nstest.OutsideV6+"]:9090")
		c := b.call("one", conf(keys, mappings...))
		if later {
			b.OK("ADD", c)
		}
		b.addServiceAddrs("dummy")
		if later {
			b.OK("REPAIR", c)
		} else {
			b.OK("ADD", c)
		}
		b.expectServices(nstest.OutsideV4, nstest.OutsideV6)
		By("and again after a restart of kube-proxy")
		b.removeServiceAddrs()
		b.addServiceAddrs("dummy")
		b.OK("REPAIR", c)
		b.expectServices(nstest.OutsideV4, nstest.OutsideV6)
		b.OK("DEL", c)
		Expect(b.elements() + b.saved()).NotTo(ContainSubstring("one"))
	},
		Entry("nftables, by default", "", false), Entry("iptables", withBackend(backendIPTables), false), Entry("nftables, if kube-proxy starts later", "", true))
})

// addVirtualServer adds a virtual server of ip_vs, with a server outside, as kube-proxy does.
func (b *testbed) addVirtualServer(service, server string) {
	GinkgoHelper()
	run := func(line string) error {
		_, err := b.Host.Exec("ipvsadm", strings.Fields(line)...)
		if err != nil && strings.Contains(err.Error(), "Can't initialize ipvs") {
			return fmt.Errorf("%w: %w", unix.EOPNOTSUPP, err)
		}
		return err
	}
	nstest.RequireFeature(GinkgoTB(), "ip_vs", run("-A "+service+" -s rr"))
	Expect(run("-a " + service + " -r " + server + " -m")).To(Succeed())
	b.Host.SetSysctl(GinkgoTB(), "net/ipv4/vs/conntrack", "1")
	nstest.ServeTCP(GinkgoTB(), b.Outside, server)
}
