// Package nft reads and changes nftables over netlink. Only this package may access nftables.
//
// It uses package nftables (github.com/google/nftables). Requests that package nftables does not
// support go through the same socket (netlink.go).
//
// State that belongs to one attachment is stored in elements of sets and maps. The comment of an
// element names its owner (see Owner), and package claims adds and deletes the elements. A Layout
// describes a table with its sets, chains and rules, which all attachments share. Conn.Ensure
// creates the missing parts of a layout, and no undo deletes them.
package nft

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// ErrUnavailable means that the kernel lacks nftables, or a part of it that a layout needs. No
// other error depends on the features of the kernel.
var ErrUnavailable = errors.New("the kernel lacks nf_tables")

// A Conn is a connection to nftables in one network namespace. It is not safe for concurrent
// use.
//
// Its errors match fs.ErrNotExist if the kernel answered ENOENT, and fs.ErrExist if it
// answered EEXIST.
type Conn struct {
	h      *ns.Handle
	nft    *nftables.Conn // the connection, or nil if the next step must open a new one
	socket *netlink.Conn  // the socket of the field nft
}

// Open connects to nftables in h. It returns ErrUnavailable if the kernel lacks nftables.
//
// A Conn has no Close, because closing h closes the socket. Closing the socket after a deletion
// waits for a grace period of the kernel (5 to 13 ms), and that wait overlaps with the wait for
// deleted links if both end when h is closed.
func Open(h *ns.Handle) (*Conn, error) {
	c := &Conn{h: h}
	if err := c.step("open nftables", c.probe); err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// OpenIfSupported connects like Open, but returns nil without an error if the kernel lacks nftables.
func OpenIfSupported(h *ns.Handle) (*Conn, error) {
	c, err := Open(h)
	if errors.Is(err, ErrUnavailable) {
		return nil, nil
	}
	return c, err
}

// probe returns ErrUnavailable if the kernel lacks nftables. Such a kernel tries to load the
// module, and if that fails, it answers EINVAL to a message for this subsystem. nftables.Conn.GetGen
// would hide the error number.
func (c *Conn) probe() error {
	_, err := c.nft.ListTableOfFamily("plumb", nftables.TableFamilyINet)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return ErrUnavailable
	}
	return err
}

// dial opens a socket. Closing c.h closes the socket. nftables.New does not enlarge the buffers of a
// socket whose options it sets. Therefore enlargeBuffers enlarges them.
func (c *Conn) dial() error {
	err := c.h.Do(func() (err error) {
		c.nft, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(socket *netlink.Conn) error {
			c.socket = socket
			// Error messages must not contain a copy of the refused request (Linux 4.3). Otherwise
			// one message can be larger than the receive buffer.
			_ = socket.SetOption(netlink.CapAcknowledge, true)
			return nil
		}))
		return err
	})
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return ErrUnavailable
	case err != nil:
		return err
	}
	c.h.OnClose(c.nft.CloseLasting)
	return nil
}

// step runs f as one step of the tracer. If f returns an error that is not the kernel's answer
// to a request, the socket may contain answers that were not read, and the next step opens a new
// socket.
func (c *Conn) step(name string, f func() error) error {
	return c.h.Step(name, func() error {
		if c.nft == nil {
			if err := c.dial(); err != nil {
				return err
			}
		}
		err := f()
		if err != nil && !refused(err) {
			c.nft = nil
		}
		return err
	})
}

// refused reports whether err is the kernel's answer to a request of package nftables. After such an
// answer, the kernel sends no more answers.
func refused(err error) bool {
	var answer *netlink.OpError
	return errors.As(err, &answer) && answer.Sequence != 0
}

// generation returns the generation ID of the ruleset, which each commit changes.
func (c *Conn) generation() (id uint32, err error) {
	gen, err := c.nft.GetGen()
	if err != nil {
		return 0, fmt.Errorf("get generation: %w", err)
	}
	return gen.ID, nil
}

// list calls read, as one step, until the generation of the ruleset is the same before and after the call. The kernel
// marks a list that was interrupted by a change (NLM_F_DUMP_INTR), but package nftables does not report the mark.
//
// After ten attempts, list accepts the last result. Callers that delete listed objects
// commit in the generation in which they listed them (Atomically).
func list[T any](c *Conn, what string, read func() ([]T, error)) (listed []T, err error) {
	const attempts = 10
	err = c.step("nft "+what, func() error {
		before, err := c.generation()
		for range attempts {
			if err != nil {
				return err
			}
			if listed, err = read(); err != nil {
				return err
			}
			var after uint32
			if after, err = c.generation(); after == before {
				break
			}
			before = after
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return listed, nil
}

// Atomically calls f, which reads the ruleset and adds changes to tx, and commits tx. If the ruleset
// changes between the call of f and the commit, Atomically commits nothing and calls f again with an
// empty tx. After 200 attempts it returns an error with types.CodeTryAgain.
//
// Atomically does not commit an empty tx, but calls f again if the ruleset has changed. The parameter
// what names the transaction in errors and for the tracer.
func (c *Conn) Atomically(what string, f func(tx *Tx) error) error {
	const attempts = 200
	for range attempts {
		tx := &Tx{}
		err := c.step("nft get generation", func() (err error) {
			tx.generation, err = c.generation()
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if err := f(tx); err != nil {
			return err
		}
		if len(tx.changes) == 0 {
			after, err := c.generation()
			if err != nil || after == tx.generation {
				return err
			}
			continue
		}
		if err := c.Commit(what, tx); !errors.Is(err, unix.ERESTART) {
			return err
		}
	}
	return types.Errorf(types.CodeTryAgain, "%s: other programs changed the nftables ruleset during each of %d attempts; try again", what, attempts)
}
