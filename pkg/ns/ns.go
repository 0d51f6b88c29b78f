// Package ns opens network namespaces and runs functions in them.
//
// A namespace is passed as a Handle. No function relies on the namespace of its thread. A netlink socket is
// opened in a namespace once, and can be used from any thread (pkg/nl, pkg/nft). Do is needed for /proc/sys/net,
// which shows the namespace of the thread that opens a file there, and for programs, which inherit the namespace
// of the thread that starts them.
package ns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"

	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNotNamespace is the error for a path that exists but is not a network namespace, for example a regular file
// that remained when the namespace was unmounted.
var ErrNotNamespace = errors.New("not a network namespace")

// A Handle is an open network namespace. A package that opens a socket in the namespace calls OnClose, so that
// Close also closes the socket. A Handle is not safe for concurrent use, except for Do, Step and the methods
// that return a property.
type Handle struct {
	// Memo is where packages keep what they have read in the namespace until they change it. It is nil except during a
	// call of a plugin, because other programs change the namespace as well.
	Memo map[string]any

	fd      netns.NsHandle
	id      ID
	path    string
	self    bool // opened by Self
	trace   *trace.Tracer
	onClose []func() error // the functions that OnClose registered
}

// Open opens the namespace at path. t, which may be nil, logs the steps of the handle. The error matches
// fs.ErrNotExist if there is no file at path, and ErrNotNamespace if the file is not a network namespace. The
// caller must close the handle.
func Open(path string, t *trace.Tracer) (*Handle, error) {
	// netns.GetFromPath would block at a FIFO until a process opens it for writing.
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

// An ID distinguishes namespaces (namespaces(7)) as long as a process or a file descriptor keeps each of them.
type ID struct{ device, inode uint64 }

// IDAt returns the ID of the namespace at path, without opening it.
func IDAt(path string) (ID, error) { return identify(unix.Stat, path) }

// Processes returns one process for each network namespace except that of this process. If this process is not in the host's PID
// namespace, /proc shows only some processes. A namespace without a process therefore does not prove that its container
// is gone.
func Processes() (map[ID]int, error) {
	entries, err := os.ReadDir("/proc")
	all := map[ID]int{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if id, err := IDAt("/proc/" + e.Name() + "/ns/net"); err == nil && all[id] == 0 {
				all[id] = pid
			}
		}
	}
	own, _ := IDAt("/proc/self/ns/net")
	delete(all, own)
	return all, err
}

// identify returns the ID of the namespace whose file stat describes.
func identify[File any](stat func(File, *unix.Stat_t) error, file File) (ID, error) {
	var st unix.Stat_t
	err := stat(file, &st)
	return ID{uint64(st.Dev), st.Ino}, err
}

// check sets the identity. It returns ErrNotNamespace for a file that is not in nsfs (Linux 3.19), or that is a
// namespace of another type (ioctl NS_GET_NSTYPE, Linux 4.11).
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

// Self reports whether the function Self opened the handle.
func (h *Handle) Self() bool { return h.self }

// Path returns the path that was passed to Open.
func (h *Handle) Path() string { return h.path }

// Command returns the words as a command for sh, quoted where necessary. Unless the function Self opened the
// handle, the command begins with nsenter and runs in the namespace.
func (h *Handle) Command(words ...string) string {
	if !h.self {
		words = append([]string{"nsenter", "--net=" + h.path}, words...)
	}
	return types.Command(words...)
}

// Problem returns the problem with an object in the namespace. Only plumb repair --container-side restores objects in other
// namespaces than the host's.
func (h *Handle) Problem(object, kind string) types.Problem {
	p := types.Problem{Object: object, Kind: kind}
	if !h.self {
		p.Repair = types.RepairContainerSide
	}
	return p
}

// FD returns the file descriptor of the namespace, which is valid until Close.
func (h *Handle) FD() int { return int(h.fd) }

// Trace returns the tracer of all steps in this namespace. It may be nil.
func (h *Handle) Trace() *trace.Tracer { return h.trace }

// Step runs f as one step of the tracer.
func (h *Handle) Step(step string, f func() error) error { return h.trace.Do(step, f) }

// OnClose registers f. Close calls the registered functions, the newest first.
func (h *Handle) OnClose(f func() error) { h.onClose = append(h.onClose, f) }

// Close calls the functions that OnClose registered, and closes the handle. Close of a nil handle does nothing.
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

// Cookie returns the number of the namespace. Unlike an inode number, it is not reused before the next boot.
// Zero means that the kernel does not support cookies (before Linux 5.14).
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

// CanHaveCookie reports whether the namespace can be the one that had the cookie. It is false for a newer namespace at
// the same path. CanHaveCookie returns true if the cookie is zero, or if the kernel does not support cookies.
func (h *Handle) CanHaveCookie(cookie uint64) bool {
	now := h.Cookie()
	return cookie == 0 || now == 0 || cookie == now
}

// Do runs f in the namespace and returns its error. It locks the calling goroutine to its thread, enters the
// namespace, and returns to the previous namespace, even if f panics. f may call Do of any handle. If the
// goroutine is already in the namespace, Do only calls f, so that a caller can enter a namespace once for
// several steps. If the thread cannot return, Do also returns an error, and the goroutine stays in the
// namespace, locked to its thread. No other goroutine ever runs on that thread, and Do of all handles still
// works. If the process may not enter its own namespace, f runs in another goroutine, on a thread that then ends.
func (h *Handle) Do(f func() error) error {
	// A thread in another namespace runs only the goroutine that has locked it. Therefore a goroutine that
	// changes threads after this call stays in its namespace.
	if id, err := IDAt(ownPath); err == nil && id == h.id {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return h.visit(f)
}

// visit enters the namespace, runs f, and returns to the thread's previous namespace. If that is not permitted, visit calls
// visitOneWay. The calling goroutine must be locked to its thread.
func (h *Handle) visit(f func() error) (err error) {
	own, err := netns.GetFromPath(ownPath)
	if err != nil {
		return explain(&fs.PathError{Op: "open netns", Path: ownPath, Err: err})
	}
	defer func() { _ = own.Close() }()
	// First enter the thread's own namespace. If that is not permitted, the thread could never return to it.
	for _, fd := range []netns.NsHandle{own, h.fd} {
		err := netns.Set(fd)
		if errors.Is(err, fs.ErrPermission) {
			return h.visitOneWay(f)
		}
		if err != nil {
			return explain(&fs.PathError{Op: "enter", Path: h.path, Err: err})
		}
	}
	defer func() {
		if left := netns.Set(own); left != nil {
			runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
			err = errors.Join(err, &fs.PathError{Op: "leave", Path: h.path, Err: left})
		}
	}()
	return f()
}

// visitOneWay runs f in the namespace, in another goroutine. It is for a process without CAP_SYS_ADMIN in the user namespace
// that owns the process's own network namespace, for example root of a user namespace that was created without a network
// namespace. Such a process may still enter network namespaces that its user namespace owns, but cannot return. Therefore
// the goroutine never unlocks its thread, so that the thread ends with it. The thread of a new goroutine is in the process's
// own namespace, which needs no permission.
func (h *Handle) visitOneWay(f func() error) (err error) {
	var panicked any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		runtime.LockOSThread()
		if id, idErr := IDAt(ownPath); idErr != nil || id != h.id {
			err = netns.Set(h.fd)
		}
		if err != nil {
			err = explain(&fs.PathError{Op: "enter", Path: h.path, Err: err})
			return
		}
		err = f()
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// explain adds the probable cause to err.
func explain(err *fs.PathError) error {
	switch {
	case err.Op == "enter" && errors.Is(err, fs.ErrPermission): // netns_install in net/core/net_namespace.c
		return fmt.Errorf("%w: CAP_SYS_ADMIN is needed in the user namespace that owns it", err)
	case err.Path == ownPath && errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: is /proc mounted?", err)
	}
	return err
}
