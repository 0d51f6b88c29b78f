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
	fd    int
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
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOTDIR) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, explain(&fs.PathError{Op: "open netns", Path: path, Err: err})
	}
	h := &Handle{fd: fd, path: path, trace: t}
	if err := h.identify(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return h, nil
}

// ownPath is the namespace of the calling thread.
const ownPath = "/proc/thread-self/ns/net"

// Self opens the namespace of this process.
func Self(t *trace.Tracer) (*Handle, error) {
	h, err := Open(ownPath, t)
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
func (h *Handle) FD() int { return h.fd }

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
	errs = append(errs, unix.Close(h.fd))
	h.fd = -1
	return errors.Join(errs...)
}

// Cookie is the number of the namespace that the calling thread is in, within Do, say.
// No other has had it or will have it until the machine is started anew (its inode is
// used again). Zero: the kernel does not tell (before 5.14).
func Cookie() uint64 {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Close(fd) }()
	cookie, _ := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie
}

// Do runs f in the namespace and returns its error. f runs in a goroutine of its own, on
// a thread that no other goroutine uses until the thread is back in the process's own
// namespace. So the caller never leaves its namespace, and a Do within f enters the
// namespace of its own handle, whichever f is in. A thread that cannot come back is
// ended, and Do returns an error. If f panics, Do panics with a Panic.
func (h *Handle) Do(f func() error) (err error) {
	var panicked *Panic
	returned := false
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				panicked = &Panic{Value: p, Stack: debug.Stack()}
			}
		}()
		err = h.inside(f)
		returned = true
	}()
	<-ended
	switch {
	case panicked != nil:
		panic(*panicked)
	case !returned: // f has ended its goroutine, as a failing test does
		runtime.Goexit()
	}
	return err
}

// A Panic is what Do panics with if its function did.
type Panic struct {
	Value any    // what the function panicked with
	Stack []byte // where
}

func (p Panic) String() string { return fmt.Sprint(p.Value) }

// inside runs f in the namespace, on the calling thread. It comes from a goroutine that
// is new, and so on a thread that is in the process's own namespace: while a thread is in
// another one, its goroutine is locked to it.
func (h *Handle) inside(f func() error) (err error) {
	if h.self {
		return f()
	}
	runtime.LockOSThread()
	own, err := unix.Open(ownPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return explain(&fs.PathError{Op: "open netns", Path: ownPath, Err: err})
	}
	defer func() { _ = unix.Close(own) }()
	// First the process's own namespace: if that is not permitted, the thread could never
	// come back.
	for _, fd := range []int{own, h.fd} {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			return explain(&fs.PathError{Op: "enter", Path: h.path, Err: err})
		}
	}
	defer func() {
		if left := unix.Setns(own, unix.CLONE_NEWNET); left != nil {
			// The thread stays locked, so the runtime ends it with this goroutine.
			err = errors.Join(err, &fs.PathError{Op: "leave", Path: h.path, Err: left})
			return
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// explain adds what is probably wrong to the error of a system call.
func explain(err *fs.PathError) error {
	switch {
	case err.Op == "enter" && errors.Is(err, fs.ErrPermission): // netns_install in net/core/net_namespace.c
		return fmt.Errorf("%w: CAP_SYS_ADMIN is needed in the user namespace that owns it", err)
	case err.Path == ownPath && errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: is /proc mounted?", err)
	}
	return err
}
