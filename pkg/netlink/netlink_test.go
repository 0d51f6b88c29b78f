package netlink

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEncode holds attributes against their layout in linux/netlink.h.
func TestEncode(t *testing.T) {
	b, err := Encode([]byte{0xaa, 0, 0, 0}, binary.BigEndian, func(e *Encoder) {
		e.Uint8(1, 0x11)
		e.Bytes(2, []byte{0x11, 0x22})
		e.Uint32(3, 0x11223344)
		e.Uint64(4, 0x1122334455667788)
		e.String(5, "eth0")
		e.Bytes(6, nil)
		e.Nested(7, func(e *Encoder) { e.Bytes(8, []byte{0x11, 0x22}) })
		e.Headed(9, []byte{1, 2, 3, 4}, func(e *Encoder) { e.Uint8(10, 5) })
	})
	want := "aa000000" +
		"0500010011000000" +
		"0600020011220000" +
		"0800030011223344" +
		"0c0004001122334455667788" +
		"09000500" + "6574683000000000" +
		"04000600" +
		"0c000780" + "0600080011220000" +
		"10000900" + "01020304" + "05000a0005000000"
	if have := hex.EncodeToString(b); err != nil || have != want && binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		t.Errorf("have %s, %v\nwant %s", have, err, want)
	}
}

func TestEncodeTooLong(t *testing.T) {
	for _, size := range []int{65531, 65532} {
		_, err := Encode(nil, binary.NativeEndian, func(e *Encoder) {
			e.Nested(1, func(e *Encoder) {})
			e.Bytes(2, make([]byte, size))
		})
		if tooLong := errors.Is(err, unix.EMSGSIZE); tooLong != (size == 65532) {
			t.Errorf("a value of %d bytes: %v", size, err)
		}
	}
}

// TestDecode reads back what Encode wrote.
func TestDecode(t *testing.T) {
	for _, order := range []Order{binary.BigEndian, binary.NativeEndian} {
		b, err := Encode(nil, order, func(e *Encoder) {
			e.Uint8(1, 250)
			e.Bytes(2, order.AppendUint16(nil, 65000))
			e.Uint32(3, 4000000000)
			e.Uint64(4, 1<<63)
			e.String(5, "eth0")
			e.Uint32(6, 0xffffffff)
			e.Nested(7, func(e *Encoder) { e.Bytes(8, order.AppendUint16(nil, 7)) })
			e.Bytes(9, []byte{1, 2})
		})
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		good := func(ok bool) {
			if seen++; !ok {
				t.Errorf("%T: attribute %d is wrong", order, seen)
			}
		}
		d := Decode(b, order)
		for d.Next() {
			switch d.Kind() {
			case 1:
				good(d.Uint8() == 250)
			case 2:
				good(d.Uint16() == 65000)
			case 3:
				good(d.Uint32() == 4000000000)
			case 4:
				good(d.Uint64() == 1<<63)
			case 5:
				good(d.String() == "eth0")
			case 6:
				good(d.Int32() == -1)
			case 7:
				d.Nested(func(d *Decoder) { good(d.Next() && d.Kind() == 8 && d.Uint16() == 7 && !d.Next()) })
			case 9:
				good(bytes.Equal(d.Bytes(), []byte{1, 2}))
			}
		}
		if d.Err() != nil || seen != 8 {
			t.Errorf("%T: %d attributes, %v", order, seen, d.Err())
		}
	}
}

// TestDecodeBroken: what does not fit ends the reading, wherever it is nested.
func TestDecodeBroken(t *testing.T) {
	le := func(b ...byte) []byte { return b }
	for name, b := range map[string][]byte{
		"half a header":        le(8, 0),
		"shorter than itself":  le(3, 0, 1, 0),
		"longer than the rest": le(9, 0, 1, 0, 0, 0, 0, 0),
		"wrong size":           le(6, 0, 1, 0, 0, 0, 0, 0),
		"wrong size within":    le(12, 0, 2, 0, 6, 0, 1, 0, 0, 0, 0, 0),
	} {
		if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
			t.Skip("the bytes are those of a little-endian machine")
		}
		d, read := Decode(b, binary.NativeEndian), func(d *Decoder) {}
		read = func(d *Decoder) {
			for d.Next() {
				switch d.Kind() {
				case 1:
					d.Uint32()
				case 2:
					d.Nested(read)
				}
			}
		}
		if read(d); !errors.Is(d.Err(), unix.EBADMSG) {
			t.Errorf("%s: %v", name, d.Err())
		}
	}
}

// FuzzSplit: a datagram of any content is messages or an error, and attributes of any
// content come to an end.
func FuzzSplit(f *testing.F) {
	f.Add(Message{Kind: 16, Sequence: 1, Body: []byte{1, 2, 3}}.append(nil))
	f.Add(Message{Kind: unix.NLMSG_ERROR, Flags: unix.NLM_F_ACK_TLVS, Body: make([]byte, 40)}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		msgs, err := split(b)
		if err != nil && msgs != nil {
			t.Errorf("%x: %d messages and %v", b, len(msgs), err)
		}
		for _, m := range msgs {
			if err := m.Err(); err != nil {
				_ = err.Error()
			}
			for d := Decode(m.Body, binary.NativeEndian); d.Next(); {
				d.Nested(func(d *Decoder) { d.Next() })
			}
		}
	})
}

// own runs the test in a network namespace of its own, on a thread that ends with it.
func own(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread is not used again
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("unshare network namespace: %v", err)
	}
}

func dialRoute(t *testing.T) *Conn {
	t.Helper()
	c, err := Dial(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// link is an ifinfomsg with a name.
func link(t *testing.T, name string) []byte {
	t.Helper()
	b, err := Encode(make([]byte, unix.SizeofIfInfomsg), binary.NativeEndian, func(e *Encoder) { e.String(unix.IFLA_IFNAME, name) })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestExecute(t *testing.T) {
	own(t)
	c := dialRoute(t)
	one, err := c.Execute(Message{Kind: unix.RTM_GETLINK, Flags: unix.NLM_F_REQUEST, Body: link(t, "lo")})
	if err != nil || len(one) != 1 || one[0].Kind != unix.RTM_NEWLINK {
		t.Errorf("get of lo: %+v, %v", one, err)
	}
	list, err := c.Execute(Message{Kind: unix.RTM_GETLINK, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP, Body: make([]byte, unix.SizeofIfInfomsg)})
	if err != nil || len(list) == 0 || list[0].Kind != unix.RTM_NEWLINK {
		t.Errorf("list of links: %+v, %v", list, err)
	}
	up := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(up[4:], 1)
	if none, err := c.Execute(Message{Kind: unix.RTM_SETLINK, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK, Body: up}); err != nil || len(none) != 0 {
		t.Errorf("acknowledged change: %+v, %v", none, err)
	}
}

// TestRefusal: the kernel's no has its number and, where it was asked for, its words,
// with and without the request that it is about.
func TestRefusal(t *testing.T) {
	own(t)
	for _, capped := range []int{0, 1} {
		c := dialRoute(t)
		if err := unix.SetsockoptInt(c.FD(), unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, capped); err != nil {
			t.Fatal(err)
		}
		body := link(t, "x")
		body[0] = 200 // no such family
		binary.NativeEndian.PutUint32(body[4:], 77)
		_, err := c.Execute(Message{Kind: unix.RTM_NEWLINK, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: body})
		var no *Refusal
		if !errors.As(err, &no) || no.Errno == 0 || no.Text == "" || !errors.Is(err, no.Errno) || !strings.Contains(err.Error(), no.Text) {
			t.Errorf("capped %d: %+v, %v", capped, no, err)
		}
		if msgs, err := c.Execute(Message{Kind: unix.RTM_GETLINK, Flags: unix.NLM_F_REQUEST, Body: link(t, "nobody")}); !errors.Is(err, unix.ENODEV) || msgs != nil {
			t.Errorf("get of a link that is not there: %v, %v", msgs, err)
		}
	}
}

// TestSendNumbers: messages of one write are numbered in place, and each is answered.
func TestSendNumbers(t *testing.T) {
	own(t)
	c := dialRoute(t)
	msgs := make([]Message, 3)
	for i, name := range []string{"lo", "nobody", "lo"} {
		msgs[i] = Message{Kind: unix.RTM_GETLINK, Flags: unix.NLM_F_REQUEST, Body: link(t, name)}
	}
	if err := c.Send(msgs); err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, unix.ENODEV, nil} {
		have, err := c.Receive()
		if err != nil || len(have) != 1 || have[0].Sequence != msgs[i].Sequence || have[0].Sequence == 0 || !errors.Is(have[0].Err(), want) {
			t.Errorf("answer %d: %+v, %v", i, have, err)
		}
	}
}

// TestStranger: a message of another process is not an answer.
func TestStranger(t *testing.T) {
	own(t)
	c, other := dialRoute(t), dialRoute(t)
	name, err := unix.Getsockname(c.FD())
	if err != nil {
		t.Fatal(err)
	}
	forged := Message{Kind: unix.RTM_NEWLINK, Sequence: 1, Body: link(t, "forged")}.append(nil)
	if err := unix.Sendto(other.FD(), forged, 0, name); err != nil {
		t.Fatal(err)
	}
	msgs, err := c.Execute(Message{Kind: unix.RTM_GETLINK, Flags: unix.NLM_F_REQUEST, Body: link(t, "lo")})
	if err != nil || len(msgs) != 1 || bytes.Contains(msgs[0].Body, []byte("forged")) {
		t.Errorf("answer %+v, %v", msgs, err)
	}
}

// TestOverrun: answers that were lost are an error, and the next request is answered.
func TestOverrun(t *testing.T) {
	own(t)
	c := dialRoute(t)
	if err := unix.SetsockoptInt(c.FD(), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096); err != nil {
		t.Fatal(err)
	}
	msgs := make([]Message, 100)
	for i := range msgs {
		msgs[i] = Message{Kind: unix.RTM_GETLINK, Flags: unix.NLM_F_REQUEST, Body: link(t, "lo")}
	}
	if err := c.Send(msgs); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(); !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("100 answers in a buffer for a few: %v", err)
	}
	if one, err := c.Execute(msgs[0]); err != nil || len(one) != 1 {
		t.Errorf("the next request: %+v, %v", one, err)
	}
}

// TestRefusalsAreSmall: a refusal does not carry the request, however large.
func TestRefusalsAreSmall(t *testing.T) {
	own(t)
	c := dialRoute(t)
	body, err := Encode(link(t, "x"), binary.NativeEndian, func(e *Encoder) { e.Bytes(unix.IFLA_IFALIAS, make([]byte, 60000)) })
	if err != nil {
		t.Fatal(err)
	}
	msgs := make([]Message, 20)
	for i := range msgs {
		msgs[i] = Message{Kind: unix.RTM_NEWLINK, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK, Body: body}
	}
	for some := range slices.Chunk(msgs, 2) {
		if err := c.Send(some); err != nil {
			t.Fatal(err)
		}
	}
	for i := range msgs {
		answers, err := c.Receive()
		if err != nil || len(answers) != 1 || answers[0].Err() == nil || len(answers[0].Body) > 1000 {
			t.Fatalf("answer %d: %v", i, err)
		}
	}
}

func TestListener(t *testing.T) {
	own(t)
	l, err := Listen(unix.NETLINK_ROUTE, 1<<(unix.RTNLGRP_LINK-1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Next(time.Now().Add(-time.Second)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	c := dialRoute(t)
	up := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(up[4:], 1)
	binary.NativeEndian.PutUint32(up[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(up[12:], unix.IFF_UP)
	if _, err := c.Execute(Message{Kind: unix.RTM_SETLINK, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK, Body: up}); err != nil {
		t.Fatal(err)
	}
	if msgs, err := l.Next(time.Time{}); err != nil || len(msgs) != 1 || msgs[0].Kind != unix.RTM_NEWLINK {
		t.Errorf("notification: %+v, %v", msgs, err)
	}
	forge(t, l)
	up[8] = 0
	if _, err := c.Execute(Message{Kind: unix.RTM_SETLINK, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK, Body: up}); err != nil {
		t.Fatal(err)
	}
	if msgs, err := l.Next(time.Now().Add(10 * time.Second)); err != nil || len(msgs) == 0 {
		t.Errorf("notification behind a stranger's: %+v, %v", msgs, err)
	}
	ended := make(chan error)
	go func() {
		_, err := l.Next(time.Time{})
		ended <- err
	}()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("Next goes on after Close")
	}
}

// forge sends the listener a datagram that does not come from the kernel.
func forge(t *testing.T, l *Listener) {
	t.Helper()
	raw, err := l.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var name unix.Sockaddr
	if cerr := raw.Control(func(fd uintptr) { name, err = unix.Getsockname(int(fd)) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	forged := Message{Kind: unix.RTM_NEWLINK, Body: link(t, "forged")}.append(nil)
	if err := unix.Sendto(dialRoute(t).FD(), forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: name.(*unix.SockaddrNetlink).Pid}); err != nil {
		t.Fatal(err)
	}
}
