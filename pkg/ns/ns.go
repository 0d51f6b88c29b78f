// Package ns gives network namespaces as handles.
//
// Nothing in plumb changes the namespace of the thread it runs on and hopes for
// the best: sockets are opened in a namespace once and then used from anywhere
// (pkg/nl, pkg/nft). Only /proc/sys, whose net folder follows the thread that
// opens it, and started programs need Do.
package ns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/plumb-cni/plumb/pkg/trace"
	"golang.org/x/sys/unix"
)

// ErrNotNamespace says that a path exists but is not a network namespace: a plain
// file that was left when the namespace was unmounted, say.
var ErrNotNamespace = errors.New("not a network namespace")

// A Handle is an open network namespace. What is opened in it (netlink sockets)
// is kept with it and closed by Close. A Handle is not safe for concurrent use,
// but for Do and FD.
type Handle struct {
	file  *os.File
	path  string
	dev   uint64
	ino   uint64
	self  bool
	trace *trace.Tracer
	keep  []func() error
}

// Open opens the namespace at path. The error matches fs.ErrNotExist when there
// is nothing at path, and ErrNotNamespace when something else is. The caller
// closes the handle.
func Open(path string, t *trace.Tracer) (*Handle, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, &fs.PathError{Op: "open netns", Path: path, Err: fs.ErrNotExist}
	}
	if err != nil {
		return nil, fmt.Errorf("open netns: %w", err)
	}
	h := &Handle{file: f, path: path, trace: t}
	if err := h.identify(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return h, nil
}

// Self opens the namespace of this process.
func Self(t *trace.Tracer) (*Handle, error) {
	h, err := Open("/proc/thread-self/ns/net", t)
	if err != nil {
		return nil, err
	}
	h.self = true
	return h, nil
}

// identify refuses what is no network namespace (file system nsfs, kernel 3.19;
// ioctl NS_GET_NSTYPE, kernel 4.11) and notes what makes two handles the same
// namespace.
func (h *Handle) identify() error {
	var fst unix.Statfs_t
	if err := unix.Fstatfs(h.FD(), &fst); err != nil {
		return fmt.Errorf("stat netns %s: %w", h.path, err)
	}
	if fst.Type != unix.NSFS_MAGIC {
		return fmt.Errorf("%s: %w", h.path, ErrNotNamespace)
	}
	kind, err := unix.IoctlRetInt(h.FD(), unix.NS_GET_NSTYPE)
	if err != nil {
		return fmt.Errorf("kind of namespace %s: %w", h.path, err)
	}
	if kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%s: %w", h.path, ErrNotNamespace)
	}
	var st unix.Stat_t
	if err := unix.Fstat(h.FD(), &st); err != nil {
		return fmt.Errorf("stat netns %s: %w", h.path, err)
	}
	h.dev, h.ino = uint64(st.Dev), st.Ino // 32 bits on MIPS
	return nil
}

// Same reports whether both handles are one namespace.
func (h *Handle) Same(o *Handle) bool { return h.dev == o.dev && h.ino == o.ino }

// Self reports whether the handle is this process's own namespace.
func (h *Handle) Self() bool { return h.self }

// Path is where the namespace was opened.
func (h *Handle) Path() string { return h.path }

// FD is the descriptor of the namespace, valid until Close.
func (h *Handle) FD() int { return int(h.file.Fd()) }

// Trace is the tracer that all steps in this namespace pass through.
func (h *Handle) Trace() *trace.Tracer { return h.trace }

// Step runs one step in the name of this namespace's tracer.
func (h *Handle) Step(step string, f func() error) error { return h.trace.Do(step, f) }

// Keep makes Close run f, after the f of everything that was kept later.
func (h *Handle) Keep(f func() error) { h.keep = append(h.keep, f) }

// Close closes what was opened in the namespace, newest first, and the handle. It
// may be called on a nil handle.
func (h *Handle) Close() error {
	if h == nil {
		return nil
	}
	var errs []error
	for i := len(h.keep) - 1; i >= 0; i-- {
		errs = append(errs, h.keep[i]())
	}
	h.keep = nil
	return errors.Join(append(errs, h.file.Close())...)
}

// Do runs f on a thread that is in the namespace. A thread that cannot be brought
// back is ended with its goroutine and never reused. A panic of f goes on in the
// caller.
func (h *Handle) Do(f func() error) error {
	if h.self {
		return f()
	}
	err := errors.New("the function ended its goroutine") // runtime.Goexit
	var panicked any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		runtime.LockOSThread()
		err = h.enter(f)
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// enter runs on a locked thread; leaving without UnlockOSThread ends the thread.
func (h *Handle) enter(f func() error) error {
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open own netns: %w", err)
	}
	defer func() { _ = unix.Close(home) }()
	if err := unix.Setns(h.FD(), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter netns %s: %w", h.path, err)
	}
	defer func() {
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}
