package faults

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// If a runtime is killed during an ADD, the plugin continues to run. After its restart, the runtime
// calls DEL for the same attachment.
var _ = Describe("a DEL during the ADD of the same attachment", func() {
	for _, config := range pluginConfigs() {
		if !callsIPAM(config) {
			continue
		}
		It("waits for the ADD and removes everything: "+config.name, config.labels(), func() {
			n := newTestHost(config)
			n.replaceContainer()
			p := newBlockedProgram("host-local", filepath.Join(n.bin, "host-local"))
			add := n.addCall()
			add.Path = p.dir
			added := n.startCall(add)
			p.waitStarted()

			deleted := n.startCall(n.delCall(""))
			Eventually(func() bool { return deleted.hasEnded() || len(nstest.LockWaiters(skel.LockFile)) > 0 }).WithTimeout(callTimeout).Should(BeTrue())
			delEndedFirst := deleted.hasEnded()
			p.unblock()
			added.wait(n).OK(n)
			deleted.wait(n).OK(n)
			err := waitUnchanged(n.before, n.fullState)
			record("a DEL during the ADD of the same attachment", err == nil)
			Expect(err).NotTo(HaveOccurred())
			Expect(delEndedFirst).To(BeFalse(), "DEL must not end before ADD")
		})
	}
})

type runningCall struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	ended          chan struct{}
}

func (n *testHost) startCall(c nstest.Call) *runningCall {
	GinkgoHelper()
	r := &runningCall{cmd: c.Cmd(n.program()), ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	Expect(n.host.Start(r.cmd)).To(Succeed())
	go func() {
		_ = r.cmd.Wait() // wait returns the exit status
		close(r.ended)
	}()
	return r
}

func (r *runningCall) hasEnded() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// wait waits until the call has ended, and returns its reply.
func (r *runningCall) wait(tb nstest.TB) nstest.Reply {
	GinkgoHelper()
	select {
	case <-r.ended:
	case <-time.After(callTimeout):
		_ = r.cmd.Process.Kill()
		<-r.ended
		tb.Fatalf("%s does not end: %s%s", r.cmd.Path, r.stdout.String(), r.stderr.String())
	}
	return nstest.Reply{Stdout: r.stdout.String(), Stderr: r.stderr.String(), Exit: r.cmd.ProcessState.ExitCode()}
}
