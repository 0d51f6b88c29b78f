package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// useDelegator replaces the network's plugin by the delegator, which calls it.
func useDelegator(network *testNetwork) {
	GinkgoHelper()
	dir := GinkgoTB().TempDir()
	cmd := exec.Command("go", "build", "-o", dir, "./delegator")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))

	wrap := map[string]any{"type": "delegator", "delegate": json.RawMessage(network.list.Plugins[0].Bytes)}
	text, err := json.Marshal(map[string]any{"cniVersion": network.list.CNIVersion, "name": network.list.Name, "plugins": []any{wrap}})
	Expect(err).NotTo(HaveOccurred())
	network.list = parseList(string(text))
	network.cni = libcni.NewCNIConfigWithCacheDir(append([]string{dir}, network.cni.Path...), filepath.Join(dir, "cache"),
		&execOnNode{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: network.Node})
}

var _ = Describe("bridge and host-local called by a delegating plugin", func() {
	DescribeTable("serve pods from ADD to DEL",
		func(cniVersion string) {
			network := newBridgeNetwork(cniVersion, "nftables")
			useDelegator(network)
			v, err := types.ParseVersion(cniVersion)
			Expect(err).NotTo(HaveOccurred())
			Expect(network.cni.GetStatusNetworkList(context.Background(), network.list)).To(Succeed())
			existing := network.addPod("existing")
			before := nstest.WaitStable(network.state)

			a, b := network.addPod("a"), network.addPod("b")
			if v >= types.V040 {
				Expect(network.check(a)).To(Succeed())
				a.Must(GinkgoTB(), "ip", "address", "delete", a.v4.String()+"/16", "dev", "eth0")
				Expect(errorCode(network.check(a))).To(BeEquivalentTo(100), "the code of bridge")
				a.Must(GinkgoTB(), "ip", "address", "add", a.v4.String()+"/16", "dev", "eth0")
				a.Must(GinkgoTB(), "ip", "route", "replace", "default", "via", "10.1.0.1")
			}
			expectTraffic(network, a, b)

			Expect(network.del(a.rt)).To(Succeed())
			a.rt.NetNS = ""
			Expect(network.del(a.rt)).To(Succeed(), "second DEL, without namespace")
			b.Remove(GinkgoTB())
			b.rt.NetNS = ""
			if v >= types.V110 {
				Expect(network.gc(existing)).To(Succeed())
			} else {
				Expect(network.del(b.rt)).To(Succeed())
			}
			Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "left")
		},
		EntryDescription("version %s"), Entry(nil, "0.3.1"), Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"))

	It("leave nothing after a failed ADD, and return their error code", func() {
		network := newBridgeNetwork("1.1.0", "nftables")
		useDelegator(network)
		network.addPod("existing")
		before := nstest.WaitStable(network.state)
		p := newPod("p")
		p.rt.NetNS = "/does/not/exist"
		Expect(errorCode(network.add(p))).To(BeEquivalentTo(types.CodeNamespace))
		Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "left")
	})
})
