package netlink

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Listener receives the kernel's notifications. Close may be called while another
// goroutine is in Next.
type Listener struct {
	file *os.File
	in   []byte
}

// Listen opens a socket in the network namespace of the calling thread that belongs
// to groups, a bit each. The caller closes it.
func Listen(protocol int, groups uint32) (*Listener, error) {
	fd, err := open(protocol, groups, unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &Listener{file: os.NewFile(uintptr(fd), "netlink"), in: make([]byte, receiveBuffer)}, nil
}

// Close ends a Next that waits.
func (l *Listener) Close() error { return l.file.Close() }

// Next waits for notifications until the deadline; the zero time is none. The error
// matches os.ErrDeadlineExceeded when it is over, and unix.ENOBUFS when notifications
// were lost.
func (l *Listener) Next(deadline time.Time) (msgs []Message, err error) {
	if err := l.file.SetReadDeadline(deadline); err != nil {
		return nil, wrap("listen", err)
	}
	raw, err := l.file.SyscallConn()
	if err != nil {
		return nil, wrap("listen", err)
	}
	var failed error
	err = raw.Read(func(fd uintptr) (done bool) {
		msgs, failed = receive(int(fd), l.in, 0)
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err == nil {
		err = failed
	}
	return msgs, wrap("listen", err)
}
