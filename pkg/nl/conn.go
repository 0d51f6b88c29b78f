// Package nl speaks rtnetlink: links, addresses, routes, bridge ports and their
// VLANs, in domain verbs and value types.
//
// The cost of an ADD is its round trips: a veth pair is made with both ends in place
// by one request whose echo tells both indexes, and what an interface needs (up,
// addresses, routes) goes to the kernel in one write. Requests ask for one object,
// or are filtered by the kernel; nothing dumps the node's links to find its own.
package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"github.com/plumb-cni/plumb/pkg/ns"
	"golang.org/x/sys/unix"
)

// A Conn is a netlink connection to one namespace. It is not safe for concurrent
// use. It is closed with the ns.Handle that it was opened from.
type Conn struct {
	h *ns.Handle
	c *netlink.Conn
}

// Open connects to the namespace.
func Open(h *ns.Handle) (*Conn, error) {
	c := &Conn{h: h}
	err := inside(h, "open netlink socket", func() (err error) {
		c.c, err = netlink.Dial(unix.NETLINK_ROUTE)
		return err
	})
	if c.c != nil {
		h.Keep(c.c.Close)
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", h.Path(), err)
	}
	// A refinement: dumps filtered in the kernel (4.20). Filters are applied here as well.
	_ = unix.SetsockoptInt(c.c.FD(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
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

// inside is a step that is taken in the namespace.
func inside(h *ns.Handle, step string, f func() error) error {
	return h.Step(step, func() error { return h.Do(f) })
}

// NS is the namespace that the connection is bound to.
func (c *Conn) NS() *ns.Handle { return c.h }

// Cookie is the number of the namespace, which no other has had or will have until
// the machine is started anew (its inode is used again). Zero: the kernel does not
// tell (before 5.14).
func (c *Conn) Cookie() uint64 {
	cookie, _ := unix.GetsockoptUint64(c.c.FD(), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie
}

// An Error is a refused request: what was asked, and why not. It matches
// fs.ErrNotExist when the object is not there and fs.ErrExist when it is there
// already; errors.Is also finds the errno.
type Error struct {
	Step string
	Err  error
	Hint string // the kernel's own words, if it had any
	// Refused: the kernel answered, and its answer was no. Otherwise it is not known
	// whether the request was carried out (the answer was lost).
	Refused bool
}

func (e *Error) Error() string {
	s := e.Step + ": " + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	if e.Refused && errors.Is(e.Err, unix.EPERM) {
		s += ": CAP_NET_ADMIN is needed in the network namespaces of node and container (root, not a rootless runtime)"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is matches the two sentinels that callers act on.
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

// wrap names the step in an error of the connection or of a test's hook.
func wrap(step string, err error) error {
	var done *Error
	var no *netlink.Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &done):
		return err
	case errors.As(err, &no):
		return &Error{Step: step, Err: no.Errno, Hint: no.Text, Refused: true}
	}
	return &Error{Step: step, Err: err}
}

// A Change is one request that alters something, described but not sent.
type Change struct {
	step  string
	kind  uint16
	flags uint16
	body  []byte
	err   error // the change could not be described
	fine  error // a refusal that matches this is as good as success; nil: none is
}

// IfAbsent makes it no error that the object is there already: somebody else was
// first with what is shared.
func (ch Change) IfAbsent() Change {
	ch.fine = fs.ErrExist
	return ch
}

// IfPresent makes it no error that the object is gone already.
func (ch Change) IfPresent() Change {
	ch.fine = fs.ErrNotExist
	return ch
}

// outcome names the change in its error, unless that is as good as success.
func (ch Change) outcome(err error) error {
	err = wrap(ch.step, err)
	if ch.fine != nil && errors.Is(err, ch.fine) {
		return nil
	}
	return err
}

func change(step string, kind uint16, body []byte, err error) Change {
	return Change{step: step, kind: kind, body: body, err: err}
}

func (ch Change) with(flags uint16) Change {
	ch.flags |= flags
	return ch
}

func (ch Change) message() netlink.Message {
	return netlink.Message{Kind: ch.kind, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK | ch.flags, Body: ch.body}
}

// Apply sends the changes in one write (a few where there are very many) and awaits the
// kernel's word on each. It reports the first that was refused. The kernel goes on with
// later changes after a refused one, so a batch holds only what one undo takes away
// together.
func (c *Conn) Apply(changes ...Change) error {
	var msgs []netlink.Message
	var ends []func(error) error
	var refused error
	for _, ch := range changes {
		end, err := c.h.Trace().Start(ch.step)
		if refused = wrap(ch.step, errors.Join(ch.err, err)); refused != nil {
			break
		}
		msgs, ends = append(msgs, ch.message()), append(ends, end)
	}
	_, results := c.exchange(msgs)
	var first error
	for i, end := range ends {
		if err := end(changes[i].outcome(results[i])); err != nil && first == nil {
			first = wrap(changes[i].step, err)
		}
	}
	if first != nil {
		return first
	}
	return refused
}

// atOnce is how many messages go in one write. The kernel answers all of them before
// any is read, and drops the answers for which the receive buffer has no room: after
// 200 to 300 of them where it has its default size (net.core.rmem_default).
const atOnce = 64

// exchange sends messages that ask for an acknowledgement and collects what comes
// before the acknowledgements (echoes), and one result a message.
func (c *Conn) exchange(msgs []netlink.Message) (echoes []netlink.Message, results []error) {
	for some := range slices.Chunk(msgs, atOnce) {
		told, ended := c.exchangeSome(some)
		echoes, results = append(echoes, told...), append(results, ended...)
	}
	return echoes, results
}

func (c *Conn) exchangeSome(msgs []netlink.Message) (echoes []netlink.Message, results []error) {
	results = make([]error, len(msgs))
	waiting := make(map[uint32]int, len(msgs)) // index by sequence
	err := c.c.Send(msgs)
	for i, m := range msgs {
		waiting[m.Sequence] = i
	}
	for err == nil && len(waiting) > 0 {
		var answers []netlink.Message
		answers, err = c.c.Receive()
		for _, m := range answers {
			i, ours := waiting[m.Sequence]
			switch {
			case !ours:
			case m.Kind == unix.NLMSG_ERROR:
				results[i] = m.Err()
				delete(waiting, m.Sequence)
			default:
				echoes = append(echoes, m)
			}
		}
	}
	for _, i := range waiting {
		results[i] = err
	}
	return echoes, results
}

// applyEcho is Apply of one change, and what the kernel says it made of it: the
// message that it also broadcasts. Links are echoed since kernel 6.2 (commit
// d88e136cab37); an older one sends none.
func (c *Conn) applyEcho(ch Change) ([]netlink.Message, error) {
	ch.flags |= unix.NLM_F_ECHO
	var echoes []netlink.Message
	err := c.h.Step(ch.step, func() error {
		if ch.err != nil {
			return ch.err
		}
		var results []error
		echoes, results = c.exchange([]netlink.Message{ch.message()})
		return results[0]
	})
	return echoes, wrap(ch.step, err)
}

// get asks for one object.
func (c *Conn) get(step string, kind uint16, body []byte) (netlink.Message, error) {
	var reply netlink.Message
	err := c.h.Step(step, func() error {
		msgs, err := c.c.Execute(netlink.Message{Kind: kind, Flags: unix.NLM_F_REQUEST, Body: body})
		if err == nil && len(msgs) != 1 {
			err = fmt.Errorf("want one answer, have %d", len(msgs))
		}
		if err == nil {
			reply = msgs[0]
		}
		return err
	})
	return reply, wrap(step, err)
}

// dumpTries bounds how often a dump is repeated that the kernel says was not
// consistent (NLM_F_DUMP_INTR: something changed between its parts).
const dumpTries = 16

// errInterrupted says that a dump never came out consistent.
var errInterrupted = errors.New("the list changed each time while the kernel sent it; try again")

// dump asks for a list.
func (c *Conn) dump(step string, kind uint16, body []byte) ([]netlink.Message, error) {
	var list []netlink.Message
	err := c.h.Step(step, func() error {
		for range dumpTries {
			msgs, err := c.c.Execute(netlink.Message{Kind: kind, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP, Body: body})
			if err != nil || !netlink.Interrupted(msgs) {
				list = msgs
				return err
			}
		}
		return errInterrupted
	})
	return list, wrap(step, err)
}
