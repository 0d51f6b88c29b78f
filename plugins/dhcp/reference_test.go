package main

import (
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// reference is Debian's build of the reference plugin.
const reference = "/usr/lib/cni/dhcp"

var _ = Describe("with the reference plugin", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("the daemon tells its ADD, CHECK and DEL what is wrong, and serves the next call", func() {
		b.runDaemon()
		c := b.call("")
		c.Config = b.conf("1.0.0", "")
		c.Host, c.Path = b.lan, filepath.Dir(reference)
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			r := nstest.Exec(GinkgoTB(), reference, c.With(command))
			Expect(r.Stdout).To(ContainSubstring("this is the DHCP daemon of plumb, which the reference plugin dhcp cannot call: install plumb's"), command)
		}
		Expect(b.files()).To(BeEmpty())
		addedAddress(c)
	})

	It("ADD, CHECK and STATUS tell that its daemon listens, and DEL succeeds", func() {
		cmd := exec.Command(reference, "daemon", "-socketpath", b.socket)
		cmd.Stderr = GinkgoWriter
		Expect(b.lan.Start(cmd)).To(Succeed())
		DeferCleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		Eventually(b.socket).Should(BeAnExistingFile())
		const sentence = "stop it, and start this plugin's"
		c := b.call("")
		run(c, "ADD").RequireFailure(GinkgoTB(), types.CodeIO, "the daemon of the reference plugin listens at "+b.socket, sentence)
		run(c, "CHECK").RequireFailure(GinkgoTB(), types.CodeIO, sentence)
		run(c, "STATUS").RequireFailure(GinkgoTB(), types.CodeNotAvailable, sentence)
		run(c, "DEL").OK(GinkgoTB())
		Expect(b.server.Received()).To(BeEmpty())
	})
})
