package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// nfgenmsgSize is the size of struct nfgenmsg, which follows the netlink header.
const nfgenmsgSize = 4

// newRequest returns a message of the type in h to nftables, for the family of t.
func newRequest(t Table, h netlink.Header, attributes []byte) netlink.Message {
	h.Type |= unix.NFNL_SUBSYS_NFTABLES << 8
	h.Flags |= netlink.Request
	return netlink.Message{Header: h, Data: append([]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0}, attributes...)}
}

// eachAttribute calls f for each attribute of an answer.
func eachAttribute(answer netlink.Message, f func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(answer.Data[min(len(answer.Data), nfgenmsgSize):])
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}

// eachNested calls f for each attribute in the current attribute of ad.
func eachNested(ad *netlink.AttributeDecoder, f func(*netlink.AttributeDecoder)) {
	ad.Nested(func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			f(ad)
		}
		return nil
	})
}

// errNoAnswer is the error of receive when the kernel has not answered all requests.
var errNoAnswer = errors.New("the kernel did not answer")

// receive calls handle for each answer of the kernel until handle returns more == false or an
// error. refusal is the error that the answer reports, or nil.
//
// receive does not wait, because netlink is synchronous. All answers are in the socket when the system
// call that sent the requests returns. If handle wants more answers, receive returns errNoAnswer. If
// the receive buffer was too small for the answers, it returns ENOBUFS.
//
// netlink.Conn.Receive needs two system calls and allocates a buffer for each answer, which took half
// the time of an ADD with a hundred port mappings.
func (c *Conn) receive(handle func(answer netlink.Message, refusal error) (more bool, err error)) error {
	socket, err := c.socket.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, 8<<10) // no answer is larger (NLMSG_GOODSIZE)
	for {
		answers, err := readAnswers(socket, buf)
		if err != nil {
			return err
		}
		for _, answer := range answers {
			more, err := handle(answer, refusal(answer))
			if err != nil || !more {
				return err
			}
		}
	}
}

// readAnswers reads one datagram from the socket into buf. The answers refer to buf.
func readAnswers(socket syscall.RawConn, buf []byte) ([]netlink.Message, error) {
	var n int
	var readErr error
	err := socket.Read(func(fd uintptr) bool {
		readErr = types.RetryEINTR(func() (err error) {
			n, err = unix.Read(int(fd), buf)
			return err
		})
		return true // do not wait after EAGAIN
	})
	switch {
	case err != nil:
		return nil, err
	case errors.Is(readErr, unix.EAGAIN):
		return nil, errNoAnswer
	case readErr != nil:
		return nil, fmt.Errorf("read answers: %w", readErr)
	}
	parsed, err := syscall.ParseNetlinkMessage(buf[:min((n+3)&^3, len(buf))])
	if err != nil {
		return nil, errors.New("the kernel's answer is malformed") // err is only EINVAL
	}
	answers := make([]netlink.Message, len(parsed))
	for i, m := range parsed {
		answers[i].Data = m.Data
		answers[i].Header = netlink.Header{Type: netlink.HeaderType(m.Header.Type), Sequence: m.Header.Seq}
	}
	return answers, nil
}

// refusal returns the error that an answer reports, or nil.
func refusal(m netlink.Message) error {
	switch {
	case m.Header.Type != netlink.Error:
		return nil
	case len(m.Data) < 4:
		return errors.New("the kernel's error message has no error number")
	}
	if code := -int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
		return unix.Errno(code)
	}
	return nil
}

// nextSequence sends a request and returns its sequence number, which is one more than the sequence
// number of the message before it.
func (c *Conn) nextSequence() (uint32, error) {
	answers, err := c.socket.Execute(newRequest(Table{}, netlink.Header{Type: unix.NFT_MSG_GETGEN}, nil))
	if err != nil {
		return 0, err
	}
	if len(answers) != 1 {
		return 0, fmt.Errorf("%d answers to one request", len(answers))
	}
	return answers[0].Header.Sequence, nil
}

// enlargeBuffers enlarges the socket's buffers if this number of changes, or the kernel's answers to
// them, may not fit. A GC on a host with thousands of dead containers needs the larger buffers.
func (c *Conn) enlargeBuffers(changes int) error {
	const (
		maxChangeSize     = 64 << 10 // the bytes of a full message with elements, the largest kind of message
		changesInDefaults = 3        // the number of changes that fit into the default buffers
	)
	if changes <= changesInDefaults {
		return nil
	}
	size := min(changes*maxChangeSize, 1<<29) // the kernel stores the double in an int32
	return errors.Join(c.socket.SetWriteBuffer(size), c.socket.SetReadBuffer(size))
}
