package skel

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// outputStream returns a writer to a duplicate of the descriptor fd, which is 1 or 2. If the
// runtime has exited, writing the result must return an error, so that ADD is undone. If os.Stdout
// or os.Stderr were used, package os would end the process by SIGPIPE instead, because it does so
// for the descriptors 1 and 2 (see os/signal).
func outputStream(fd int, name string) io.Writer {
	duplicate, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return brokenStream{err}
	}
	return os.NewFile(uintptr(duplicate), name)
}

// stdout returns the standard output. If it was closed when the process started, each write returns
// errClosed. In that case, the Go runtime has opened /dev/null for reading and writing in its place
// (runtime.checkfds), and the result would be lost without an error. Programs that redirect to
// /dev/null open it for writing only.
func stdout() io.Writer {
	var st unix.Stat_t
	flags, err := unix.FcntlInt(1, unix.F_GETFL, 0)
	if err == nil && unix.Fstat(1, &st) == nil && flags&unix.O_ACCMODE == unix.O_RDWR &&
		st.Mode&unix.S_IFMT == unix.S_IFCHR && uint64(st.Rdev) == unix.Mkdev(1, 3) {
		return brokenStream{errClosed}
	}
	return outputStream(1, "stdout")
}

// A brokenStream returns err from each write.
type brokenStream struct{ err error }

func (s brokenStream) Write([]byte) (int, error) { return 0, s.err }

var errClosed = errors.New("closed, or /dev/null opened for reading and writing")

// versionWait is how long VERSION waits for the cniVersion of the caller.
const versionWait = time.Second

// versionAsked returns the cniVersion that the caller of VERSION wrote to stdin (SPEC 1.1.0,
// section 2), or the newest version if the caller wrote none or an unknown one. Because a caller
// need not write anything or close the stream, versionAsked does not read from a terminal, and
// waits at most versionWait for other input.
func (r *Request) versionAsked() types.Version {
	in := r.env.Stdin
	if in == io.Reader(os.Stdin) {
		if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err == nil {
			return types.Newest
		}
		in = timedReader{time.Now().Add(versionWait)}
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

// A timedReader reads from the standard input, and returns io.EOF if there is nothing to read
// before the deadline. File.SetReadDeadline does not support pipes in blocking mode.
type timedReader struct{ deadline time.Time }

func (t timedReader) Read(b []byte) (int, error) {
	left := max(0, time.Until(t.deadline))
	n, err := unix.Poll([]unix.PollFd{{Fd: 0, Events: unix.POLLIN}}, int(left.Milliseconds()))
	if err != nil || n == 0 {
		return 0, io.EOF
	}
	return os.Stdin.Read(b)
}
