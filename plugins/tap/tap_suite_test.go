package main

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestTap(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/tap")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a host with one container.
type testbed struct {
	*nstest.Bed
	container *nstest.NS
}

func newTestbed() *testbed {
	GinkgoHelper()
	nstest.RequireTaps(GinkgoTB())
	b := &testbed{Bed: nstest.NewBedOn(GinkgoTB(), plugin(), nstest.NewHost(GinkgoTB()), "host-local", "static")}
	b.container = b.NewContainer()
	return b
}

const (
	static = `{"type":"static","addresses":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64","gateway":"fd00:1::1"}],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["10.1.0.53"]}}`
	noIPAM = ""
)

func conf(version, keys, ipam string) string { return nstest.Conf("tap", version, keys, ipam) }

func (b *testbed) call(conf string) nstest.Call { return b.Call("one", b.container, conf) }

// mustAttach attaches to the tap eth0 of the namespace until the spec ends.
func mustAttach(n *nstest.NS, flags int) *os.File {
	GinkgoHelper()
	return nstest.MustAttachTap(GinkgoTB(), n, "eth0", flags)
}

// attachAs attaches to the tap eth0 of the namespace as a user with only this group, and returns the kernel's
// error. The thread that became this user ends.
func attachAs(n *nstest.NS, user, group uintptr) error {
	GinkgoHelper()
	fd := nstest.OpenTun(GinkgoTB(), n)
	defer func() { _ = unix.Close(fd) }()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		for _, call := range [][4]uintptr{{unix.SYS_SETGROUPS}, {unix.SYS_SETRESGID, group, group, group}, {unix.SYS_SETRESUID, user, user, user}} {
			if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				result <- fmt.Errorf("become user %d: %w", user, errno)
				return
			}
		}
		result <- nstest.AttachFile(fd, "eth0", 0)
	}()
	return <-result
}
