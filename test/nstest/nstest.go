// Package nstest creates network namespaces for tests, such as hosts, containers and outside hosts. It also sends
// traffic between them, takes snapshots of the state that a plugin can change, and injects a fault into each step of a
// plugin, one after the other.
//
// No function changes the namespace in which the test binary was started. The Cleanup of the test removes everything
// that a function created for the test.
package nstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/test/nstest/sandbox"
)

// TB contains the methods of a test that the helpers use. *testing.T, *testing.B, *testing.F and the result of Ginkgo's
// GinkgoTB implement it.
type TB interface {
	Helper()
	Name() string
	TempDir() string
	Cleanup(func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Failed() bool
}

// FullOrShort returns full, or short if the tests run with -short. Tests use it for the number of slow repetitions.
func FullOrShort(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// NS is a network namespace. It exists until the end of the test, or until Remove.
type NS struct {
	name string
	path string
	fd   int
	tb   TB
}

// New creates a network namespace for a container, as a runtime does. Its path is a bind mount in the test's temporary
// directory, and its loopback interface is down.
func New(tb TB) *NS {
	tb.Helper()
	n, err := create(tb.TempDir(), "ns")
	if err != nil {
		tb.Fatalf("create a network namespace: %v; run the test as root", err)
	}
	n.tb = tb
	tb.Cleanup(func() {
		if err := n.close(); err != nil {
			tb.Errorf("remove network namespace: %v", err)
		}
	})
	return n
}

// NewHost creates a network namespace for a host, with its loopback interface up.
func NewHost(tb TB) *NS {
	tb.Helper()
	n := New(tb)
	n.name = "host"
	n.Must(tb, "ip", "link", "set", "lo", "up")
	return n
}

// NewHostAndContainer creates a host and a container.
func NewHostAndContainer(tb TB) (host, container *NS) {
	tb.Helper()
	host, container = NewHost(tb), New(tb)
	container.name = "container"
	return host, container
}

// create creates a namespace on a separate thread and bind-mounts it to a file in dir.
func create(dir, name string) (*NS, error) {
	path := filepath.Join(dir, "netns")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", path, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), unix.Unmount(path, unix.MNT_DETACH))
	}
	return &NS{name: name, path: path, fd: fd}, nil
}

// onThread runs f on a separate, locked thread, which f may move to another namespace. Afterwards, the thread returns
// to its original namespace or, if this fails, ends with its goroutine.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		original, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- err
			return
		}
		// t.Fatal in f ends the goroutine (runtime.Goexit). In this case as well, the deferred function restores the
		// namespace and lets the caller continue.
		result := errors.New("the function on the namespace's thread did not return")
		defer func() {
			if unix.Setns(original, unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			_ = unix.Close(original)
			done <- result
		}()
		result = f()
	}()
	return <-done
}

// Path returns the path of the namespace, as a runtime passes it in CNI_NETNS.
func (n *NS) Path() string { return n.path }

// FD returns an open file descriptor of the namespace. It is valid until Remove or the end of the test.
func (n *NS) FD() int { return n.fd }

// Open returns a handle of the namespace with this tracer, which may be nil. The handle is closed at the end of the
// test.
func (n *NS) Open(tb TB, t *trace.Tracer) *ns.Handle {
	tb.Helper()
	h, err := ns.Open(n.path, t)
	Must(tb, err)
	tb.Cleanup(func() {
		if err := h.Close(); err != nil {
			tb.Errorf("close %s: %v", n.name, err)
		}
	})
	return h
}

// Named sets the name of the namespace in snapshots, and returns the namespace.
func (n *NS) Named(name string) *NS {
	n.name = name
	return n
}

// Do runs f on a thread that is in the namespace. A socket that f opens stays in the namespace, but goroutines that f
// starts run elsewhere.
func (n *NS) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", n.path, err)
		}
		return f()
	})
}

// Exec runs a program in the namespace and returns its stdout. If the program fails, the
// error contains its stderr.
func (n *NS) Exec(name string, args ...string) (string, error) {
	return n.ExecInput("", name, args...)
}

// ExecInput runs a program as Exec does, with a text on its stdin.
func (n *NS) ExecInput(stdin, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var out, errOut strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	if err := n.Start(cmd); err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

// Start starts cmd in the namespace, because a process begins in the namespace of the thread that forked it. The caller
// must call cmd.Wait.
func (n *NS) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Must runs a program as Exec does, and ends the test if the program fails.
func (n *NS) Must(tb TB, name string, args ...string) string {
	tb.Helper()
	out, err := n.Exec(name, args...)
	Must(tb, err)
	return out
}

// MustLine calls Must with the words of the line, which are the program and its arguments.
func (n *NS) MustLine(tb TB, line string) string {
	tb.Helper()
	words := strings.Fields(line)
	return n.Must(tb, words[0], words[1:]...)
}

// IP runs the program ip with the words of the line as arguments. It returns the lines of stdout without white space at
// their ends, and ends the test if ip fails.
func (n *NS) IP(line string) string {
	n.tb.Helper()
	var lines []string
	for out := range strings.Lines(n.Must(n.tb, "ip", strings.Fields(line)...)) {
		lines = append(lines, strings.TrimSpace(out))
	}
	return strings.Join(lines, "\n")
}

// Batch runs the lines with ip -batch in the namespace.
func (n *NS) Batch(tb TB, lines ...string) {
	tb.Helper()
	if _, err := n.ExecInput(strings.Join(lines, "\n")+"\n", "ip", "-batch", "-"); err != nil {
		tb.Fatalf("%v\nbatch: %s", err, strings.Join(lines, "; "))
	}
}

// Sysctl returns a sysctl of the namespace. The key contains slashes, for example net/ipv4/ip_forward.
func (n *NS) Sysctl(tb TB, key string) string {
	tb.Helper()
	var value []byte
	err := n.Do(func() (err error) {
		value, err = os.ReadFile("/proc/sys/" + key)
		return err
	})
	Must(tb, err)
	return strings.TrimSpace(string(value))
}

// SetSysctl sets a sysctl of the namespace.
func (n *NS) SetSysctl(tb TB, key, value string) {
	tb.Helper()
	Must(tb, n.Do(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0) }))
}

// SetForwarding sets the forwarding sysctls of both IP versions to "1" or "0".
func (n *NS) SetForwarding(tb TB, value string) {
	tb.Helper()
	n.SetSysctl(tb, "net/ipv4/ip_forward", value)
	n.SetSysctl(tb, "net/ipv6/conf/all/forwarding", value)
}

// SkipDAD lets duplicate address detection end at once, without a packet, on interfaces that are later created in the
// namespace or moved into it.
func (n *NS) SkipDAD(tb TB) {
	tb.Helper()
	n.SetSysctl(tb, "net/ipv6/conf/default/dad_transmits", "0")
	n.SetSysctl(tb, "net/ipv6/conf/default/router_solicitation_delay", "0")
}

// Remove removes the namespace before the end of the test, as a runtime does before a late DEL. Its path becomes a
// regular file.
func (n *NS) Remove(tb TB) {
	tb.Helper()
	if err := n.close(); err != nil {
		tb.Fatalf("remove network namespace: %v", err)
	}
}

func (n *NS) close() error {
	if n.fd < 0 {
		return nil
	}
	err := errors.Join(unix.Close(n.fd), unix.Unmount(n.path, unix.MNT_DETACH))
	n.fd = -1
	return err
}

// unsupportedErrors lists the errors with which the kernel, or a program that uses it, reports a missing feature.
var unsupportedErrors = []error{
	syscall.EOPNOTSUPP, syscall.EPROTONOSUPPORT, syscall.ESOCKTNOSUPPORT, syscall.EAFNOSUPPORT,
	syscall.ENOSYS, os.ErrNotExist,
}

// Kernel is the label of specs that call RequireFeature, because some kernels lack a feature that they test.
// test/vm/run.sh runs these specs on a kernel with all features.
const Kernel = "kernel"

// RequireFeature ends the test unless err, the result of using a kernel feature, is nil. If err means that the kernel
// lacks the feature, RequireFeature skips the test, or fails it with CNI_TEST_REQUIRE=all. Any other error fails the
// test. If CNI_TEST_NEEDS names a file, RequireFeature appends a line that says whether the kernel supports the
// feature, so that the skipped tests can run on another kernel.
func RequireFeature(tb TB, feature string, err error) {
	tb.Helper()
	switch {
	case err == nil:
		recordFeature(tb, "has", feature)
	case !isUnsupported(err):
		tb.Fatalf("%s: %v", feature, err)
	case os.Getenv("CNI_TEST_REQUIRE") == "all":
		tb.Fatalf("CNI_TEST_REQUIRE=all, but the test needs %s: %v", feature, err)
	default:
		recordFeature(tb, "lacks", feature)
		tb.Skipf("the test needs %s: %v", feature, err)
	}
}

// RequireRoot skips a test that needs more than root of a user namespace, with the reason, which completes "root of the
// host". With CNI_TEST_REQUIRE=all, it fails the test instead.
func RequireRoot(tb TB, reason string) {
	tb.Helper()
	if !sandbox.IsRootOfHost() {
		RequireFeature(tb, "root of the host "+reason, fmt.Errorf("this is a user namespace: %w", syscall.EOPNOTSUPP))
	}
}

// recordFeature records whether the kernel has the feature (see sandbox.Record).
func recordFeature(tb TB, verb, feature string) {
	tb.Helper()
	if err := sandbox.Record(verb, tb.Name()+": "+feature); err != nil {
		tb.Fatalf("CNI_TEST_NEEDS: %v", err)
	}
}

// isUnsupported reports whether err means that the kernel lacks a feature.
func isUnsupported(err error) bool {
	for _, e := range unsupportedErrors {
		if errors.Is(err, e) {
			return true
		}
	}
	text := err.Error()
	return strings.Contains(text, "not supported") || strings.Contains(text, "Unknown device type")
}
