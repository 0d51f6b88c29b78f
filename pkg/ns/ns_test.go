package ns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/plumb-cni/plumb/v2/test/nstest/sandbox"
	"golang.org/x/sys/unix"
)

// init locks the main goroutine to the process's first thread, so that no test runs on it. Other threads end with
// the goroutine that is locked to them, but the first thread would stay in its namespace.
func init() { runtime.LockOSThread() }

// newNS creates a network namespace that exists until the test ends, and returns its path.
func newNS(t *testing.T) string {
	t.Helper()
	var file *os.File
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			file, err = os.Open("/proc/thread-self/ns/net")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", file.Fd())
}

func open(t *testing.T, path string) *Handle {
	t.Helper()
	h, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// inode returns the inode number of the namespace.
func inode(h *Handle) uint64 {
	var st unix.Stat_t
	_ = unix.Fstat(h.FD(), &st)
	return st.Ino
}

// here returns the inode number of the calling thread's namespace.
func here(t *testing.T) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		dir + "/nowhere":    fs.ErrNotExist,
		file + "/x":         fs.ErrNotExist,
		"":                  fs.ErrNotExist,
		file:                ErrNotNamespace,
		dir:                 ErrNotNamespace,
		"/proc/self/status": ErrNotNamespace,
		"/proc/self/ns/mnt": ErrNotNamespace,
		"/proc/self/ns/uts": ErrNotNamespace,
		"/dev/null":         ErrNotNamespace,
	} {
		h, err := Open(path, nil)
		if h != nil || !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, %v", path, h, err)
		}
	}
}

func TestSame(t *testing.T) {
	a := newNS(t)
	self, err := Self(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	one, two, other := open(t, a), open(t, a), open(t, newNS(t))
	if !one.Same(two) || one.Same(other) || one.Same(self) {
		t.Error("Same does not compare the namespaces")
	}
	if again := open(t, "/proc/self/ns/net"); !again.Same(self) || again.Self() || !self.Self() {
		t.Error("the own namespace, opened by its path: want Same to be true, and Self to be false")
	}
	if one.Path() != a || one.FD() < 3 {
		t.Errorf("%q, %d", one.Path(), one.FD())
	}
}

// TestDoRunsInTheNamespace checks that f sees the other namespace, including in /proc/thread-self/net, and that no
// other goroutine runs on a thread in the other namespace.
func TestDoRunsInTheNamespace(t *testing.T) {
	h := open(t, newNS(t))
	home := here(t)
	var seen uint64
	boom := errors.New("boom")
	err := h.Do(func() error {
		seen = here(t)
		text, err := os.ReadFile("/proc/thread-self/net/dev")
		if n := strings.Count(string(text), ":"); err != nil || n != 1 {
			t.Errorf("%d devices, %v; want lo only", n, err)
		}
		return boom
	})
	if err != boom || seen != inode(h) || seen == home || here(t) != home {
		t.Errorf("%v; f ran in %d, want %d; then the caller is in %d, want %d", err, seen, inode(h), here(t), home)
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if err := h.Do(func() error { return nil }); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if here(t) != home {
				t.Error("another goroutine runs in the namespace of f")
			}
		})
	}
	all.Wait()
	awaitThreadsIn(t, home)
}

// TestNestedDoStaysOnTheThread checks that Do within Do of the same handle runs on the thread that is already in the
// namespace, and that Do of another goroutine runs on another thread.
func TestNestedDoStaysOnTheThread(t *testing.T) {
	h := open(t, newNS(t))
	home := here(t)
	err := h.Do(func() error {
		outer := unix.Gettid()
		other := make(chan int)
		go func() {
			_ = h.Do(func() error { other <- unix.Gettid(); return nil })
		}()
		if id := <-other; id == outer {
			t.Error("another goroutine ran on the thread of f")
		}
		return h.Do(func() error {
			if unix.Gettid() != outer || here(t) == home {
				t.Errorf("thread %d in namespace %d, want thread %d in another namespace than %d", unix.Gettid(), here(t), outer, home)
			}
			return nil
		})
	})
	if err != nil || here(t) != home {
		t.Error(err)
	}
}

// awaitThreadsIn waits until all threads are in the namespace with that inode number. A thread in another namespace
// ends some time after its goroutine.
func awaitThreadsIn(t *testing.T, home uint64) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for len(threadsAway(t, home)) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("still in another namespace: %v", threadsAway(t, home))
		}
		runtime.Gosched()
	}
}

// threadsAway returns the namespace paths of the threads that are in another namespace.
func threadsAway(t *testing.T, home uint64) (away []string) {
	t.Helper()
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range threads {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err == nil && st.Ino != home { // the thread may have ended
			away = append(away, path)
		}
	}
	return away
}

func TestCookie(t *testing.T) {
	path := newNS(t)
	one, two, other, home := open(t, path).Cookie(), open(t, path).Cookie(), open(t, newNS(t)).Cookie(), open(t, ownPath).Cookie()
	if home == 0 {
		t.Skip("the kernel has no cookies")
	}
	if one == 0 || one != two || one == other || one == home || other == home {
		t.Errorf("%d and %d of one namespace, %d of another, %d of the own", one, two, other, home)
	}
}

// TestDoReturnsToItsNamespace checks that the thread returns even if f does not.
func TestDoReturnsToItsNamespace(t *testing.T) {
	h := open(t, newNS(t))
	home := here(t)
	for what, f := range map[string]func() error{
		"panics":             func() error { panic("ouch") },
		"ends its goroutine": func() error { runtime.Goexit(); return nil },
	} {
		returned, ended := false, make(chan any)
		go func() {
			defer func() {
				p := recover()
				if now := here(t); now != home {
					t.Errorf("%s: in %d, want %d", what, now, home)
				}
				ended <- p
			}()
			_ = h.Do(f)
			returned = true
		}()
		if p := <-ended; returned || (p == "ouch") != (what == "panics") {
			t.Errorf("%s: returned %t, recovered %v", what, returned, p)
		}
		awaitThreadsIn(t, home)
	}
}

// TestDoWithinDo calls Do of the process's own namespace, and of a third one, while f runs in another namespace.
func TestDoWithinDo(t *testing.T) {
	self, err := Self(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	outer, other := open(t, newNS(t)), open(t, newNS(t))
	for want, h := range map[uint64]*Handle{here(t): self, inode(other): other, inode(outer): outer} {
		var seen, after uint64
		err := outer.Do(func() error {
			err := h.Do(func() error { seen = here(t); return nil })
			after = here(t)
			return err
		})
		if err != nil || seen != want || after != inode(outer) {
			t.Errorf("%s: %v; in %d, want %d; then in %d, want %d", h.Path(), err, seen, want, after, inode(outer))
		}
	}
}

// TestDoThatCannotReturn checks Do if the kernel does not permit the thread to return to its namespace. Do returns
// an error. The caller stays in the other namespace, and does nothing there that belongs in its own namespace. Other
// goroutines are not affected, and the thread ends with the goroutine.
func TestDoThatCannotReturn(t *testing.T) {
	h, boom := open(t, newNS(t)), errors.New("boom")
	self, err := Self(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	home, ended := here(t), make(chan struct{})
	go func() {
		defer close(ended)
		err := h.Do(func() error { dropCapabilities(t); return boom })
		if !errors.Is(err, fs.ErrPermission) || !errors.Is(err, boom) {
			t.Errorf("%v", err)
		}
		if now := here(t); now != inode(h) {
			t.Errorf("the caller is in %d, want %d", now, inode(h))
		}
		if err := h.Do(func() error { return boom }); err != boom {
			t.Errorf("Do of the same namespace: %v", err)
		}
		var nested uint64
		if err := self.Do(func() error { nested = here(t); return boom }); err != boom || nested != home {
			t.Errorf("Do of the process's own namespace ran in %d: %v, want %d", nested, err, home)
		}
	}()
	<-ended
	if now := here(t); now != home {
		t.Errorf("another goroutine is in %d, want %d", now, home)
	}
	if err := h.Do(func() error { return nil }); err != nil {
		t.Errorf("a later Do: %v", err)
	}
	awaitThreadsIn(t, home)
}

// dropCapabilities removes all capabilities of the calling thread for good.
func dropCapabilities(t *testing.T) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Error(err)
	}
}

// TestDoWithoutPrivilege checks that f does not run if the process may not enter the namespace, and that the error
// names the missing privilege. The test runs itself in a user namespace, as a rootless runtime does.
func TestDoWithoutPrivilege(t *testing.T) {
	if path := os.Getenv("TEST_DO_IN"); path != "" {
		h := open(t, path)
		err := h.Do(func() error { t.Error("ran"); return nil })
		want := "enter " + path + ": operation not permitted: CAP_SYS_ADMIN is needed in the user namespace that owns it"
		if !errors.Is(err, fs.ErrPermission) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		return
	}
	file, err := os.Open(newNS(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestDoWithoutPrivilege$")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	cmd.Env = append(os.Environ(), "TEST_DO_IN=/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{file}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestDoWithoutWayBack checks that Do works for a process that may not enter its own namespace. The test runs itself in a
// user namespace, and creates a network namespace there, as a rootless runtime does.
func TestDoWithoutWayBack(t *testing.T) {
	if os.Getenv("TEST_NO_WAY_BACK") == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestDoWithoutWayBack$")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{Size: 1}}}
		cmd.Env = append(os.Environ(), "TEST_NO_WAY_BACK=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	self, err := Self(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	h, home, boom := open(t, newNS(t)), here(t), errors.New("boom")
	err = h.Do(func() error {
		if now := here(t); now != inode(h) {
			t.Errorf("in %d, want %d", now, inode(h))
		}
		nested := errors.New("did not run")
		err := self.Do(func() error {
			nested = h.Do(func() error { return boom })
			if now := here(t); now != home {
				t.Errorf("nested Do in %d, want %d", now, home)
			}
			return nil
		})
		return errors.Join(err, nested)
	})
	if !errors.Is(err, boom) || errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	func() {
		defer func() {
			if got := recover(); got != boom {
				t.Errorf("panic %v, want %v", got, boom)
			}
		}()
		_ = h.Do(func() error { panic(boom) })
	}()
	if now := here(t); now != home {
		t.Errorf("afterwards in %d, want %d", now, home)
	}
	awaitThreadsIn(t, home)
}

func TestDoInAClosedNamespace(t *testing.T) {
	h := open(t, newNS(t))
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.Do(func() error { t.Error("ran"); return nil }); err == nil {
		t.Error("no error")
	}
}

func TestCloseCallsTheFunctionsOfOnClose(t *testing.T) {
	h := open(t, newNS(t))
	var closed []string
	boom := errors.New("boom")
	h.OnClose(func() error { closed = append(closed, "a"); return nil })
	h.OnClose(func() error { closed = append(closed, "b"); return boom })
	fd := h.FD()
	if err := h.Close(); !errors.Is(err, boom) {
		t.Error(err)
	}
	if got := strings.Join(closed, " "); got != "b a" {
		t.Errorf("closed %q", got)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the descriptor is open: %v", err)
	}
	var none *Handle
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}
