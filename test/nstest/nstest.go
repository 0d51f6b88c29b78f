// Package nstest gives tests network namespaces of their own on the real kernel:
// nodes, pods and outside hosts, traffic between them, snapshots of all that a
// plugin may touch, and the sweep that refuses each step of a plugin in turn.
//
// Nothing here touches the namespace that the test binary was started in, and
// everything made is removed by the Cleanup of the test that asked for it.
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

	"golang.org/x/sys/unix"
)

// TB is what the helpers need of a test; *testing.T, *testing.B, *testing.F and
// ginkgo's GinkgoTB() have it.
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

// NS is a network namespace that lives as long as the test, or until Remove.
type NS struct {
	name string
	path string
	fd   int
}

// New makes a network namespace as a runtime makes one for a container: it has a
// path (a bind mount in the test's temporary directory) and its loopback is down.
func New(tb TB) *NS {
	tb.Helper()
	n, err := create(tb.TempDir(), "ns")
	if err != nil {
		tb.Fatalf("make a network namespace (this needs root): %v", err)
	}
	tb.Cleanup(func() {
		if err := n.close(); err != nil {
			tb.Errorf("remove network namespace: %v", err)
		}
	})
	return n
}

// NewNode makes a network namespace as a node has it: loopback is up.
func NewNode(tb TB) *NS {
	tb.Helper()
	n := New(tb)
	n.name = "node"
	n.Must(tb, "ip", "link", "set", "lo", "up")
	return n
}

// Pair makes a node and a pod.
func Pair(tb TB) (node, pod *NS) {
	tb.Helper()
	node, pod = NewNode(tb), New(tb)
	pod.name = "pod"
	return node, pod
}

// create makes the namespace on a thread of its own and binds it to a file.
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

// onThread runs f on a thread that f may move to another namespace. Afterwards the
// thread is brought home; one that cannot be is ended with its goroutine.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- err
			return
		}
		// A test may leave f by runtime.Goexit (t.Fatal): bring the thread home then
		// too, and let the caller go on.
		result := errors.New("the function on the namespace's thread did not return")
		defer func() {
			if unix.Setns(home, unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			_ = unix.Close(home)
			done <- result
		}()
		result = f()
	}()
	return <-done
}

// Path is where the namespace is bound: what a runtime passes as CNI_NETNS.
func (n *NS) Path() string { return n.path }

// FD is an open descriptor of the namespace, valid to the end of the test.
func (n *NS) FD() int { return n.fd }

// Named gives the namespace the name under which it stands in snapshots.
func (n *NS) Named(name string) *NS {
	n.name = name
	return n
}

// Do runs f on a thread that is in the namespace. A socket opened there stays in
// the namespace; goroutines started there do not.
func (n *NS) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", n.path, err)
		}
		return f()
	})
}

// Exec runs a program in the namespace and gives what it wrote on stdout. The error
// carries what it wrote on stderr.
func (n *NS) Exec(name string, args ...string) (string, error) {
	return n.ExecInput("", name, args...)
}

// ExecInput is Exec with a text on stdin.
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

// Start starts cmd in the namespace; the caller waits for it. A process belongs to
// the namespace of the thread that forked it.
func (n *NS) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Must is Exec for what cannot fail.
func (n *NS) Must(tb TB, name string, args ...string) string {
	tb.Helper()
	out, err := n.Exec(name, args...)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	return out
}

// Batch feeds lines to ip -batch.
func (n *NS) Batch(tb TB, lines ...string) {
	tb.Helper()
	if _, err := n.ExecInput(strings.Join(lines, "\n")+"\n", "ip", "-batch", "-"); err != nil {
		tb.Fatalf("%v\nbatch: %s", err, strings.Join(lines, "; "))
	}
}

// Sysctl reads a setting of the namespace, given as net/ipv4/ip_forward.
func (n *NS) Sysctl(tb TB, key string) string {
	tb.Helper()
	var value []byte
	err := n.Do(func() (err error) {
		value, err = os.ReadFile("/proc/sys/" + key)
		return err
	})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	return strings.TrimSpace(string(value))
}

// SetSysctl writes a setting of the namespace.
func (n *NS) SetSysctl(tb TB, key, value string) {
	tb.Helper()
	if err := n.Do(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0) }); err != nil {
		tb.Fatalf("%v", err)
	}
}

// Remove ends the namespace now, as a runtime does before a late DEL: afterwards
// its path is a plain file.
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

// missing are the ways in which a kernel, or a program speaking to it, says that
// it does not have a thing.
var missing = []error{
	syscall.EOPNOTSUPP, syscall.EPROTONOSUPPORT, syscall.ESOCKTNOSUPPORT, syscall.EAFNOSUPPORT,
	syscall.ENOSYS, os.ErrNotExist,
}

// Kernel labels a spec that asks by Need for what a kernel may lack: test/vm/run.sh
// runs those on a kernel that has it.
const Kernel = "kernel"

// Need ends the test unless err is nil: it skips where err says that the kernel
// lacks the feature, and fails on any other error, and on that one too when the
// environment has CNI_TEST_REQUIRE=all. The file that CNI_TEST_NEEDS names, if any,
// gets the answer as a line: of what one kernel lacks, another can be asked.
func Need(tb TB, feature string, err error) {
	tb.Helper()
	switch {
	case err == nil:
		answer(tb, "has", feature)
	case !lacking(err):
		tb.Fatalf("%s: %v", feature, err)
	case os.Getenv("CNI_TEST_REQUIRE") == "all":
		tb.Fatalf("CNI_TEST_REQUIRE=all, and this kernel has no %s: %v", feature, err)
	default:
		answer(tb, "lacks", feature)
		tb.Skipf("this kernel has no %s: %v", feature, err)
	}
}

// answer notes what the kernel said: "lacks plugins/bridge: <test>: <feature>".
func answer(tb TB, verb, feature string) {
	tb.Helper()
	file := os.Getenv("CNI_TEST_NEEDS")
	if file == "" {
		return
	}
	dir, err := os.Getwd()
	if err == nil {
		dir, err = filepath.Rel(Root(tb), dir)
	}
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%s %s: %s: %s\n", verb, dir, tb.Name(), feature)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		tb.Fatalf("CNI_TEST_NEEDS: %v", err)
	}
}

func lacking(err error) bool {
	for _, m := range missing {
		if errors.Is(err, m) {
			return true
		}
	}
	text := err.Error()
	return strings.Contains(text, "not supported") || strings.Contains(text, "Unknown device type")
}
