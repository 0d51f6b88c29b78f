// Package nft speaks to nf_tables over netlink: one transaction a change, no
// program. It is the one door to nf_tables.
//
// The messages are made here, down to the expressions of a rule (expr.go): no library
// says all that this bundle rests on (NLM_F_EXCL on a table and on elements, an element
// read by its key, a batch bound to the ruleset's generation), and what one links is
// paid for at the start of each plugin.
//
// All per-attachment state is in elements of sets and maps, each with a comment
// that says who owns it (Owner). Tables, chains and rules are described as data (a
// Layout), shared by all attachments, ensured by Conn.Ensure and never undone.
package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

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

// receiveBuffer holds the largest datagram that the kernel sends: 32 KiB in a dump.
// Without it each would be asked for its size first.
const receiveBuffer = 64 << 10

func (c *Conn) dial() error {
	err := c.h.Do(func() (err error) {
		c.nl, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: receiveBuffer})
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
	_, err = c.execute(request(verb{unix.NFT_MSG_GETGEN, 0}, 0, nil))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return ErrUnavailable
	}
	return err
}

// request makes a message. encode adds its attributes; nil: none.
func request(v verb, f Family, encode func(*netlink.AttributeEncoder)) (netlink.Message, error) {
	attributes, err := attributes(encode)
	return message(v, append(nfgenmsg(f, 0), attributes...)), err
}

func message(v verb, body []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | v.kind),
			Flags: netlink.Request | v.flags,
		},
		Data: body,
	}
}

// nfgenmsg is the header that follows that of netlink.
func nfgenmsg(f Family, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{byte(f), unix.NFNETLINK_V0}, resource)
}

func attributes(encode func(*netlink.AttributeEncoder)) ([]byte, error) {
	if encode == nil {
		return nil, nil
	}
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	encode(ae)
	return ae.Encode()
}

// nested adds an attribute that holds others.
func nested(ae *netlink.AttributeEncoder, kind uint16, encode func(*netlink.AttributeEncoder)) {
	ae.Nested(kind, func(inner *netlink.AttributeEncoder) error {
		inner.ByteOrder = binary.BigEndian
		encode(inner)
		return nil
	})
}

// execute sends one request, whose making may have failed, and gives the answers.
func (c *Conn) execute(m netlink.Message, err error) ([]netlink.Message, error) {
	if err != nil {
		return nil, err
	}
	answers, err := c.nl.Execute(m)
	return answers, errno(err)
}

// errno takes netlink's own words ("netlink receive: ") off an error of the kernel.
func errno(err error) error {
	var op *netlink.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	return err
}

// decode calls f for each attribute of a message's body or of a nested attribute.
func decode(b []byte, f func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}

// inside is decode for the attribute that ad stands at.
func inside(ad *netlink.AttributeDecoder, f func(*netlink.AttributeDecoder)) {
	ad.Nested(func(inner *netlink.AttributeDecoder) error {
		inner.ByteOrder = binary.BigEndian
		for inner.Next() {
			f(inner)
		}
		return nil
	})
}

// body is what follows the nfgenmsg.
func body(m netlink.Message) []byte { return m.Data[min(len(m.Data), 4):] }

// generation is the number of the ruleset as it stands; every commit changes it.
func (c *Conn) generation() (gen uint32, err error) {
	err = c.h.Step("nft get generation", func() error {
		answers, err := c.execute(request(verb{unix.NFT_MSG_GETGEN, 0}, 0, nil))
		for _, m := range answers {
			err = errors.Join(err, decode(body(m), func(ad *netlink.AttributeDecoder) {
				if ad.Type() == unix.NFTA_GEN_ID {
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
		if !interrupted(answers) {
			break
		}
	}
	return answers, nil
}

func interrupted(answers []netlink.Message) bool {
	for _, m := range answers {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return true
		}
	}
	return false
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
