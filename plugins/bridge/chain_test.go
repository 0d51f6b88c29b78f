package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("bridge after a plugin whose result lists only interfaces in the container", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	// afterLoopback returns the configuration with the result of loopback as prevResult, as in
	// Nomad's chain.
	afterLoopback := func(conf string, container *nstest.NS) string {
		prev := fmt.Sprintf(`{"cniVersion":"0.4.0","interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","sandbox":%q}],`+
			`"ips":[{"version":"4","interface":0,"address":"127.0.0.1/8"},{"version":"6","interface":0,"address":"::1/128"}],`+
			`"routes":[{"dst":"10.60.0.0/16"}],"dns":{"nameservers":["10.9.0.53"]}}`, container.Path())
		return strings.TrimSuffix(conf, "}") + `,"prevResult":` + prev + "}"
	}

	It("creates a pair, and returns nothing from prevResult", func() {
		conf := b.conf("0.4.0", gatewayed+`"ipMasq":true,`, v4range)
		container := newContainer()
		reply := b.OK("ADD", b.Call("one", container, afterLoopback(conf, container)))
		result := reply.Result(GinkgoTB())
		var names []string
		for _, in := range result.Interfaces {
			names = append(names, in.Name)
		}
		Expect(names).To(HaveExactElements("cni0", HavePrefix("veth"), "eth0"))
		Expect(result.IPs).To(HaveExactElements(HaveField("Address", prefix("10.9.0.2/24"))))
		Expect(result.Routes).NotTo(ContainElement(HaveField("Dst", prefix("10.60.0.0/16"))))
		Expect(result.DNS).To(BeZero())
		nstest.ServeTCP(GinkgoTB(), container, "10.9.0.2:80")
		nstest.MustDial(GinkgoTB(), b.Host, "10.9.0.2:80", "10.9.0.1")

		By("CHECK and DEL with that result")
		c := b.Call("one", container, nstest.WithPrevResult(conf, reply.Stdout))
		b.OK("CHECK", c)
		b.OK("DEL", c)
		Expect(container.Must(GinkgoTB(), "ip", "-br", "link")).NotTo(ContainSubstring("eth0"))
	})
})
