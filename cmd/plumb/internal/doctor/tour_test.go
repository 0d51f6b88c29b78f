package doctor_test

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// The containers of the tour.
const (
	tourRuns = "4c1f0a77e1d2"
	tourGone = "e5b0c2a9f410"
)

// screen returns a command and what it prints, with the folders of a usual node.
func (n *usedNode) screen(gone, command string) string {
	GinkgoHelper()
	usual := strings.NewReplacer(
		" --cache-dir "+filepath.Join(n.dir, "cache"), "", " --cni-path "+n.bin(), "", " --conf-dir "+n.confDir(), "", " --data-dir "+n.pools(), "",
		n.confDir(), "/etc/cni/net.d", n.bin(), "/opt/cni/bin", n.pools(), "/var/lib/cni/networks", filepath.Join(n.dir, "cache"), "/var/lib/cni",
		n.built, "/usr/lib/plumb/cni", gone, "/run/netns/web",
	)
	out := n.sh(command + " || [ $? = 1 ]")
	return usual.Replace("# " + command + "\n" + out)
}

var _ = It("prints the screens of the page's tour", func() {
	n := &usedNode{testNode: newTestNode("bridge", "host-local", "portmap")}
	n.attachBy(masqueraded)
	n.add(tourRuns)
	gone := n.add(tourGone)
	gone.Remove(GinkgoTB())
	Eventually(func() string { return n.sh("ip -o link show type veth | wc -l") }).Should(Equal("1\n"))
	n.age()
	Expect(os.Remove(filepath.Join(n.pools(), "pods", "10.88.0.2"))).To(Succeed())
	n.change("10-pods.conflist", `"isGateway": true,
`, `"isGatway": true,
`)
	n.change("10-pods.conflist", "        }\n    ]", "        },\n        {\"type\": \"portmap\", \"capabilities\": {\"portMappings\": true}}\n    ]")
	Expect(os.Remove(filepath.Join(n.bin(), "portmap"))).To(Succeed())

	doctor := "plumb doctor " + strings.Join(n.folders(), " ")
	screens := n.screen(gone.Path(), doctor)
	for _, f := range n.doctor().Findings {
		Expect(f.IsCommand()).To(BeTrue(), f.Mend)
		screens += n.screen(gone.Path(), f.Mend)
	}
	screens += n.screen(gone.Path(), doctor)
	nstest.Golden(GinkgoTB(), "tour", screens)
	page, err := os.ReadFile(filepath.Join(nstest.Root(GinkgoTB()), "docs/plumb.md"))
	Expect(err).NotTo(HaveOccurred())
	Expect(string(page)).To(ContainSubstring("```console\n"+screens+"```\n"), "the tour in docs/plumb.md must have testdata/tour.golden")
})
