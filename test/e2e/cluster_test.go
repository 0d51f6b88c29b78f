package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// engineScript is an engine whose only free address is 10.9.0.7. test/engine has the real one.
const engineScript = `#!/bin/sh
claim=00000000000000000000000000000000
case $(tee -a "${0%/*}/requests") in
*'"verb":"adopt"'*) echo '{"free": 1, "revision": 1}' ;;
*'"verb":"claim"'*) echo '{"addresses": {"10.9.0.7": "'$claim'"}, "free": 0, "revision": 2}' ;;
*'"verb":"release"'*) echo '{"addresses": {"10.9.0.7": "'$claim'"}, "free": 1, "revision": 3}' ;;
*) exit 1 ;;
esac
`

var _ = Describe("bridge with cluster-local", func() {
	It("gives a container an address of the engine, from ADD to DEL", func() {
		tb, ctx := GinkgoTB(), context.Background()
		dir, node := tb.TempDir(), nstest.NewNode(tb)
		Expect(os.WriteFile(filepath.Join(dir, "script"), []byte(engineScript), 0o755)).To(Succeed())
		cni := libcni.NewCNIConfigWithCacheDir([]string{nstest.Build(tb, "bridge", "cluster-local"), dir}, filepath.Join(dir, "cache"),
			&execOnNode{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: node})
		list := parseList(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "wire", "plugins": [{"type": "bridge", "bridge": "cni0", "ipam": {"type": "cluster-local", "node": "n1",
			"dataDir": %q, "subnet": "10.9.0.0/28", "engine": {"type": "script"}}}]}`, filepath.Join(dir, "leases")))
		p := newPod("c1")

		Expect(cni.GetStatusNetworkList(ctx, list)).To(Succeed())
		_, err := cni.AddNetworkList(ctx, list, p.rt)
		Expect(err).NotTo(HaveOccurred())
		Expect(p.MustLine(tb, "ip -4 -o addr show eth0")).To(ContainSubstring("10.9.0.7/28"))
		Expect(cni.CheckNetworkList(ctx, list, p.rt)).To(Succeed())
		valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}
		Expect(cni.DelNetworkList(ctx, list, p.rt)).To(Succeed())
		Expect(nstest.Reservations(tb, filepath.Join(dir, "leases"), "wire")).To(BeEmpty())
		Expect(cni.GCNetworkList(ctx, list, valid)).To(Succeed())
		requests, err := os.ReadFile(filepath.Join(dir, "requests"))
		Expect(err).NotTo(HaveOccurred())
		Expect(string(requests)).To(ContainSubstring(`"verb":"release","segment":"wire","node":"n1"`))
	})
})
