package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nfgenmsg is the size of the header that follows that of netlink.
const nfgenmsg = 4

// message makes a request that the library cannot make.
func message(t Table, h netlink.Header, attributes []byte) netlink.Message {
	h.Type |= unix.NFNL_SUBSYS_NFTABLES << 8
	h.Flags |= netlink.Request
	return netlink.Message{Header: h, Data: append([]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0}, attributes...)}
}

// attributes calls f for each attribute.
func attributes(b []byte, f func(*netlink.AttributeDecoder)) error {
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

// errNoAnswer is the error of receive when the kernel has not answered all requests.
var errNoAnswer = errors.New("the kernel did not answer")

// receive calls handle for each answer of the kernel until handle returns more == false or an
// error. refusal is the error that the answer reports, or nil.
//
// It does not wait: netlink is synchronous, so all answers are in the socket when the system
// call that sent the requests has returned. If handle wants more than there is, receive returns
// errNoAnswer. If the receive buffer was too small for the answers, it returns ENOBUFS.
//
// netlink.Conn.Receive makes two system calls and a buffer for each answer, which was half the
// duration of an ADD with a hundred port mappings.
func (c *Conn) receive(handle func(answer netlink.Message, refusal error) (more bool, err error)) error {
	socket, err := c.raw.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10) // larger than any answer
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
		n, readErr = retryInterrupted(func() (int, error) { return unix.Read(int(fd), buf) })
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
		return nil, errors.New("the kernel's answer is malformed") // err is EINVAL, which says nothing else
	}
	answers := make([]netlink.Message, len(parsed))
	for i, m := range parsed {
		answers[i].Data = m.Data
		answers[i].Header = netlink.Header{Type: netlink.HeaderType(m.Header.Type), Sequence: m.Header.Seq}
	}
	return answers, nil
}

// retryInterrupted calls read until it returns another error than EINTR.
func retryInterrupted(read func() (int, error)) (n int, err error) {
	for {
		if n, err = read(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
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

// chains lists the chain of that name, or the chains of all tables of the family where the
// name is empty. nftables.Conn.ListChain does not tell how much there is that needs a
// chain.
func (c *Conn) chains(t Table, name string) (all []Use, err error) {
	m := message(t, netlink.Header{Type: unix.NFT_MSG_GETCHAIN, Flags: netlink.Dump}, nil)
	if name != "" {
		which, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: unix.NFTA_CHAIN_TABLE, Data: []byte(t.Name + "\x00")},
			{Type: unix.NFTA_CHAIN_NAME, Data: []byte(name + "\x00")},
		})
		if err != nil {
			return nil, err
		}
		m = message(t, netlink.Header{Type: unix.NFT_MSG_GETCHAIN}, which)
	}
	answers, err := c.raw.Execute(m)
	if err != nil {
		return nil, err
	}
	for _, m := range answers {
		table, use, err := chainIn(m)
		if err != nil {
			return nil, err
		}
		if table == t.Name {
			all = append(all, use)
		}
	}
	return all, nil
}

// chainIn reads the chain that an answer is about.
func chainIn(m netlink.Message) (table string, use Use, err error) {
	err = attributes(m.Data[min(len(m.Data), nfgenmsg):], func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			use.Chain = ad.String()
		case unix.NFTA_CHAIN_USE:
			use.Count = int(ad.Uint32())
		}
	})
	return table, use, err
}

// sequence returns the sequence number of a request that it makes: one more than that of
// the last message before it.
func (c *Conn) sequence() (uint32, error) {
	answers, err := c.raw.Execute(message(Table{}, netlink.Header{Type: unix.NFT_MSG_GETGEN}, nil))
	if err != nil {
		return 0, err
	}
	if len(answers) != 1 {
		return 0, fmt.Errorf("%d answers to one request", len(answers))
	}
	return answers[0].Header.Sequence, nil
}

// makeRoom lets a transaction through that is larger than the socket's usual buffer (the
// GC of a node with thousands of dead containers), and what the kernel has to say to
// one of many changes.
func (c *Conn) makeRoom(tx *Tx) error {
	const (
		usual    = 96 << 10
		answers  = 64      // that fit into the usual buffer
		answer   = 4 << 10 // more than one takes
		opSize   = 2 << 10 // more than a chain or a rule takes
		elemSize = 512
		most     = 64 << 20 // a limit, not what is taken
	)
	if len(tx.ops) > answers {
		if err := c.raw.SetReadBuffer(min(len(tx.ops)*answer, most)); err != nil {
			return err
		}
	}
	size := 0
	for _, o := range tx.ops {
		size += opSize
		if o.list != nil {
			size += elemSize * len(o.list.elements)
		}
	}
	if size < usual {
		return nil
	}
	return c.raw.SetWriteBuffer(size)
}
