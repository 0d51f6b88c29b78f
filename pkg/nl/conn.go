// Package nl configures links, addresses, routes, rules, neighbors, bridge ports, traffic control and connection
// tracking of a network namespace over netlink, and lists listening sockets. It uses package netlink
// (github.com/vishvananda/netlink), which no other package uses.
//
// Every request is a step of the namespace's tracer. The error of a request matches fs.ErrNotExist if the object
// does not exist, fs.ErrExist if the object already exists, and errors.ErrUnsupported if the kernel lacks the
// feature.
//
// A request asks for one object, or for a list that the kernel filters, because a list of all links of a host
// grows with the number of containers. If package netlink offers no suitable request, package nl builds one from
// that package's messages and attributes.
package nl

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	netlinkconn "github.com/mdlayher/netlink"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/vishvananda/netlink"
	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Conn is a netlink connection to one namespace. It is not safe for concurrent use. Closing the ns.Handle that
// was passed to Open also closes the Conn.
type Conn struct {
	h   *ns.Handle
	lib *netlink.Handle
	// raw contains the socket for the requests that package nl builds, because netlink.Handle does not export its
	// sockets. The key is the netlink protocol, as package netlink requires. raw is nil until the first such request.
	raw map[int]*rawnl.SocketHandle
}

// enableExtAck lets package netlink request the kernel's error messages (NETLINK_EXT_ACK) on all sockets that it
// opens afterwards. Package netlink offers only a package variable for this purpose.
var enableExtAck sync.Once

// Open returns a connection to the namespace.
func Open(h *ns.Handle) (*Conn, error) {
	enableExtAck.Do(func() { rawnl.EnableErrorMessageReporting = true })
	c := &Conn{h: h}
	if err := c.openLib(); err != nil {
		return nil, err
	}
	return c, nil
}

// openLib opens a new socket for the requests of package netlink.
func (c *Conn) openLib() error {
	err := runIn(c.h, "open netlink socket", func() (err error) {
		c.lib, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if c.lib != nil {
		c.h.OnClose(c.lib.Close)
	}
	if err != nil {
		return fmt.Errorf("open netlink socket in %s: %w", c.h.Path(), err)
	}
	c.lib.DisableVFInfoCollection().RetryInterrupted()
	// The kernel filters lists since Linux 4.20. An older kernel sends complete lists. Therefore package nl
	// filters all lists again.
	_ = c.lib.SetStrictCheck(true)
	return nil
}

// OpenBoth returns connections to the host and to the container. If containerNS is nil, container is nil.
func OpenBoth(hostNS, containerNS *ns.Handle) (host, container *Conn, err error) {
	if host, err = Open(hostNS); err != nil || containerNS == nil {
		return host, nil, err
	}
	container, err = Open(containerNS)
	return host, container, err
}

// runIn runs f in the namespace, as one step.
func runIn(h *ns.Handle, step string, f func() error) error {
	return h.Step(step, func() error { return h.Do(f) })
}

// openIn opens a file or socket in the namespace, as one step. If the step fails after that, openIn closes it.
func openIn[T io.Closer](h *ns.Handle, step string, open func() (T, error)) (opened T, err error) {
	isOpen := false
	err = runIn(h, step, func() (err error) {
		opened, err = open()
		isOpen = err == nil
		return err
	})
	if err != nil && isOpen {
		err = errors.Join(err, opened.Close())
	}
	return opened, err
}

// openSocket opens a netlink socket in the namespace. The socket receives the notifications of the multicast
// groups.
func openSocket(h *ns.Handle, protocol int, groups ...uint) (*rawnl.NetlinkSocket, error) {
	s, err := openIn(h, "open netlink socket", func() (*rawnl.NetlinkSocket, error) { return rawnl.Subscribe(protocol, groups...) })
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", h.Path(), err)
	}
	return s, nil
}

// NS returns the namespace that the connection is bound to.
func (c *Conn) NS() *ns.Handle { return c.h }

// openRaw opens the socket for the requests that package nl builds, unless it is open.
func (c *Conn) openRaw() error {
	if c.raw != nil {
		return nil
	}
	s, err := openSocket(c.h, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	c.h.OnClose(s.Close)
	_ = s.SetExtAck(true)
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	c.raw = map[int]*rawnl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	return nil
}

// execute sends a request that package nl built, and returns the answers of the given message type. If the request asks
// for links, and the answers do not fit into the receive buffer of package netlink, execute calls executeLarge.
func (c *Conn) execute(req *rawnl.NetlinkRequest, messageType uint16) ([][]byte, error) {
	if err := c.openRaw(); err != nil {
		return nil, err
	}
	req.Sockets, req.RetryInterrupted = c.raw, true
	msgs, err := req.Execute(unix.NETLINK_ROUTE, messageType)
	if messageType == unix.RTM_NEWLINK && errors.Is(err, unix.EINVAL) {
		c.raw = nil // the rest of a list may be in the socket, which OnClose closes
		return c.executeLarge(req)
	}
	return msgs, err
}

// executeLarge sends a request for links, and returns the links. Package netlink receives with a buffer of 64 KiB, and
// reports a longer datagram as EINVAL. One link can exceed that size, because it can have 64 KiB of alternative names
// (rtnl_alt_ifname), and a container can add them to its interfaces. mdlayher/netlink receives datagrams of any size, but
// needs two system calls for each.
func (c *Conn) executeLarge(req *rawnl.NetlinkRequest) (answers [][]byte, err error) {
	s, err := openIn(c.h, "open netlink socket", func() (*netlinkconn.Conn, error) { return netlinkconn.Dial(unix.NETLINK_ROUTE, nil) })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	_ = s.SetOption(netlinkconn.GetStrictCheck, true)
	header := netlinkconn.Header{Type: netlinkconn.HeaderType(req.Type), Flags: netlinkconn.HeaderFlags(req.Flags)}
	msgs, err := s.Execute(netlinkconn.Message{Header: header, Data: req.Serialize()[unix.SizeofNlMsghdr:]})
	for _, m := range msgs {
		if m.Header.Flags&netlinkconn.DumpInterrupted != 0 {
			return nil, netlink.ErrDumpInterrupted
		}
		if m.Header.Type == unix.RTM_NEWLINK {
			answers = append(answers, m.Data)
		}
	}
	return answers, err
}

// A requestError is the error of a failed request.
type requestError struct {
	step       string
	err        error
	kernelText string // the kernel's error message (NLMSGERR_ATTR_MSG), "" if the kernel sent none
	// refused is true if the kernel answered that it did not execute the request. It is false if no answer
	// arrived. In that case, the kernel may have executed the request.
	refused bool
}

func (e *requestError) Error() string {
	s := e.err.Error()
	if e.step != "" {
		s = e.step + ": " + s
	}
	if e.kernelText != "" {
		s += " (" + e.kernelText + ")"
	}
	if e.refused && errors.Is(e.err, unix.EPERM) {
		s += ": CAP_NET_ADMIN is needed in the network namespaces of host and container (root, not a rootless runtime)"
	}
	return s
}

func (e *requestError) Unwrap() error { return e.err }

// Is reports whether the errno corresponds to target. For fs.ErrNotExist and errors.ErrUnsupported, it adds the
// errnos of netlink that syscall.Errno.Is does not map to them.
func (e *requestError) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return errors.Is(e.err, unix.ENODEV) || errors.Is(e.err, unix.ESRCH) || errors.Is(e.err, unix.EADDRNOTAVAIL)
	case errors.ErrUnsupported:
		return errors.Is(e.err, unix.EPROTONOSUPPORT) || errors.Is(e.err, unix.EAFNOSUPPORT)
	}
	return false
}

// isRefusal reports whether err means that the kernel did not execute the request. After any other error, the
// answer was lost, and the kernel may have executed the request.
func isRefusal(err error) bool {
	var failed *requestError
	return errors.As(err, &failed) && failed.refused
}

// asKernelError converts an errno that the kernel sent into a requestError without a step. It returns any other
// error unchanged.
func asKernelError(err error) error {
	if _, converted := err.(*requestError); err == nil || converted {
		return err
	}
	var errno unix.Errno
	if errors.As(err, new(netlink.LinkNotFoundError)) { // LinkNotFoundError does not wrap the errno
		return &requestError{err: unix.ENODEV, refused: true}
	}
	if !errors.As(err, &errno) || isSocketErrno(errno) {
		return err
	}
	// Package netlink appends the kernel's message to the text of the errno.
	message := strings.TrimPrefix(strings.TrimPrefix(err.Error(), errno.Error()), ": ")
	return &requestError{err: errno, kernelText: message, refused: true}
}

// isSocketErrno reports whether sending or receiving on a socket can fail with the errno. Package netlink returns
// such an errno in the same way as an answer of the kernel.
func isSocketErrno(errno unix.Errno) bool {
	return slices.Contains([]unix.Errno{unix.ENOBUFS, unix.ENOMEM, unix.EAGAIN, unix.EBADF, unix.EINTR}, errno)
}

// withStep adds the name of the step to an error without one, which comes from package netlink or from a test hook.
func withStep(step string, err error) error {
	var failed *requestError
	if err != nil && !errors.As(err, &failed) {
		return &requestError{step: step, err: err}
	}
	if failed != nil {
		failed.step = cmp.Or(failed.step, step)
	}
	return err
}

// step runs f, which sends requests, as one step.
func (c *Conn) step(step string, f func() error) error {
	return withStep(step, c.h.Step(step, func() error { return asKernelError(untilComplete(f)) }))
}

// listLimit is how long untilComplete repeats an interrupted list.
const listLimit = 5 * time.Second

// untilComplete repeats f while a list changes before the kernel has sent all of it (NLM_F_DUMP_INTR). Package netlink
// requests most lists ten times in a row, which is not enough beside many ADDs on two processors.
func untilComplete(f func() error) error {
	err, pause := f(), time.Millisecond
	for begin := time.Now(); errors.Is(err, netlink.ErrDumpInterrupted); pause = min(2*pause, 50*time.Millisecond) {
		if time.Since(begin) > listLimit {
			return types.Errorf(types.CodeTryAgain, "%w", err)
		}
		time.Sleep(pause)
		err = f()
	}
	return err
}

// ensure calls add as one step. If add created the object, ensure pushes the removal to u. If the object already
// exists, ensure returns nil.
func (c *Conn) ensure(u *undo.Stack, object string, add, remove func() error) error {
	err := c.step("add "+object, add)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if !isRefusal(err) {
		u.Push("delete "+object, remove)
	}
	return err
}

// query runs f, which requests information from the kernel, as one step.
func query[T any](c *Conn, step string, f func() (T, error)) (T, error) {
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
