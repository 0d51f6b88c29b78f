package skel

import (
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/plumb-cni/plumb/pkg/file"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// A descriptor is one of the process's streams, used by system calls alone. A runtime
// that has gone away must not end an ADD: the write of the result is to fail, so that
// the ADD is undone. os.Stdout would die of SIGPIPE, unless the signal is ignored, which
// delegates would inherit, or asked for, which takes a thread. The Go runtime itself
// ignores it.
type descriptor int

// Read waits where the caller's pipe does not block.
func (d descriptor) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(d), b)
		switch {
		case errors.Is(err, unix.EAGAIN):
			d.poll(unix.POLLIN, -1)
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write writes all of b.
func (d descriptor) Write(b []byte) (int, error) {
	err := file.WriteAll(len(b), func(done int) (int, error) {
		n, err := unix.Write(int(d), b[done:])
		if errors.Is(err, unix.EAGAIN) { // a caller's pipe that does not block
			d.poll(unix.POLLOUT, -1)
			err = unix.EINTR
		}
		return n, err
	})
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// poll reports whether there is something to read, or room to write, within milliseconds;
// -1: without end.
func (d descriptor) poll(events int16, milliseconds int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(d), Events: events}}, milliseconds)
	return err == nil && n > 0
}

// stdout is the standard output. Where it was closed when the process started, the Go
// runtime has opened /dev/null in its place, for reading and writing (runtime.checkfds): a
// result would be lost without a word. Programs that redirect to /dev/null open it for
// writing only.
func stdout() io.Writer {
	var st unix.Stat_t
	flags, err := unix.FcntlInt(1, unix.F_GETFL, 0)
	if err == nil && unix.Fstat(1, &st) == nil && flags&unix.O_ACCMODE == unix.O_RDWR &&
		st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3) {
		return closed{}
	}
	return descriptor(1)
}

// closed is a stream that nobody reads.
type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errClosed }

var errClosed = errors.New("closed, or /dev/null opened for reading and writing")

// versionWait is how long VERSION waits for the version that the caller speaks.
const versionWait = time.Second

// versionAsked is the cniVersion that a VERSION call has on stdin (SPEC 1.1.0, section 2),
// or the newest one where there is none that is known. Callers need not write anything,
// nor close the stream: a terminal is not read, and others not for long.
func (r *Request) versionAsked() types.Version {
	in := r.env.Stdin
	if d, ok := in.(descriptor); ok {
		if _, err := unix.IoctlGetTermios(int(d), unix.TCGETS); err == nil {
			return types.Newest
		}
		in = timed{d, time.Now().Add(versionWait)}
	}
	var asked struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.NewDecoder(io.LimitReader(in, 64<<10)).Decode(&asked); err != nil || asked.CNIVersion == "" {
		return types.Newest
	}
	v, err := types.ParseVersion(asked.CNIVersion)
	if err != nil {
		return types.Newest
	}
	return v
}

// timed is a stream that ends at a time.
type timed struct {
	descriptor
	end time.Time
}

func (t timed) Read(b []byte) (int, error) {
	if !t.poll(unix.POLLIN, int(max(0, time.Until(t.end).Milliseconds()))) {
		return 0, io.EOF
	}
	return t.descriptor.Read(b)
}
