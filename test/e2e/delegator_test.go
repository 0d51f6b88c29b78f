package e2e

import (
	"fmt"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// delegator is a plugin that delegates all calls to bridge, as Multus and flannel do with libcni's package invoke. It
// adds its own network name, version and prevResult to bridge's configuration, and passes only the CNI variables in the
// environment.
const delegator = `#!/bin/sh
jq -c '.delegate + del(.type, .delegate)' | env -i $(env | grep ^CNI_) "${CNI_PATH#*:}/bridge"
`

// newDelegatedNetwork returns a bridge network in which the delegator calls the plugin.
func newDelegatedNetwork(cniVersion string) *testNetwork {
	GinkgoHelper()
	network, dir := newBridgeNetwork(cniVersion, "nftables"), GinkgoTB().TempDir()
	Expect(os.WriteFile(filepath.Join(dir, "delegator"), []byte(delegator), 0o755)).To(Succeed())
	network.CNI.Path = append([]string{dir}, network.CNI.Path...)
	network.SetList(cniVersion, network.List.Name, fmt.Sprintf(`{"type": "delegator", "delegate": %s}`, network.List.Plugins[0].Bytes))
	return network
}

var _ = Describe("bridge and host-local called by a delegating plugin", func() {
	DescribeTable("connect containers from ADD to DEL",
		func(cniVersion string) {
			network := newDelegatedNetwork(cniVersion)
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
		EntryDescription("version %s"), Entry(nil, "0.3.1"), Entry(nil, "1.1.0"))

	It("leave nothing after a failed ADD, and return their error code", func() {
		network := newDelegatedNetwork("1.1.0")
		network.addContainer("existing")
		before := nstest.WaitStable(network.state)
		p := cnitest.NewContainer("p")
		p.RT.NetNS = "/does/not/exist"
		Expect(errorCode(network.add(p))).To(BeEquivalentTo(types.CodeNamespace))
		Expect(nstest.WaitEqual(before, network.state)).To(BeEmpty(), "left")
	})
})
