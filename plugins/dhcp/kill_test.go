package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/faults/inject"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestMain(m *testing.M) {
	inject.Launch()
	os.Exit(m.Run())
}

// A killer kills a daemon at one of the calls after it is armed.
type killer struct {
	mu    sync.Mutex
	armed bool
	left  int    // calls until the kill
	at    string // the call at which the daemon was killed; empty: it was not killed
}

func (k *killer) decide(c *inject.Call) inject.Verdict {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.armed || k.at != "" {
		return inject.Pass()
	}
	if k.left--; k.left > 0 {
		return inject.Pass()
	}
	k.at = c.Name
	return inject.Kill()
}

func (k *killer) arm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = true
}

func (k *killer) killedAt() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.at
}

var _ = It("releases what a daemon requested that is killed at any system call of an ADD", func() {
	b := newTestbed()
	bin := filepath.Join(nstest.Build(GinkgoTB(), "dhcp"), "dhcp")
	stride := nstest.FullOrShort(1, 5)
	for n := 1; ; n += stride {
		k := &killer{left: n}
		cmd := exec.Command(bin, "daemon", "-socketpath", b.socket, "-resendmax", "200ms")
		tree, err := inject.Session{Calls: inject.Mutating(), Decide: k.decide, Start: b.lan.Start}.Run(cmd)
		Expect(err).NotTo(HaveOccurred())
		b.awaitDaemon()
		k.arm()
		c := b.call("")
		r := run(c, "ADD")
		at := k.killedAt()
		if at == "" {
			r.OK(GinkgoTB())
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		Expect(tree.Wait(time.Minute)).To(Succeed())
		// The runtime calls DEL after a failed ADD: before or after the daemon runs again.
		if n%2 == 0 {
			run(c, "DEL").OK(GinkgoTB())
		}
		end := b.startDaemon()
		run(c, "DEL").OK(GinkgoTB())
		Eventually(b.files).Should(BeEmpty())
		messages := b.server.Received()
		if slices.ContainsFunc(messages, func(m nstest.DHCPMessage) bool { return m.MessageType() == requested }) &&
			!slices.ContainsFunc(messages, func(m nstest.DHCPMessage) bool { return m.MessageType() == released }) {
			b.server.Await(GinkgoTB(), released)
		}
		Expect(end(syscall.SIGTERM)).To(Succeed())
		b.server.Received()
		if at == "" {
			AddReportEntry("calls", n-1)
			Expect(n).To(BeNumerically(">", 5), "calls of an ADD")
			return
		}
	}
})
