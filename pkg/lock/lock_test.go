package lock

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"golang.org/x/sys/unix"
)

// long is a limit that only a failing test reaches.
const long = time.Minute

func key(t *testing.T, path, name string) *Key {
	t.Helper()
	k, err := NewKey(path, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func try(t *testing.T, k *Key, want bool) {
	t.Helper()
	if got, err := k.TryLock(); got != want || err != nil {
		t.Errorf("got the key: %t, %v; want %t", got, err, want)
	}
}

func TestKeysAreIndependent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "cni", "locks")
	first, same, other := key(t, path, "a"), key(t, path, "a"), key(t, path, "b")
	try(t, first, true)
	try(t, other, true)
	try(t, same, false)
	if err := same.Lock(time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a key that is held: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := same.Lock(long); err != nil {
		t.Errorf("a key that was freed: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 0 || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestWaitersGetTheKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks")
	holder := key(t, path, "a")
	try(t, holder, true)
	done := make(chan error)
	for range 3 {
		go func() {
			k, err := NewKey(path, "a")
			if err == nil {
				err = errors.Join(k.Lock(long), k.Close())
			}
			done <- err
		}()
	}
	_ = holder.Close()
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestWaitThatExceedsItsLimit checks that a late wait does not keep the lock, and does not lock
// another file with the same descriptor number.
func TestWaitThatExceedsItsLimit(t *testing.T) {
	dir := t.TempDir()
	holder := key(t, dir+"/locks", "a")
	try(t, holder, true)
	late, err := NewKey(dir+"/locks", "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := late.Lock(time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	number := late.fd
	_ = late.Close()
	for key(t, dir+"/others", "a").fd < number { // a new descriptor has the lowest free number
		continue
	}
	_ = holder.Close()
	for deadline := time.Now().Add(long); ; time.Sleep(time.Millisecond) {
		k := key(t, dir+"/locks", "a")
		got, err := k.TryLock()
		if got {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the late waiter keeps the key: %v", err)
		}
	}
	try(t, key(t, dir+"/others", "a"), true)
}

// TestProgramsDoNotInheritTheLock also checks that programs do not inherit a wait for the lock.
func TestProgramsDoNotInheritTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks")
	holder, err := NewKey(path, "a")
	if err != nil {
		t.Fatal(err)
	}
	try(t, holder, true)
	program := exec.Command("sleep", "1000")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = program.Process.Kill(), program.Wait() }()
	_ = holder.Close()
	try(t, key(t, path, "a"), true)
}

func TestFileThatCannotBeCreated(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir+"/elsewhere", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{dir + "/link": hostfile.ErrNotRegular, "/proc/self/nothing/locks": unix.ENOENT, "/proc/version/locks": unix.ENOTDIR} {
		if _, err := NewKey(path, "a"); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	if _, err := os.Stat(dir + "/elsewhere"); err == nil {
		t.Error("the target of the link was created")
	}
}

func TestFlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	holder, second := open(), open()
	defer func() { _ = second.Close() }()
	if err := Flock(int(holder.Fd()), long); err != nil {
		t.Fatal(err)
	}
	if err := Flock(int(second.Fd()), time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a lock that is held: %v", err)
	}
	_ = holder.Close()
	if err := Flock(int(second.Fd()), long); err != nil {
		t.Errorf("a lock that was freed: %v", err)
	}
	if err := Flock(-1, long); !errors.Is(err, unix.EBADF) {
		t.Error(err)
	}
}

// TestAllExcludesEachKey checks that NewAll waits for all keys, and that no key can be locked
// meanwhile.
func TestAllExcludesEachKey(t *testing.T) {
	path := t.TempDir() + "/locks"
	holder := key(t, path, "a")
	try(t, holder, true)
	all, err := NewAll(path)
	if err != nil {
		t.Fatal(err)
	}
	try(t, all, false)
	_ = holder.Close()
	try(t, all, true)
	other := key(t, path, "b")
	try(t, other, false)
	_ = all.Close()
	try(t, other, true)
}
