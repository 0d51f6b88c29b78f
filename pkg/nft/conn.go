// Package nft reads and changes nf_tables over netlink, one transaction per change. Only
// this package may access nf_tables.
//
// It stands on github.com/google/nftables. A request that the library cannot make goes
// through the same socket (netlink.go).
//
// All per-attachment state is in elements of sets and maps, each with a comment
// that says who owns it (Owner). A Store adds, compares and deletes the elements of one
// attachment. Tables, chains and rules are described as data (a
// Layout), shared by all attachments, ensured by Conn.Ensure and never undone.
package nft

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// ErrUnavailable says that the kernel has no nf_tables, or not what a layout needs
// of it. Any other error says nothing about what the kernel can do.
var ErrUnavailable = errors.New("the kernel lacks nf_tables")

// A Conn is a connection to nf_tables in one namespace. It is not safe for
// concurrent use.
//
// Its errors match fs.ErrNotExist where the kernel says ENOENT and fs.ErrExist
// where it says EEXIST.
type Conn struct {
	h   *ns.Handle
	lib *nftables.Conn // nil: the next step opens another one
	raw *netlink.Conn  // the socket of lib
}

// Open connects to nf_tables in h. The socket lives until h is closed: closing it
// after a delete waits for the kernel's grace period (5 to 13 ms), and so has to
// come after everything else, where it waits together with the deletes of links.
func Open(h *ns.Handle) (*Conn, error) {
	c := &Conn{h: h}
	if err := c.step("open nftables", c.probe); err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// probe returns ErrUnavailable if there is no nf_tables. A netfilter socket without
// nf_tables answers EINVAL: no such subsystem, even after an attempt to load the module.
// nftables.Conn.GetGen would hide the number.
func (c *Conn) probe() error {
	_, err := c.lib.ListTableOfFamily("plumb", nftables.TableFamilyINet)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return ErrUnavailable
	}
	return err
}

// dial opens a socket, and has h close it. The library leaves the sizes of the buffers to
// who sets options (makeRoom).
func (c *Conn) dial() error {
	err := c.h.Do(func() (err error) {
		c.lib, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(raw *netlink.Conn) error {
			c.raw = raw
			// A refusal without the request that it is about, which may be as large as
			// what the receive buffer holds (Linux 4.3).
			_ = raw.SetOption(netlink.CapAcknowledge, true)
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
	c.h.Keep(c.lib.CloseLasting)
	return nil
}

// step runs f as one step of the tracer. After an error that is no refusal of the kernel,
// there may be answers that nobody has read, so the next step gets a new socket.
func (c *Conn) step(name string, f func() error) error {
	return c.h.Step(name, func() error {
		if c.lib == nil {
			if err := c.dial(); err != nil {
				return err
			}
		}
		err := f()
		if err != nil && !refused(err) {
			c.lib = nil
		}
		return err
	})
}

// refused reports whether the error is the kernel's answer to a request, the last one.
func refused(err error) bool {
	var answer *netlink.OpError
	return errors.As(err, &answer) && answer.Sequence != 0
}

// generation returns the number of the ruleset as it is now. Every commit changes it.
func (c *Conn) generation() (gen uint32, err error) {
	g, err := c.lib.GetGen()
	if err != nil {
		return 0, fmt.Errorf("get generation: %w", err)
	}
	return g.ID, nil
}

// consistently runs f, which lists something, until the ruleset is the same before and
// after it. The kernel marks a list that changed meanwhile (NLM_F_DUMP_INTR), and the
// library does not tell. If the ruleset never stands still, the last list counts: who
// deletes by it commits in the generation that it was read in.
func (c *Conn) consistently(f func() error) error {
	const attempts = 10
	before, err := c.generation()
	for range attempts {
		if err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
		var after uint32
		if after, err = c.generation(); after == before {
			break
		}
		before = after
	}
	return err
}

// Atomically runs f, which reads the ruleset and puts changes that rest on what it
// read into tx, and commits them if the ruleset is still the one that was read;
// else f runs again. An empty tx is not committed. A ruleset that never stands
// still is an error with types.CodeTryAgain.
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
		if err := f(tx); err != nil || len(tx.ops) == 0 {
			return err
		}
		if err := c.Commit(what, tx); !errors.Is(err, unix.ERESTART) {
			return err
		}
	}
	return types.Errorf(types.CodeTryAgain, "%s: the nftables ruleset changed %d times meanwhile; try again", what, attempts)
}
