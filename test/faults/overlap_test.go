package faults

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/test/nstest"
)

// A runtime that is killed in the midst of an ADD leaves the plugin at work, and its
// successor asks for a DEL of the same attachment.
var _ = Describe("a DEL during the ADD of the same attachment", func() {
	for _, s := range subjects() {
		if !callsIPAM(s) {
			continue
		}
		It("waits for it, and leaves nothing of "+s.name, func() {
			b := newBed(s)
			g := newGate("host-local", filepath.Join(b.bin, "host-local"))
			add := b.add()
			add.Path = g.dir
			added := b.begin(add)
			g.started()

			deleted := b.begin(b.del(""))
			Eventually(func() bool { return deleted.over() || waitingForLock() > 0 }).WithTimeout(patience).Should(BeTrue())
			over := deleted.over()
			g.open()
			added.reply(b).OK(b)
			deleted.reply(b).OK(b)
			err := waitUnchanged(b.before, b.fullState)
			tried("a DEL during the ADD of the same attachment", err == nil)
			Expect(err).NotTo(HaveOccurred())
			Expect(over).To(BeFalse(), "DEL was over before the ADD")
		})
	}
})

// An ongoing is a call that was begun.
type ongoing struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	ended          chan struct{}
}

func (b *bed) begin(c nstest.Call) *ongoing {
	GinkgoHelper()
	o := &ongoing{cmd: c.Cmd(b.program()), ended: make(chan struct{})}
	o.cmd.Stdout, o.cmd.Stderr = &o.stdout, &o.stderr
	Expect(b.node.Start(o.cmd)).To(Succeed())
	go func() {
		_ = o.cmd.Wait() // the exit status says it
		close(o.ended)
	}()
	return o
}

func (o *ongoing) over() bool {
	select {
	case <-o.ended:
		return true
	default:
		return false
	}
}

func (o *ongoing) reply(tb nstest.TB) nstest.Reply {
	GinkgoHelper()
	select {
	case <-o.ended:
	case <-time.After(patience):
		_ = o.cmd.Process.Kill()
		<-o.ended
		tb.Fatalf("no end of %s: %s%s", o.cmd.Path, o.stdout.String(), o.stderr.String())
	}
	return nstest.Reply{Stdout: o.stdout.String(), Stderr: o.stderr.String(), Exit: o.cmd.ProcessState.ExitCode()}
}

// waitingForLock is how many processes wait for the lock of an attachment.
func waitingForLock() int {
	GinkgoHelper()
	var st unix.Stat_t
	if err := unix.Stat("/run/cni/plumb.lock", &st); err != nil {
		return 0
	}
	list, err := os.ReadFile("/proc/locks")
	Expect(err).NotTo(HaveOccurred())
	n := 0
	for line := range strings.Lines(string(list)) {
		if strings.Contains(line, "-> OFDLCK") && strings.Contains(line, fmt.Sprintf(":%d ", st.Ino)) {
			n++
		}
	}
	return n
}
