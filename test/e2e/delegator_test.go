package e2e

import (
	"encoding/json"
	"os"
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/cnitest"
	"github.com/plumb-cni/plumb/test/nstest"
)

// useDelegator replaces the network's plugin with the delegator in dir, which calls the plugin.
func useDelegator(network *testNetwork, dir string) {
	GinkgoHelper()
	network.CNI.Path = append([]string{dir}, network.CNI.Path...)
	wrap := map[string]any{"type": "delegator", "delegate": json.RawMessage(network.List.Plugins[0].Bytes)}
	text, err := json.Marshal(map[string]any{"cniVersion": network.List.CNIVersion, "name": network.List.Name, "plugins": []any{wrap}})
	Expect(err).NotTo(HaveOccurred())
	network.List = cnitest.ParseList(string(text))
}

var _ = Describe("bridge and host-local called by a delegating plugin", Ordered, func() {
	var dir string
	BeforeAll(func() {
		dir = GinkgoTB().TempDir()
		cmd := exec.Command("go", "build", "-o", dir, "./delegator")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	})

	DescribeTable("connect containers from ADD to DEL",
		func(cniVersion string) {
			network := newBridgeNetwork(cniVersion, "nftables")
			useDelegator(network, dir)
			v, err := types.ParseVersion(cniVersion)
			Expect(err).NotTo(HaveOccurred())
			Expect(network.Status()).To(Succeed())
			existing := network.addContainer("existing")
			before := nstest.WaitStable(network.state)

			a, b := network.addContainer("a"), network.addContainer("b")
			if v >= types.V040 {
				Expect(network.Check(a)).To(Succeed())
				a.Must(GinkgoTB(), "ip", "address", "delete", a.V4.String()+"/16", "dev", "eth0")
				Expect(errorCode(network.Check(a))).To(BeEquivalentTo(100), "want the code of bridge")
				a.Must(GinkgoTB(), "ip", "address", "add", a.V4.String()+"/16", "dev", "eth0")
				a.Must(GinkgoTB(), "ip", "route", "replace", "default", "via", "10.1.0.1")
			}
			expectTraffic(network, a, b)

			Expect(network.Del(a)).To(Succeed())
			a.RT.NetNS = ""
			Expect(network.Del(a)).To(Succeed(), "second DEL, without a namespace")
			b.Remove(GinkgoTB())
			b.RT.NetNS = ""
			if v >= types.V110 {
				Expect(network.GC(existing)).To(Succeed())
			} else {
				Expect(network.Del(b)).To(Succeed())
			}
			Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "left")
		},
		EntryDescription("version %s"), Entry(nil, "0.3.1"), Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"))

	It("leave nothing after a failed ADD, and return their error code", func() {
		network := newBridgeNetwork("1.1.0", "nftables")
		useDelegator(network, dir)
		network.addContainer("existing")
		before := nstest.WaitStable(network.state)
		p := cnitest.NewContainer("p")
		p.RT.NetNS = "/does/not/exist"
		Expect(errorCode(network.add(p))).To(BeEquivalentTo(types.CodeNamespace))
		Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "left")
	})
})
