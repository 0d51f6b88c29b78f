package e2e

import (
	"context"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/cnitest"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("loopback", func() {
	DescribeTable("sets lo up in ADD, and down in DEL",
		func(cniVersion string) {
			network := newBridgeNetwork("1.1.0", "nftables")
			lo := cnitest.ParseList(`{"cniVersion": "` + cniVersion + `", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`)
			p := cnitest.NewContainer("p")
			rt := &libcni.RuntimeConf{ContainerID: "p", NetNS: p.Path(), IfName: "lo"}
			result, err := network.CNI.AddNetworkList(context.Background(), lo, rt)
			Expect(err).NotTo(HaveOccurred())
			Expect(result.Version()).To(Equal(cniVersion))
			for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
				nstest.MustDial(GinkgoTB(), p.NS, nstest.ServeTCP(GinkgoTB(), p.NS, addr).String(), "")
			}
			if v, _ := types.ParseVersion(cniVersion); v >= types.V040 {
				Expect(network.CNI.CheckNetworkList(context.Background(), lo, rt)).To(Succeed())
			}
			Expect(network.CNI.DelNetworkList(context.Background(), lo, rt)).To(Succeed())
			Expect(p.Must(GinkgoTB(), "ip", "link", "show", "lo")).To(ContainSubstring("<LOOPBACK>"), "down")
		},
		EntryDescription("version %s"),
		Entry(nil, "0.1.0"), Entry(nil, "0.2.0"), Entry(nil, "0.3.0"), Entry(nil, "0.3.1"),
		Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"))
})
