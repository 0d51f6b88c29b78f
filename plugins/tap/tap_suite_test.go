package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/test/nstest"
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

func openTun(n *nstest.NS) (fd int) {
	GinkgoHelper()
	Expect(n.Do(func() (err error) {
		fd, err = unix.Open(nl.TunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		return err
	})).To(Succeed())
	return fd
}

// attachFile attaches an open device file to the tap eth0.
func attachFile(fd, flags int) error {
	request, err := unix.NewIfreq("eth0")
	if err != nil {
		return err
	}
	request.SetUint16(uint16(unix.IFF_TAP | unix.IFF_NO_PI | flags))
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
}

// attachTap attaches to the tap eth0 of the namespace, as a virtual machine monitor does.
func attachTap(n *nstest.NS, flags int) (*os.File, error) {
	GinkgoHelper()
	fd := openTun(n)
	if err := attachFile(fd, flags); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), nl.TunPath), nil
}

// mustAttach attaches to the tap eth0 of the namespace until the spec ends.
func mustAttach(n *nstest.NS, flags int) *os.File {
	GinkgoHelper()
	file, err := attachTap(n, flags)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = file.Close() })
	return file
}

// attachAs attaches to the tap eth0 of the namespace as a user with only this group, and returns the kernel's
// error. The thread that became this user ends.
func attachAs(n *nstest.NS, user, group uintptr) error {
	GinkgoHelper()
	fd := openTun(n)
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
		result <- attachFile(fd, 0)
	}()
	return <-result
}

// newGuest creates a namespace whose eth0 is connected to the tap eth0 of the container, as in a virtual
// machine. It copies the frames that one end sends to the other.
func newGuest(container *nstest.NS, addrs ...string) *nstest.NS {
	GinkgoHelper()
	guest := nstest.New(GinkgoTB()).Named("guest")
	guest.SkipDAD(GinkgoTB())
	guest.Batch(GinkgoTB(), "tuntap add mode tap eth0", "link set eth0 up")
	for _, addr := range addrs {
		guest.Batch(GinkgoTB(), "address add "+addr+" dev eth0")
	}
	ends := []*os.File{mustAttach(container, 0), mustAttach(guest, 0)}
	var pumps sync.WaitGroup
	for i := range ends {
		pumps.Go(func() {
			for frame := make([]byte, 1<<16); ; {
				n, err := ends[i].Read(frame)
				if err != nil {
					return // the file was closed, or the tap deleted
				}
				_, _ = ends[1-i].Write(frame[:n])
			}
		})
	}
	DeferCleanup(func() {
		for _, end := range ends {
			_ = end.Close()
		}
		pumps.Wait()
	})
	return guest
}
