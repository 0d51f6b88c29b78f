package netlink

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// A Conn asks and is answered. It is not safe for concurrent use.
type Conn struct {
	fd   int
	last uint32 // the sequence number given last
	in   []byte
}

// receiveBuffer holds the largest datagram that the kernel sends: 32 KiB in a dump.
const receiveBuffer = 64 << 10

// Dial opens a socket in the network namespace of the calling thread, in which it
// stays. The caller closes it.
func Dial(protocol int) (*Conn, error) {
	fd, err := open(protocol, 0, 0)
	if err != nil {
		return nil, err
	}
	// A refusal without the request that it is about (4.3), which may be as large as what
	// the receive buffer holds, and with the kernel's own words (4.12), if it can.
	for _, option := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK} {
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1)
	}
	return &Conn{fd: fd}, nil
}

// open makes a socket that is bound to a number of the kernel's choice and to groups.
func open(protocol int, groups uint32, flags int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags, protocol)
	if err != nil {
		return -1, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return -1, errors.Join(fmt.Errorf("bind netlink socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// Close may wait for a grace period of the kernel's, where nf_tables was changed.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// FD is the socket, valid until Close, for its options.
func (c *Conn) FD() int { return c.fd }

// MakeRoom gives the socket buffers of at least these sizes, in bytes; zero: as it is.
// The kernel drops what it has to say when the one does not hold it, and refuses a Send
// that is larger than the other.
func (c *Conn) MakeRoom(receive, send int) error {
	for _, b := range []struct{ size, force, option int }{
		{receive, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF},
		{send, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF},
	} {
		if b.size == 0 {
			continue
		}
		err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, b.force, b.size)
		if errors.Is(err, unix.EPERM) { // as root of a user namespace: what the machine's limit allows
			err = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, b.option, b.size)
		}
		if err != nil {
			return wrap("make room", err)
		}
	}
	return nil
}

// Send numbers the messages in place and sends them in one write. The kernel has done
// what they ask when it returns. An error says that none was looked at.
func (c *Conn) Send(msgs []Message) error {
	size := 0
	for _, m := range msgs {
		size += unix.NLMSG_HDRLEN + align(len(m.Body))
	}
	out := make([]byte, 0, size)
	for i := range msgs {
		c.last = max(c.last+1, 1) // 0 is a notification's
		msgs[i].Sequence = c.last
		out = msgs[i].append(out)
	}
	return wrap("send", types.RetryEINTR(func() error {
		return unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}))
}

// Receive waits for one datagram and gives its messages, Err of which says what came
// of each request. An error is the socket's: unix.ENOBUFS, that answers were lost; what
// is left of them is passed over, for the kernel drops whatever it has to say until all
// has been read, and tells only once.
func (c *Conn) Receive() ([]Message, error) {
	if c.in == nil {
		c.in = make([]byte, receiveBuffer)
	}
	msgs, err := receive(c.fd, c.in, 0)
	if errors.Is(err, unix.ENOBUFS) {
		for rest := error(nil); !errors.Is(rest, unix.EAGAIN) && !errors.Is(rest, unix.EBADF); {
			_, rest = receive(c.fd, c.in, unix.MSG_DONTWAIT)
		}
	}
	return msgs, wrap("receive", err)
}

// receive reads one datagram of the kernel's by way of the buffer, out of which the
// messages are copied. What another process has sent is passed over.
func receive(fd int, buffer []byte, flags int) ([]Message, error) {
	for {
		n, from, err := unix.Recvfrom(fd, buffer, flags|unix.MSG_TRUNC) // n is what there was to read
		sender, known := from.(*unix.SockaddrNetlink)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case !known || sender.Pid != 0:
		case n > len(buffer):
			return nil, fmt.Errorf("datagram of %d bytes: %w", n, unix.EMSGSIZE)
		default:
			return split(bytes.Clone(buffer[:n]))
		}
	}
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("netlink %s: %w", what, err)
}

// Execute sends one request and gives its answers without the last, which says only
// that there are no more, or an acknowledgement. Where the kernel says no that is the
// error, a *Refusal. Answers to requests before it that nobody read are passed over.
func (c *Conn) Execute(request Message) ([]Message, error) {
	var answers []Message
	err := c.Each(request, func(m Message) { answers = append(answers, m) })
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// Each is Execute that hands each answer to f as it comes, for lists that may be too
// long to be kept. f must not use the Conn.
func (c *Conn) Each(request Message, f func(Message)) error {
	sent := []Message{request}
	if err := c.Send(sent); err != nil {
		return err
	}
	for {
		msgs, err := c.Receive()
		if err != nil {
			return err
		}
		for _, m := range msgs {
			if m.Sequence != sent[0].Sequence {
				continue
			}
			if m.Kind == unix.NLMSG_ERROR || m.Kind == unix.NLMSG_DONE {
				return m.Err()
			}
			f(m)
			if m.Flags&unix.NLM_F_MULTI == 0 && request.Flags&unix.NLM_F_ACK == 0 {
				return nil
			}
		}
	}
}
