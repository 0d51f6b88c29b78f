package e2e

import (
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/cnitest"
)

// datastoreScript is a datastore whose only free address is 10.9.0.7. test/datastore tests the real
// one.
const datastoreScript = `#!/bin/sh
claim=00000000000000000000000000000000
case $(tee -a "${0%/*}/requests") in
*'"verb":"register"'*) echo '{"free": 1, "revision": 1}' ;;
*'"verb":"claim"'*) echo '{"addresses": {"10.9.0.7": "'$claim'"}, "free": 0, "revision": 2}' ;;
*'"verb":"release"'*) echo '{"addresses": {"10.9.0.7": "'$claim'"}, "free": 1, "revision": 3}' ;;
*) exit 1 ;;
esac
`

var _ = Describe("bridge with cluster-local", func() {
	It("assigns an address of the datastore to a container, from ADD to DEL", func() {
		network := newNetwork("1.1.0", `{"type": "bridge", "bridge": "cni0", "ipam": {"type": "cluster-local", "node": "n1",
			"dataDir": "DIR/leases", "subnet": "10.9.0.0/28", "datastore": {"type": "script"}}}`)
		network.CNI.Path = append(network.CNI.Path, network.Dir)
		Expect(os.WriteFile(filepath.Join(network.Dir, "script"), []byte(datastoreScript), 0o755)).To(Succeed())
		p := cnitest.NewContainer("c1")

		Expect(network.Status()).To(Succeed())
		Expect(network.Add(p)).To(Succeed())
		Expect(p.MustLine(GinkgoTB(), "ip -4 -o addr show eth0")).To(ContainSubstring("10.9.0.7/28"))
		Expect(network.Check(p)).To(Succeed())
		Expect(network.Del(p)).To(Succeed())
		Expect(network.reservations()).To(BeEmpty())
		Expect(network.GC(p)).To(Succeed())
		Expect(os.ReadFile(filepath.Join(network.Dir, "requests"))).To(ContainSubstring(`"verb":"release","segment":"e2e","node":"n1"`))
	})
})
