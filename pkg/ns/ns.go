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
		return nil, &fs.PathError{Op: "open netns", Path: path, Err: err}
	}
	h := &Handle{fd: fd, path: path, trace: t}
	if err := h.identify(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
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

// Do runs f in the namespace, on the thread of the caller, which comes back from there
// whatever f does: a goroutine and thread of its own would cost more than most of what
// is done in it. The way back is tried before: there is none where the process may not
// even enter the namespace that it is in. A thread that is stranded all the same is
// never used again, and the caller panics.
func (h *Handle) Do(f func() error) error {
	if h.self {
		return f()
	}
	runtime.LockOSThread()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own netns: %w", err)
	}
	away := false
	defer func() {
		if away {
			if err := unix.Setns(home, unix.CLONE_NEWNET); err != nil {
				panic(fmt.Sprintf("leave netns %s: %v", h.path, err))
			}
		}
		_ = unix.Close(home)
		runtime.UnlockOSThread()
	}()
	for _, fd := range []int{home, h.fd} {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter netns %s: %w", h.path, err)
		}
	}
	away = true
	return f()
}
