package main

import (
	"net"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("with the reference plugin", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("the daemon rejects the reference plugin's ADD, CHECK and DEL with an explanation, and serves the next call", func() {
		b.runDaemon()
		c := b.call("")
		c.Config = b.conf("1.0.0", "")
		c.Host = b.Host
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			r := nstest.ExecReference(GinkgoTB(), "dhcp", c.With(command))
			Expect(r.Stdout).To(ContainSubstring("this is the DHCP daemon of plumb, which the reference plugin dhcp cannot call; install plumb's plugin"), command)
		}
		Expect(b.files()).To(BeEmpty())
		b.address(c)
	})

	It("ADD, CHECK and STATUS report the reference plugin's daemon, and DEL succeeds", func() {
		cmd := exec.Command(filepath.Join(nstest.Reference(GinkgoTB()), "dhcp"), "daemon", "-socketpath", b.socket)
		cmd.Stderr = GinkgoWriter
		Expect(b.Host.Start(cmd)).To(Succeed())
		DeferCleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		Eventually(func() error {
			c, err := net.Dial("unix", b.socket) // between bind and listen, the file exists, and the kernel refuses connections
			if err == nil {
				err = c.Close()
			}
			return err
		}).Should(Succeed())
		const advice = "stop it, and start the daemon of this plugin"
		c := b.call("")
		b.Fails("ADD", c, types.CodeIO, "the daemon of the reference plugin listens at "+b.socket, advice)
		b.Fails("CHECK", c, types.CodeIO, advice)
		b.Fails("STATUS", c, types.CodeNotAvailable, advice)
		b.OK("DEL", c)
		Expect(b.server.Received()).To(BeEmpty())
	})
})
