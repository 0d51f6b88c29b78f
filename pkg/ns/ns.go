// Package ns opens network namespaces and runs functions in them.
//
// A namespace is passed as a Handle; no function relies on the namespace of the thread
// that it runs on. A netlink socket is opened in a namespace once and is then used from
// any thread (pkg/nl, pkg/nft). Do is needed for /proc/sys/net, which shows the
// namespace of the thread that opens a file there, and for programs, which inherit the
// namespace of the thread that starts them.
package ns

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"

	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNotNamespace is the error for a path that exists but is not a network namespace,
// for example a plain file that was left when the namespace was unmounted.
var ErrNotNamespace = errors.New("not a network namespace")

// A Handle is an open network namespace. A package that opens a socket in the namespace calls
// OnClose, so that Close closes the socket, too. A Handle is not safe for concurrent use, except
// for Do, Step and the methods that return a property.
type Handle struct {
	fd      netns.NsHandle
	id      identity
	path    string
	self    bool // opened by Self
	trace   *trace.Tracer
	onClose []func() error // the functions that Close calls, see OnClose
}

// Open opens the namespace at path. Its steps are logged by t, which may be nil. The error
// matches fs.ErrNotExist if there is no file at path, and ErrNotNamespace if the file is not a
// network namespace. The caller must close the handle.
func Open(path string, t *trace.Tracer) (*Handle, error) {
	// netns.GetFromPath would wait at a FIFO until a process opens it for writing.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOTDIR) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, explain(&fs.PathError{Op: "open netns", Path: path, Err: err})
	}
	h := &Handle{fd: netns.NsHandle(fd), path: path, trace: t}
	if err := h.check(); err != nil {
		return nil, errors.Join(err, h.fd.Close())
	}
	return h, nil
}

// ownPath is the path of the calling thread's namespace. The path that netns.Get uses contains
// a process ID, which is wrong if /proc belongs to another PID namespace.
const ownPath = "/proc/thread-self/ns/net"

// Self opens the namespace of this process. The caller must close the handle.
func Self(t *trace.Tracer) (*Handle, error) {
	h, err := Open(ownPath, t)
	if err != nil {
		return nil, err
	}
	h.self = true
	return h, nil
}

// An identity tells namespaces apart while a file descriptor of each is open.
type identity struct{ device, inode uint64 }

// identify returns the identity of the namespace whose file stat describes.
func identify[File any](stat func(File, *unix.Stat_t) error, file File) (identity, error) {
	var st unix.Stat_t
	err := stat(file, &st)
	return identity{uint64(st.Dev), st.Ino}, err
}

// check sets the identity. It returns ErrNotNamespace for a file that is not a network namespace: its file
// system is not nsfs (Linux 3.19), or its type is another one (ioctl NS_GET_NSTYPE,
// Linux 4.11).
func (h *Handle) check() (err error) {
	if h.id, err = identify(unix.Fstat, h.FD()); err != nil {
		return fmt.Errorf("stat netns %s: %w", h.path, err)
	}
	var fst unix.Statfs_t
	if err := unix.Fstatfs(h.FD(), &fst); err != nil {
		return fmt.Errorf("stat netns %s: %w", h.path, err)
	}
	if fst.Type != unix.NSFS_MAGIC {
		return fmt.Errorf("%s: %w", h.path, ErrNotNamespace)
	}
	kind, err := unix.IoctlRetInt(h.FD(), unix.NS_GET_NSTYPE)
	if err != nil {
		return fmt.Errorf("read type of namespace %s: %w", h.path, err)
	}
	if kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%s: %w", h.path, ErrNotNamespace)
	}
	return nil
}

// Same reports whether both handles refer to the same namespace.
func (h *Handle) Same(o *Handle) bool { return h.id == o.id }

// Self reports whether the handle was opened by the function Self.
func (h *Handle) Self() bool { return h.self }

// Path returns the path that the namespace was opened at.
func (h *Handle) Path() string { return h.path }

// Command returns the words as a command for sh, quoted where necessary. If the handle was not
// opened by Self, the command begins with nsenter and runs in the namespace.
func (h *Handle) Command(words ...string) string {
	if !h.self {
		words = append([]string{"nsenter", "--net=" + h.path}, words...)
	}
	return types.Command(words...)
}

// FD returns the file descriptor of the namespace, which is valid until Close.
func (h *Handle) FD() int { return int(h.fd) }

// Trace returns the tracer of all steps in this namespace. It may be nil.
func (h *Handle) Trace() *trace.Tracer { return h.trace }

// Step runs f as one step of the tracer.
func (h *Handle) Step(step string, f func() error) error { return h.trace.Do(step, f) }

// OnClose registers f to be called by Close. Close calls the newest function first.
func (h *Handle) OnClose(f func() error) { h.onClose = append(h.onClose, f) }

// Close calls the functions that were registered by OnClose and closes the handle. Close of
// a nil handle does nothing.
func (h *Handle) Close() error {
	if h == nil {
		return nil
	}
	var errs []error
	for _, closeKept := range slices.Backward(h.onClose) {
		errs = append(errs, closeKept())
	}
	h.onClose = nil
	return errors.Join(append(errs, h.fd.Close())...)
}

// Cookie returns the number of the namespace. Until the next boot no other namespace has that
// number, while an inode number is used again. Zero means that the kernel has no cookies (before
// Linux 5.14).
func (h *Handle) Cookie() (cookie uint64) {
	_ = h.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return cookie
}

// CanHaveCookie reports whether the namespace can be the one that had the cookie: another one may be at
// its path now. It returns true if the cookie is zero, or if the kernel has no cookies.
func (h *Handle) CanHaveCookie(cookie uint64) bool {
	now := h.Cookie()
	return cookie == 0 || now == 0 || cookie == now
}

// Do runs f in the namespace and returns its error. The calling goroutine is locked to its thread, enters the
// namespace, and returns to the namespace that it came from, also if f panics. f may call Do of any handle. If
// the goroutine is in the namespace already, Do only calls f: a caller with several steps in a namespace enters
// it once. If the thread cannot return, Do returns an error as well, and the goroutine stays in the namespace,
// locked to the thread. No other goroutine ever runs in the namespace, and Do of all handles works as before.
func (h *Handle) Do(f func() error) error {
	// A thread in another namespace runs only the goroutine that has locked it. Therefore a goroutine that
	// changes threads after this call stays in its namespace.
	if id, err := identify(unix.Stat, ownPath); err == nil && id == h.id {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return h.visit(f)
}

// visit enters the namespace, runs f, and returns to the namespace that the thread was in. The calling goroutine
// must be locked to its thread.
func (h *Handle) visit(f func() error) (err error) {
	own, err := netns.GetFromPath(ownPath)
	if err != nil {
		return explain(&fs.PathError{Op: "open netns", Path: ownPath, Err: err})
	}
	defer func() { _ = own.Close() }()
	// First the thread's own namespace: if that is not permitted, the thread could never
	// come back.
	for _, fd := range []netns.NsHandle{own, h.fd} {
		if err := netns.Set(fd); err != nil {
			return explain(&fs.PathError{Op: "enter", Path: h.path, Err: err})
		}
	}
	defer func() {
		if left := netns.Set(own); left != nil {
			runtime.LockOSThread() // and never unlocked
			err = errors.Join(err, &fs.PathError{Op: "leave", Path: h.path, Err: left})
		}
	}()
	return f()
}

// explain adds the probable cause to the error of a system call.
func explain(err *fs.PathError) error {
	switch {
	case err.Op == "enter" && errors.Is(err, fs.ErrPermission): // netns_install in net/core/net_namespace.c
		return fmt.Errorf("%w: CAP_SYS_ADMIN is needed in the user namespace that owns it", err)
	case err.Path == ownPath && errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: is /proc mounted?", err)
	}
	return err
}
