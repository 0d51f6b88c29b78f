package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// adoptOrphans makes this process the parent of all descendants whose parent ends, until the
// end of the spec (PR_SET_CHILD_SUBREAPER).
func adoptOrphans() {
	GinkgoHelper()
	Expect(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)).To(Succeed())
	DeferCleanup(func() { Expect(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)).To(Succeed()) })
}

// A blockedProgram is a directory with a script that waits for unblock and then executes the real
// program. Only the first process waits. Later processes execute the real program at once.
type blockedProgram struct{ dir string }

// newBlockedProgram returns a script with the name program. real is the path of the real program.
func newBlockedProgram(program, real string) blockedProgram {
	GinkgoHelper()
	p := blockedProgram{GinkgoTB().TempDir()}
	for _, fifo := range []string{"started", "go"} {
		Expect(unix.Mkfifo(filepath.Join(p.dir, fifo), 0o600)).To(Succeed())
	}
	Expect(os.WriteFile(filepath.Join(p.dir, program), fmt.Appendf(nil, `#!/bin/sh
if mkdir %[1]s/first 2>/dev/null; then
	echo >%[1]s/started
	read -r _ <%[1]s/go
fi
exec %[2]s "$@"
`, p.dir, real), 0o755)).To(Succeed())
	return p
}

func (p blockedProgram) waitStarted() {
	GinkgoHelper()
	nstest.ReadFile(GinkgoTB(), filepath.Join(p.dir, "started"))
}

// unblock lets the first process continue. It does nothing if the process was killed.
func (p blockedProgram) unblock() {
	GinkgoHelper()
	f, err := os.OpenFile(filepath.Join(p.dir, "go"), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENXIO) {
		return
	}
	Expect(err).NotTo(HaveOccurred())
	_, err = f.WriteString("\n")
	Expect(errors.Join(err, f.Close())).To(Succeed())
}

// A program that a plugin started may still run after the plugin was killed, and even after the
// next DEL. For the IPAM plugin, syscalls_test.go tests the same.
var _ = Describe("an iptables program that still runs after its plugin was killed", func() {
	It("leaves nothing behind after DEL", func() {
		nstest.LeakCheck(GinkgoTB())
		adoptOrphans()
		s := newStressHost()
		n := s.networkIndex("iptables")
		first, c := s.newContainer("first", n), s.newContainer("killed", n)
		s.runContainer(first) // creates the objects that containers share
		before := nstest.WaitStable(s.state)

		p := newBlockedProgram("iptables-restore", findProgram("iptables-restore"))
		cmd := s.firstPluginADD(n, c)
		cmd.Env = append(cmd.Env, "PATH="+p.dir+":"+os.Getenv("PATH"))
		Expect(s.Host.Start(cmd)).To(Succeed())
		p.waitStarted()
		Expect(cmd.Process.Kill()).To(Succeed())
		Expect(cmd.Wait()).NotTo(Succeed())

		Expect(s.runtime(nil).DelNetworkList(context.Background(), s.lists[n], s.runtimeConf(c, c.attachments[0]))).To(Succeed())
		p.unblock()
		for _, pid := range childPIDs() {
			waitPID(pid)
		}
		left := nstest.WaitEqual(before, s.state)
		record("plugin killed while its child runs, then DEL", left == "")
		Expect(left).To(BeEmpty(), "left")
		Expect(s.errorText()).To(BeEmpty())
	})
})

// findProgram returns the path of a program in PATH or /usr/sbin.
func findProgram(name string) string {
	GinkgoHelper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	Expect(err).NotTo(HaveOccurred())
	return path
}
