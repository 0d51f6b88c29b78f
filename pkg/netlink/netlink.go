// Package netlink carries messages to the kernel and back (RFC 3549; netlink(7)): a
// socket, messages and their attributes. What the messages mean is the matter of
// pkg/nft (nf_tables).
//
// The kernel does what a request asks within the send, and has its answer queued
// before the send returns. So sockets block, and a request is two system calls; the
// poller of the Go runtime, which each process would have to set up, is used only by
// a Listener.
package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// A Message is a request, an answer or a notification.
type Message struct {
	Kind     uint16 // of the protocol's own kinds, or unix.NLMSG_ERROR, or unix.NLMSG_DONE
	Flags    uint16 // unix.NLM_F_…
	Sequence uint32 // set by Send; an answer has that of its request, a notification 0 or another's
	Body     []byte // without the header
}

// Err is what an answer of the kind unix.NLMSG_ERROR or unix.NLMSG_DONE says: nil is
// success, and so is any other message. A no is a *Refusal.
func (m Message) Err() error {
	if m.Kind != unix.NLMSG_ERROR && m.Kind != unix.NLMSG_DONE {
		return nil
	}
	if len(m.Body) < 4 {
		if m.Kind == unix.NLMSG_DONE {
			return nil
		}
		return fmt.Errorf("netlink answer of %d bytes", len(m.Body))
	}
	code := int32(binary.NativeEndian.Uint32(m.Body))
	if code == 0 {
		return nil
	}
	return &Refusal{Sequence: m.Sequence, Errno: unix.Errno(-code), Text: m.text()}
}

// The attributes of an answer with NLM_F_ACK_TLVS (linux/netlink.h, kernel 4.12).
const msgerrText = 1 // NLMSGERR_ATTR_MSG

// text is the kernel's own words, which follow the number and, in an NLMSG_ERROR, the
// header of the request and, unless it is capped, its body.
func (m Message) text() (text string) {
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return ""
	}
	rest := m.Body[4:]
	if m.Kind == unix.NLMSG_ERROR {
		if len(rest) < unix.NLMSG_HDRLEN {
			return ""
		}
		request := unix.NLMSG_HDRLEN
		if m.Flags&unix.NLM_F_CAPPED == 0 {
			request = align(int(binary.NativeEndian.Uint32(rest)))
		}
		rest = rest[min(max(request, unix.NLMSG_HDRLEN), len(rest)):]
	}
	for d := Decode(rest, binary.NativeEndian); d.Next(); {
		if d.Kind() == msgerrText {
			text = d.String()
		}
	}
	return text
}

// Interrupted reports whether a list changed while the kernel sent its parts.
func Interrupted(list []Message) bool {
	return slices.ContainsFunc(list, func(m Message) bool { return m.Flags&unix.NLM_F_DUMP_INTR != 0 })
}

// A Refusal is the kernel's no to one request. errors.Is finds the errno.
type Refusal struct {
	Sequence uint32
	Errno    unix.Errno
	Text     string // the kernel's own words, if it had any
}

func (r *Refusal) Error() string {
	if r.Text == "" {
		return r.Errno.Error()
	}
	return r.Errno.Error() + " (" + r.Text + ")"
}

func (r *Refusal) Unwrap() error { return r.Errno }

// align rounds up to the four bytes that messages and attributes are aligned to.
func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// append puts a message behind those in b.
func (m Message) append(b []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+len(m.Body)))
	b = binary.NativeEndian.AppendUint16(b, m.Kind)
	b = binary.NativeEndian.AppendUint16(b, m.Flags)
	b = binary.NativeEndian.AppendUint32(b, m.Sequence)
	b = binary.NativeEndian.AppendUint32(b, 0) // the kernel knows the sender
	b = append(b, m.Body...)
	return append(b, make([]byte, align(len(m.Body))-len(m.Body))...)
}

// errTorn says that a datagram is not made of whole messages.
var errTorn = errors.New("netlink datagram ends within a message")

// split takes a datagram apart. The bodies stay in b.
func split(b []byte) ([]Message, error) {
	var msgs []Message
	for len(b) > 0 {
		if len(b) < unix.NLMSG_HDRLEN {
			return nil, errTorn
		}
		length := int(binary.NativeEndian.Uint32(b))
		if length < unix.NLMSG_HDRLEN || length > len(b) {
			return nil, errTorn
		}
		msgs = append(msgs, Message{
			Kind:     binary.NativeEndian.Uint16(b[4:]),
			Flags:    binary.NativeEndian.Uint16(b[6:]),
			Sequence: binary.NativeEndian.Uint32(b[8:]),
			Body:     b[unix.NLMSG_HDRLEN:length:length],
		})
		b = b[min(align(length), len(b)):]
	}
	return msgs, nil
}
