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

// delegated has the cluster's network served by the delegator, which has bridge and
// host-local do it.
func delegated(c *cluster) {
	GinkgoHelper()
	dir := GinkgoTB().TempDir()
	cmd := exec.Command("go", "build", "-o", dir, "./delegator")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))

	wrap := map[string]any{"type": "delegator", "delegate": json.RawMessage(c.list.Plugins[0].Bytes)}
	text, err := json.Marshal(map[string]any{"cniVersion": c.list.CNIVersion, "name": c.list.Name, "plugins": []any{wrap}})
	Expect(err).NotTo(HaveOccurred())
	c.list = list(string(text))
	c.cni = libcni.NewCNIConfigWithCacheDir(append([]string{dir}, c.cni.Path...), filepath.Join(dir, "cache"),
		&onNode{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: c.Node})
}

var _ = Describe("bridge and host-local behind a delegating plugin", func() {
	DescribeTable("serve a pod's life",
		func(cniVersion string) {
			c := newCluster(cniVersion, "nftables")
			delegated(c)
			v, err := types.ParseVersion(cniVersion)
			Expect(err).NotTo(HaveOccurred())
			Expect(c.cni.GetStatusNetworkList(context.Background(), c.list)).To(Succeed())
			stays := c.attached("stays")
			before := nstest.WaitStable(c.state)

			a, b := c.attached("a"), c.attached("b")
			if v >= types.V040 {
				Expect(c.check(a)).To(Succeed())
				a.Must(GinkgoTB(), "ip", "address", "delete", a.v4.String()+"/16", "dev", "eth0")
				Expect(code(c.check(a))).To(BeEquivalentTo(100), "of bridge, through the delegator")
				a.Must(GinkgoTB(), "ip", "address", "add", a.v4.String()+"/16", "dev", "eth0")
				a.Must(GinkgoTB(), "ip", "route", "replace", "default", "via", "10.1.0.1")
			}
			trafficFlows(c, a, b)

			Expect(c.del(a.rt)).To(Succeed())
			a.rt.NetNS = ""
			Expect(c.del(a.rt)).To(Succeed(), "again, without a namespace")
			b.Remove(GinkgoTB())
			b.rt.NetNS = ""
			if v >= types.V110 {
				Expect(c.gc(stays)).To(Succeed())
			} else {
				Expect(c.del(b.rt)).To(Succeed())
			}
			Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "left")
		},
		EntryDescription("version %s"), Entry(nil, "0.3.1"), Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"))

	It("leave nothing when ADD fails, and say why with their own code", func() {
		c := newCluster("1.1.0", "nftables")
		delegated(c)
		c.attached("stays")
		before := nstest.WaitStable(c.state)
		p := newPod("p")
		p.rt.NetNS = "/does/not/exist"
		Expect(code(c.add(p))).To(BeEquivalentTo(types.CodeNamespace))
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "left")
	})
})
