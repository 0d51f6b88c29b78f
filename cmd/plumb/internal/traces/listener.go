// Package traces receives what plugins log of their calls while it listens.
//
// The plugins look for a named pipe (trace.Pipe) once per call. A pipe and not a file: if nobody reads it,
// the plugins cannot open it for writing, so nothing grows when a listener was killed; and a plugin never
// waits, because it drops the lines for which the pipe has no room.
package traces

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/plumb-cni/plumb/pkg/trace"
	"golang.org/x/sys/unix"
)

// ErrBusy is the error of Listen if another process listens.
var ErrBusy = errors.New("another plumb trace runs on this node; end it first")

// errNoPipe is the error of Listen if there is something else at the path.
var errNoPipe = errors.New("the path is in use by something that is no pipe; remove it")

const (
	// pipeSize is the size of the pipe: some hundred calls. An unprivileged user cannot have more.
	pipeSize = 1 << 20
	// checkInterval is the time between two checks whether the processes of the open calls still exist.
	checkInterval = time.Second
)

// A Listener has the pipe. Close removes it.
type Listener struct {
	path string
	file *os.File
}

// Listen makes the pipe, and the folder that it is in. It takes over a pipe whose listener was killed.
func Listen(path string) (*Listener, error) {
	l := &Listener{path: path}
	for {
		err := l.open()
		switch {
		case err == nil:
			return l, nil
		case errors.Is(err, ErrBusy):
			return nil, err
		case errors.Is(err, fs.ErrNotExist): // another listener has just removed its pipe
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("make pipe %s: %w; run plumb trace as root", path, err)
		default:
			return nil, fmt.Errorf("make pipe %s: %w", path, err)
		}
	}
}

// open makes one attempt to make and lock the pipe. The error matches fs.ErrNotExist if another listener
// removed the pipe in between.
func (l *Listener) open() error {
	if err := os.Mkdir(filepath.Dir(l.path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make folder: %v", err) // not fs.ErrNotExist: the folder above does not exist
	}
	if err := unix.Mkfifo(l.path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	// With a writer of its own, the listener reads no end of file when the last plugin has ended.
	fd, err := unix.Open(l.path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR):
		return errNoPipe
	case err != nil:
		return err
	}
	if err := l.lock(fd); err != nil {
		_ = unix.Close(fd)
		return err
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize) // a smaller one works, too
	l.file = os.NewFile(uintptr(fd), l.path)
	return nil
}

// lock makes this process the only listener. The kernel frees the lock when the process ends.
func (l *Listener) lock(fd int) error {
	var opened, there unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil {
		return err
	}
	if opened.Mode&unix.S_IFMT != unix.S_IFIFO {
		return errNoPipe
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return ErrBusy
	} else if err != nil {
		return err
	}
	if err := unix.Stat(l.path, &there); err != nil {
		return err
	}
	if there.Ino != opened.Ino || there.Dev != opened.Dev {
		return unix.ENOENT
	}
	return unix.Fchmod(fd, 0o600)
}

// Close removes the pipe, and the folder if it is empty then. Calls that are under way lose their lines.
func (l *Listener) Close() error {
	err := os.Remove(l.path)            // before the lock is free: another listener's pipe must stay
	_ = os.Remove(filepath.Dir(l.path)) // fails if something else is in it
	return errors.Join(err, l.file.Close())
}

// Follow calls report for each call as it ends, until ctx is done or report returns an error, which
// Follow returns. It reports an IPAM plugin's call within that of its caller. Calls whose process was
// killed follow within seconds. At the end of ctx, Follow reports the calls that are under way.
func (l *Listener) Follow(ctx context.Context, report func(*Call) error) error {
	defer context.AfterFunc(ctx, func() { _ = l.file.SetReadDeadline(time.Now()) })()
	calls := newAssembly(processGone)
	check := time.Now().Add(checkInterval)
	var rest []byte
	buffer := make([]byte, pipeSize)
	for {
		if err := l.file.SetReadDeadline(check); err != nil {
			return err
		}
		if ctx.Err() != nil { // asked after the deadline is set: AfterFunc sets it anew
			return reportAll(calls.unfinished(time.Now()), report)
		}
		n, err := l.file.Read(buffer)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("read %s: %w", l.path, err)
		}
		done, more := calls.addLines(append(rest, buffer[:n]...))
		rest = more
		if time.Now().After(check) {
			done = append(done, calls.killed()...)
			check = time.Now().Add(checkInterval)
		}
		if err := reportAll(done, report); err != nil {
			return err
		}
	}
}

// addLines adds the records in text. It returns the calls that have ended with them, and the beginning of a
// line that is not complete. It skips lines that are no records.
func (a *assembly) addLines(text []byte) (done []*Call, rest []byte) {
	for {
		line, more, complete := bytes.Cut(text, []byte("\n"))
		if !complete {
			return done, text
		}
		var r trace.Record
		if json.Unmarshal(line, &r) == nil {
			if c := a.add(r); c != nil {
				done = append(done, c)
			}
		}
		text = more
	}
}

func reportAll(calls []*Call, report func(*Call) error) error {
	for _, c := range calls {
		if err := report(c); err != nil {
			return err
		}
	}
	return nil
}

// processGone reports whether no process has the ID.
func processGone(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }
