package nstest

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// NewVMNode returns the initial network namespace of the virtual machine of test/vm/run.sh, which
// contains two network cards, because the kernel returns network cards to the initial namespace when
// their namespace ends. On any other machine, NewVMNode skips the test.
func NewVMNode(tb TB) *NS {
	tb.Helper()
	var err error
	if !inVM() {
		err = fmt.Errorf("this is not the virtual machine of test/vm: %w", os.ErrNotExist)
	}
	RequireFeature(tb, "network cards for tests", err)
	const path = "/proc/1/ns/net"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatalf("open %s: %v", path, err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	return &NS{name: "host", path: path, fd: fd, tb: tb}
}

// inVM reports whether this machine is the virtual machine of test/vm/run.sh.
func inVM() bool {
	cmdline, err := os.ReadFile("/proc/cmdline")
	return err == nil && strings.Contains(string(cmdline), " vm.dir=")
}
