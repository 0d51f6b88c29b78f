// Package nft speaks to nf_tables over netlink: one transaction a change, no
// program. It is the one door to nf_tables.
//
// The messages are made here, down to the expressions of a rule (expr.go): no library
// says all that this bundle rests on (NLM_F_EXCL on a table and on elements, an element
// read by its key, a batch bound to the ruleset's generation), and what one links is
// paid for at the start of each plugin.
//
// All per-attachment state is in elements of sets and maps, each with a comment
// that says who owns it (Owner). A Store adds, compares and deletes the elements of one
// attachment. Tables, chains and rules are described as data (a
// Layout), shared by all attachments, ensured by Conn.Ensure and never undone.
package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/pkg/netlink"
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
	h  *ns.Handle
	nl *netlink.Conn
}

// Open connects to nf_tables in h. The socket lives until h is closed: closing it
// after a delete waits for the kernel's grace period (5 to 13 ms), and so has to
// come after everything else, where it waits together with the deletes of links.
func Open(h *ns.Handle) (*Conn, error) {
	c := &Conn{h: h}
	err := h.Step("open nftables", c.dial)
	if c.nl != nil {
		h.Keep(c.nl.Close)
	}
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

func (c *Conn) dial() error {
	err := c.h.Do(func() (err error) {
		c.nl, err = netlink.Dial(unix.NETLINK_NETFILTER)
		return err
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return ErrUnavailable
	}
	if err != nil {
		return err
	}
	// A netfilter socket without nf_tables behind it answers EINVAL (no such
	// subsystem, even after an attempt to load the module).
	_, err = c.execute(request(verb{unix.NFT_MSG_GETGEN, 0}, 0, none))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return ErrUnavailable
	}
	return err
}

// request makes a message. encode adds its attributes.
func request(v verb, f Family, encode func(*netlink.Encoder)) (netlink.Message, error) {
	body, err := netlink.Encode(nfgenmsg(f, 0), binary.BigEndian, encode)
	return message(v, body), err
}

func message(v verb, body []byte) netlink.Message {
	return netlink.Message{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | v.kind, Flags: unix.NLM_F_REQUEST | v.flags, Body: body}
}

// nfgenmsg is the header that follows that of netlink.
func nfgenmsg(f Family, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{byte(f), unix.NFNETLINK_V0}, resource)
}

// execute sends one request, whose making may have failed, and gives the answers.
func (c *Conn) execute(m netlink.Message, err error) ([]netlink.Message, error) {
	if err != nil {
		return nil, err
	}
	answers, err := c.nl.Execute(m)
	return answers, errno(err)
}

// errno is the number alone of the kernel's no.
func errno(err error) error {
	var no *netlink.Refusal
	if errors.As(err, &no) {
		return no.Errno
	}
	return err
}

// decode calls f for each attribute of a message's body.
func decode(b []byte, f func(*netlink.Decoder)) error {
	ad := netlink.Decode(b, binary.BigEndian)
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}

// inside calls f for each attribute within the one that ad stands at.
func inside(ad *netlink.Decoder, f func(*netlink.Decoder)) {
	ad.Nested(func(inner *netlink.Decoder) {
		for inner.Next() {
			f(inner)
		}
	})
}

// body is what follows the nfgenmsg.
func body(m netlink.Message) []byte { return m.Body[min(len(m.Body), 4):] }

// generation is the number of the ruleset as it stands; every commit changes it.
func (c *Conn) generation() (gen uint32, err error) {
	err = c.h.Step("nft get generation", func() error {
		answers, err := c.execute(request(verb{unix.NFT_MSG_GETGEN, 0}, 0, none))
		for _, m := range answers {
			err = errors.Join(err, decode(body(m), func(ad *netlink.Decoder) {
				if ad.Kind() == unix.NFTA_GEN_ID {
					gen = ad.Uint32()
				}
			}))
		}
		return err
	})
	return gen, err
}

// dump lists what a request names. A list that changed underway is read again; if
// it never stands still, the last one is given: who deletes by it looks at each
// element once more, and what is added meanwhile is somebody else's.
func (c *Conn) dump(m netlink.Message, err error) ([]netlink.Message, error) {
	const attempts = 10
	if err != nil {
		return nil, err
	}
	var answers []netlink.Message
	for range attempts {
		if answers, err = c.nl.Execute(m); err != nil {
			return nil, errno(err)
		}
		if !netlink.Interrupted(answers) {
			break
		}
	}
	return answers, nil
}

// Atomically runs f, which reads the ruleset and puts changes that rest on what it
// read into tx, and commits them if the ruleset is still the one that was read;
// else f runs again. An empty tx is not committed. A ruleset that never stands
// still is an error with types.CodeTryAgain.
func (c *Conn) Atomically(what string, f func(tx *Tx) error) error {
	const attempts = 200
	for range attempts {
		gen, err := c.generation()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		tx := &Tx{generation: gen}
		if err := f(tx); err != nil || len(tx.ops) == 0 {
			return err
		}
		if err := c.Commit(what, tx); !errors.Is(err, unix.ERESTART) {
			return err
		}
	}
	return types.Errorf(types.CodeTryAgain, "%s: the nftables ruleset changed %d times meanwhile; try again", what, attempts)
}
