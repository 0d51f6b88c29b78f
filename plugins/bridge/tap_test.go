package main

import (
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// holdTap runs f while this process holds the tap device open, as a virtual machine would.
func holdTap(n *nstest.NS, name string, f func()) {
	GinkgoHelper()
	var file *os.File
	Expect(n.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "tun")
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	})).To(Succeed())
	defer func() { Expect(file.Close()).To(Succeed()) }()
	f()
}
