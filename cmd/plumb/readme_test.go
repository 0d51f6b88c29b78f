package main

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("README.md", func() {
	It("shows what the commands print for its list", func() {
		p := newPageTools()
		page := nstest.ReadFile(GinkgoTB(), filepath.Join(nstest.Root(GinkgoTB()), "README.md"))
		list := p.network("10-pods.conflist", strings.NewReplacer(`"type": "host-local"`, `"type": "host-local", "dataDir": "DIR/data"`,
			`"type": "tuning"`, `"type": "tuning", "dataDir": "DIR/tuning"`).Replace(nstest.JSONBlocks(page)[0]))
		p.add(list, newContainer(id(pageLive), 8080))
		p.add(list, newContainer(id(pageDead)))
		p.ageBy(76*time.Hour + 30*time.Minute)
		Expect(os.WriteFile(p.path("plumb.yaml"), []byte("cri: ["+p.path("cri.sock")+"]\n"), 0o644)).To(Succeed())
		runtime := p.containerd()
		runtime.binDir = p.path("opt/bin")
		serve(p.path("cri.sock"), runtime)
		p.checkPage("README.md", "Try it")
	})
})
