package skel

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// openLog sets up the tracer as CNI_LOG_LEVEL and CNI_LOG_FILE say.
func (r *Request) openLog() {
	switch level := r.getenv("CNI_LOG_LEVEL"); strings.ToLower(level) {
	case "":
	case "debug":
		r.Trace.Text = r.env.Stderr
	default:
		r.Warn("CNI_LOG_LEVEL: unknown level %q: the only one is debug", level)
	}
	path := r.getenv("CNI_LOG_FILE")
	if path == "" {
		return
	}
	f, err := openLogFile(path)
	if err != nil {
		r.Warn("CNI_LOG_FILE: %v", err)
		return
	}
	r.Trace.JSON, r.logFile = f, f
}

// A logFile is the descriptor of CNI_LOG_FILE. Write never waits: what does not fit into a
// pipe is lost.
type logFile int

const noLog logFile = -1

// openLogFile opens a regular file, a character device, or a named pipe that a process reads.
func openLogFile(path string) (logFile, error) {
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT | unix.O_NONBLOCK | unix.O_CLOEXEC
	var fd int
	err := types.RetryEINTR(func() (err error) {
		fd, err = unix.Open(path, flags, 0o600)
		return err
	})
	if err != nil {
		err = &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if errors.Is(err, unix.ENXIO) {
		return noLog, fmt.Errorf("%w: a socket, or a named pipe that no process reads", err)
	}
	if err != nil {
		return noLog, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if kind := st.Mode & unix.S_IFMT; err == nil && kind != unix.S_IFREG && kind != unix.S_IFCHR && kind != unix.S_IFIFO {
		err = fmt.Errorf("%s is neither a regular file nor a character device nor a named pipe", path)
	}
	if err != nil {
		_ = unix.Close(fd)
		return noLog, err
	}
	return logFile(fd), nil
}

func (f logFile) Write(b []byte) (int, error) { return unix.Write(int(f), b) }

func (f logFile) close() error {
	if f == noLog {
		return nil
	}
	return unix.Close(int(f))
}
