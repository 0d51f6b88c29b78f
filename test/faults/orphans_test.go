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

	"github.com/plumb-cni/plumb/test/nstest"
)

// adoptOrphans makes the processes whose parent dies children of this one, for the
// time of the spec: so none can get away.
func adoptOrphans() {
	GinkgoHelper()
	Expect(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)).To(Succeed())
	DeferCleanup(func() { Expect(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)).To(Succeed()) })
}

// A gate is a folder with a program that says when it is started, and waits to be let
// on before it becomes the real one. Only the first one waits.
type gate struct{ dir string }

func newGate(program, real string) gate {
	GinkgoHelper()
	g := gate{GinkgoTB().TempDir()}
	for _, fifo := range []string{"started", "go"} {
		Expect(unix.Mkfifo(filepath.Join(g.dir, fifo), 0o600)).To(Succeed())
	}
	Expect(os.WriteFile(filepath.Join(g.dir, program), fmt.Appendf(nil, `#!/bin/sh
if mkdir %[1]s/first 2>/dev/null; then
	echo >%[1]s/started
	read -r _ <%[1]s/go
fi
exec %[2]s "$@"
`, g.dir, real), 0o755)).To(Succeed())
	return g
}

// started waits until the program is.
func (g gate) started() {
	GinkgoHelper()
	_, err := os.ReadFile(filepath.Join(g.dir, "started"))
	Expect(err).NotTo(HaveOccurred())
}

// open lets the program on, if it lives.
func (g gate) open() {
	GinkgoHelper()
	f, err := os.OpenFile(filepath.Join(g.dir, "go"), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENXIO) {
		return
	}
	Expect(err).NotTo(HaveOccurred())
	_, err = f.WriteString("\n")
	Expect(errors.Join(err, f.Close())).To(Succeed())
}

// What a plugin has started can still be at work when the plugin is killed, and when
// the DEL that follows is over.
var _ = Describe("a program that outlives its plugin", func() {
	DescribeTable("leaves nothing after DEL", func(network string, newGate func(bin string) gate, environ func(g gate, bin string) []string) {
		nstest.LeakCheck(GinkgoTB())
		adoptOrphans()
		s := newStorm()
		n := s.network(network)
		warm, l := s.life("warm", n), s.life("killed", n)
		s.lead(warm)
		before := nstest.WaitStable(s.state)

		g := newGate(s.bin)
		cmd := exec.Command(filepath.Join(s.bin, s.lists[n].Plugins[0].Network.Type))
		cmd.Env = append(environ(g, s.bin), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+l.id, "CNI_IFNAME=eth0", "CNI_NETNS="+l.pod.Path())
		cmd.Stdin = s.stdin(n)
		Expect(s.Node.Start(cmd)).To(Succeed())
		g.started()
		Expect(cmd.Process.Kill()).To(Succeed())
		Expect(cmd.Wait()).NotTo(Succeed())

		Expect(s.runtime(nil).DelNetworkList(context.Background(), s.lists[n], s.conf(l, l.legs[0]))).To(Succeed())
		g.open()
		for _, pid := range children() {
			reap(pid)
		}
		left := nstest.WaitEqual(before, s.state)
		tried("a program that outlives its killed plugin, then DEL", left == "")
		Expect(left).To(BeEmpty(), "left")
		Expect(s.failures()).To(BeEmpty())
	},
		Entry("IPAM", "chain",
			func(bin string) gate { return newGate("host-local", filepath.Join(bin, "host-local")) },
			func(g gate, _ string) []string { return []string{"CNI_PATH=" + g.dir, "PATH=" + os.Getenv("PATH")} }),
		Entry("iptables", "tables",
			func(string) gate { return newGate("iptables-restore", realProgram("iptables-restore")) },
			func(g gate, bin string) []string {
				return []string{"CNI_PATH=" + bin, "PATH=" + g.dir + ":" + os.Getenv("PATH")}
			}),
	)
})

func realProgram(name string) string {
	GinkgoHelper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	Expect(err).NotTo(HaveOccurred())
	return path
}
