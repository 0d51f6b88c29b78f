// Package traces receives the records that plugins log of their calls, and combines the records of each call
// into a Call.
//
// The plugins write the records to a named pipe (trace.Pipe), which each plugin tries to open once per call. A plugin
// cannot open a pipe that no process reads, so that no data accumulates after a listener is killed. A plugin never
// waits for the listener, and drops records if the pipe is full.
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

	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"golang.org/x/sys/unix"
)

// ErrBusy is returned by Listen if another Listener is reading the pipe.
var ErrBusy = errors.New("another plumb trace runs on this host; end it first")

// errNotPipe is returned by Listen if the file at the path is not a named pipe.
var errNotPipe = errors.New("the file is not a named pipe; remove it")

const (
	// pipeSize is the size of the pipe in bytes, enough for the records of some hundred calls. It is the default of
	// fs.pipe-max-size, the largest size that a process without CAP_SYS_RESOURCE can set (pipe(7)).
	pipeSize = 1 << 20
	// checkInterval is the time between two checks for killed processes.
	checkInterval = time.Second
	// maxAttempts is how many times Listen tries to create and open the pipe. Each attempt can fail because another
	// listener removes its pipe at the same time.
	maxAttempts = 1000
)

// A Listener reads the pipe. The caller must close it.
type Listener struct {
	path string
	file *os.File
}

// Listen creates the pipe and its directory, and opens the pipe. It also opens a pipe that a killed listener left. If another
// Listener is reading the pipe, the error is ErrBusy.
func Listen(path string) (*Listener, error) {
	l := &Listener{path: path}
	err := l.open()
	for attempts := 1; errors.Is(err, fs.ErrNotExist) && attempts < maxAttempts; attempts++ {
		err = l.open()
	}
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, ErrBusy):
		return nil, err
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("create pipe %s: %w; run plumb trace as root", path, err)
	}
	return nil, fmt.Errorf("create pipe %s: %w", path, err)
}

// open tries once to create, open and lock the pipe. The error matches fs.ErrNotExist if another listener removed the pipe or
// its directory meanwhile.
func (l *Listener) open() error {
	if err := os.Mkdir(filepath.Dir(l.path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create directory: %v", err) // without %w, because Listen must not try again if the parent directory is missing
	}
	if err := unix.Mkfifo(l.path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	// O_RDWR makes the listener a writer as well, so that Read does not return io.EOF when the last plugin has ended.
	fd, err := unix.Open(l.path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO): // a symbolic link, a directory, a socket
		return errNotPipe
	case err != nil:
		return err
	}
	if err := l.lock(fd); err != nil {
		_ = unix.Close(fd)
		return err
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize) // if this fails, the pipe keeps its smaller size
	l.file = os.NewFile(uintptr(fd), l.path)
	return nil
}

// lock locks the pipe, so that there is one listener at a time. The kernel releases the lock when the process ends. The error is
// ENOENT if another listener has replaced the pipe at the path.
func (l *Listener) lock(fd int) error {
	var opened, current unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil {
		return err
	}
	if opened.Mode&unix.S_IFMT != unix.S_IFIFO {
		return errNotPipe
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return ErrBusy
	} else if err != nil {
		return err
	}
	if err := unix.Stat(l.path, &current); err != nil {
		return err
	}
	if current.Ino != opened.Ino || current.Dev != opened.Dev {
		return unix.ENOENT
	}
	return unix.Fchmod(fd, 0o600)
}

// Close removes the pipe, and its directory if that is empty. Running plugins drop their records.
func (l *Listener) Close() error {
	err := os.Remove(l.path)            // before the lock is released, because another listener may own the pipe afterwards
	_ = os.Remove(filepath.Dir(l.path)) // fails if the directory is not empty
	return errors.Join(err, l.file.Close())
}

// Follow passes each call to report when the call has ended. The call of an IPAM plugin is in the field Calls of its caller.
// Follow reports a call whose process was killed some seconds later. When ctx is done, it reports the calls that are still
// running, and returns nil. If report returns an error, Follow returns that error.
func (l *Listener) Follow(ctx context.Context, report func(*Call) error) error {
	stop := context.AfterFunc(ctx, func() { _ = l.file.SetReadDeadline(time.Now()) })
	defer stop()
	calls := newOpenCalls(processGone)
	check := time.Now().Add(checkInterval) // the time of the next check for killed processes
	var rest []byte
	buffer := make([]byte, pipeSize)
	for {
		if err := l.file.SetReadDeadline(check); err != nil {
			return err
		}
		if ctx.Err() != nil { // checked after SetReadDeadline, which may have replaced the deadline that AfterFunc set
			return reportAll(calls.removeRunning(time.Now()), report)
		}
		n, err := l.file.Read(buffer)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("read %s: %w", l.path, err)
		}
		var ended []*Call
		ended, rest = calls.addLines(append(rest, buffer[:n]...))
		if time.Now().After(check) {
			ended = append(ended, calls.removeKilled()...)
			check = time.Now().Add(checkInterval)
		}
		if err := reportAll(ended, report); err != nil {
			return err
		}
	}
}

// addLines adds the records in text, one per line, and skips other lines. It returns the calls that these records end,
// and the incomplete last line. It drops the last line if it is longer than any record.
func (o *openCalls) addLines(text []byte) (ended []*Call, rest []byte) {
	for {
		line, more, complete := bytes.Cut(text, []byte("\n"))
		switch {
		case !complete && len(text) > trace.MaxPipeLine:
			return ended, nil
		case !complete:
			return ended, text
		}
		var r trace.Record
		if json.Unmarshal(line, &r) == nil {
			if c := o.add(r); c != nil {
				ended = append(ended, c)
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

func processGone(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }
