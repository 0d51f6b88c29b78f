// Package nl configures links, addresses, routes, neighbours, bridge ports, traffic
// control and connection tracking of a network namespace by netlink. It stands on
// github.com/vishvananda/netlink, which no other package uses.
//
// Each request is one step of the namespace's tracer. A request asks for one object, or
// for a list that the kernel filters: a list of all links of a node grows with the
// containers on it. Where the library has no such request, it is built here from the
// library's messages and attributes.
package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/vishvananda/netlink"
	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Conn is a netlink connection to one namespace. It is not safe for concurrent
// use. It is closed with the ns.Handle that it was opened from.
type Conn struct {
	h   *ns.Handle
	lib *netlink.Handle
	// raw is the socket of requests that are built here, by protocol, as the library
	// wants it. The library's handle does not give its own socket away. It is nil until
	// the first such request.
	raw map[int]*rawnl.SocketHandle
}

// reportWords makes the library ask for the kernel's words on all sockets that it opens
// from then on. The library has this as a package variable only.
var reportWords sync.Once

// Open connects to the namespace.
func Open(h *ns.Handle) (*Conn, error) {
	reportWords.Do(func() { rawnl.EnableErrorMessageReporting = true })
	c := &Conn{h: h}
	err := inside(h, "open netlink socket", func() (err error) {
		c.lib, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if c.lib != nil {
		h.Keep(c.lib.Close)
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", h.Path(), err)
	}
	c.lib.DisableVFInfoCollection().RetryInterrupted()
	// The kernel filters lists since Linux 4.20. An older one sends whole lists, which
	// are filtered here as well.
	_ = c.lib.SetStrictCheck(true)
	return c, nil
}

// OpenBoth connects to node and pod. A nil pod gives a nil Conn.
func OpenBoth(nodeNS, podNS *ns.Handle) (node, pod *Conn, err error) {
	if node, err = Open(nodeNS); err != nil || podNS == nil {
		return node, nil, err
	}
	pod, err = Open(podNS)
	return node, pod, err
}

// inside runs f in the namespace, as a step.
func inside(h *ns.Handle, step string, f func() error) error {
	return h.Step(step, func() error { return h.Do(f) })
}

// openSocket opens a socket of the protocol in the namespace, which receives the
// notifications of the groups.
func openSocket(h *ns.Handle, protocol int, groups ...uint) (*rawnl.NetlinkSocket, error) {
	var s *rawnl.NetlinkSocket
	err := inside(h, "open netlink socket", func() (err error) {
		s, err = rawnl.Subscribe(protocol, groups...)
		return err
	})
	if err != nil && s != nil {
		err = errors.Join(err, s.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", h.Path(), err)
	}
	return s, nil
}

// NS returns the namespace that the connection is bound to.
func (c *Conn) NS() *ns.Handle { return c.h }

// Cookie returns the number of the namespace, which no other namespace has until the
// machine is started anew (its inode is used again). It is zero where the kernel does
// not tell (before Linux 5.14).
func (c *Conn) Cookie() (cookie uint64) {
	_ = c.h.Do(func() error {
		cookie = ns.Cookie()
		return nil
	})
	return cookie
}

// openRaw opens the socket of requests that are built here, unless it is open.
func (c *Conn) openRaw() error {
	if c.raw != nil {
		return nil
	}
	s, err := openSocket(c.h, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	c.h.Keep(s.Close)
	_ = s.SetExtAck(true)
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	c.raw = map[int]*rawnl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	return nil
}

// execute sends a request that was built here, and returns the answers of the kind.
func (c *Conn) execute(req *rawnl.NetlinkRequest, kind uint16) ([][]byte, error) {
	if err := c.openRaw(); err != nil {
		return nil, err
	}
	req.Sockets, req.RetryInterrupted = c.raw, true
	return req.Execute(unix.NETLINK_ROUTE, kind)
}

// An Error is a request that failed. It matches fs.ErrNotExist when the object is not
// there and fs.ErrExist when it is there already; errors.Is also finds the errno.
type Error struct {
	Step string
	Err  error
	Hint string // the kernel's own words, if it had any
	// Refused is set if the kernel answered that it did not carry out the request.
	// Otherwise the answer was lost, and it is not known what the kernel did.
	Refused bool
}

func (e *Error) Error() string {
	s := e.Err.Error()
	if e.Step != "" {
		s = e.Step + ": " + s
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	if e.Refused && errors.Is(e.Err, unix.EPERM) {
		s += ": CAP_NET_ADMIN is needed in the network namespaces of node and container (root, not a rootless runtime)"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether the error is one of the two that callers act on.
func (e *Error) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return errors.Is(e.Err, unix.ENODEV) || errors.Is(e.Err, unix.ESRCH) ||
			errors.Is(e.Err, unix.ENOENT) || errors.Is(e.Err, unix.EADDRNOTAVAIL)
	case fs.ErrExist:
		return errors.Is(e.Err, unix.EEXIST)
	}
	return false
}

// Unsupported reports whether the kernel lacks what was asked for.
func Unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT)
}

// refusal turns an error of the library into an Error without a step if it is an
// answer of the kernel, and returns any other error as it is.
func refusal(err error) error {
	if _, done := err.(*Error); err == nil || done {
		return err
	}
	var errno unix.Errno
	if errors.As(err, new(netlink.LinkNotFoundError)) { // which does not wrap the errno
		return &Error{Err: unix.ENODEV, Refused: true}
	}
	if !errors.As(err, &errno) || ofSocket(errno) {
		return err
	}
	// The library puts the kernel's words behind the text of the errno.
	words := strings.TrimPrefix(strings.TrimPrefix(err.Error(), errno.Error()), ": ")
	return &Error{Err: errno, Hint: words, Refused: true}
}

// ofSocket reports whether to send or to receive may fail with the errno. The library
// returns such an error like an answer of the kernel.
func ofSocket(errno unix.Errno) bool {
	switch errno {
	case unix.ENOBUFS, unix.ENOMEM, unix.EAGAIN, unix.EBADF, unix.EINTR:
		return true
	}
	return false
}

// wrap names the step in an error of the library or of a test's hook.
func wrap(step string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok && e.Step == "" {
		return &Error{Step: step, Err: e.Err, Hint: e.Hint, Refused: e.Refused}
	}
	if errors.As(err, new(*Error)) {
		return err
	}
	return &Error{Step: step, Err: err}
}

// step runs f, which makes requests, as one step.
func (c *Conn) step(step string, f func() error) error {
	return wrap(step, c.h.Step(step, func() error { return refusal(f()) }))
}

// ask runs f, which asks the kernel for something, as one step.
func ask[T any](c *Conn, step string, f func() (T, error)) (T, error) {
	var answer T
	err := c.step(step, func() (err error) {
		answer, err = f()
		return err
	})
	if err != nil {
		return *new(T), err
	}
	return answer, nil
}

// A Change is a step that alters something, described but not yet done.
type Change struct {
	step string
	do   func(*Conn) error
	fine error // an error that matches this counts as success; nil: none does
}

func change(step string, do func(*Conn) error) Change { return Change{step: step, do: do} }

// IfAbsent makes it no error that the object is there already: another process was
// first to make what is shared.
func (ch Change) IfAbsent() Change {
	ch.fine = fs.ErrExist
	return ch
}

// IfPresent makes it no error that the object is gone already.
func (ch Change) IfPresent() Change {
	ch.fine = fs.ErrNotExist
	return ch
}

// Apply makes the changes one after the other, up to the first that fails.
func (c *Conn) Apply(changes ...Change) error {
	for _, ch := range changes {
		err := c.step(ch.step, func() error {
			err := refusal(ch.do(c))
			if ch.fine != nil && errors.Is(err, ch.fine) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
