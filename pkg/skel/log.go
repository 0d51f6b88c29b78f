package skel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/version"
	"golang.org/x/sys/unix"
)

// openLog sets up the tracer according to CNI_LOG_LEVEL and CNI_LOG_FILE.
func (r *Request) openLog() {
	switch level := r.getenv("CNI_LOG_LEVEL"); strings.ToLower(level) {
	case "":
	case "debug":
		r.Trace.Text = r.env.Stderr
	default:
		r.Warn("CNI_LOG_LEVEL: want debug, got %q", level)
	}
	if f := r.logTo("CNI_LOG_FILE"); f != noLog {
		r.Trace.JSON = f
	}
}

// openTrace sets up the tracer for "plumb trace" and for a distributed trace (W3C Trace Context). It
// warns only about CNI_TRACE_FILE, because a call must not depend on "plumb trace".
func (r *Request) openTrace() {
	f, err := openLogFile(cmp.Or(r.env.Pipe, trace.Pipe), unix.O_NOFOLLOW, unix.S_IFIFO)
	if err != nil && r.env.Pipe == "" {
		if own := hostfile.InRun(trace.Pipe); own != trace.Pipe && own != "" {
			f, err = openLogFile(own, unix.O_NOFOLLOW, unix.S_IFIFO)
		}
	}
	if err == nil {
		r.logs = append(r.logs, f)
		r.Trace.Pipe = f
	}
	parent, valid := trace.ParseTraceParent(r.getenv("TRACEPARENT"))
	if !valid || !parent.Sampled {
		return
	}
	if f := r.logTo("CNI_TRACE_FILE"); f != noLog {
		parent.State = r.getenv("TRACESTATE")
		r.Trace.OTLP, r.Trace.Parent = f, parent
	}
}

// beginTrace logs the start of the call as soon as the network is known. From then on, the span of
// this call is the parent of the delegates' spans.
func (r *Request) beginTrace() {
	r.traced = true
	r.Trace.BeginCall(trace.Call{
		Command: r.Command, Plugin: r.plugin.Name, Version: version.String(), Network: r.Conf.Name,
		ContainerID: r.ContainerID, IfName: r.IfName, PID: os.Getpid(), ParentPID: os.Getppid(),
	})
	if parent := r.Trace.TraceParent(); parent != "" {
		others := slices.DeleteFunc(slices.Clone(r.env.Environ), func(v string) bool { return strings.HasPrefix(v, "TRACEPARENT=") })
		r.env.Environ = append(others, "TRACEPARENT="+parent)
	}
}

// endTrace logs the end of the call, unless it failed before beginTrace, and closes all logs.
func (r *Request) endTrace(err error) {
	defer r.closeLogs()
	if !r.traced && r.Command != cmdVersion {
		r.beginTrace()
	}
	var code uint
	if err != nil {
		code = types.AsError(err).Code
	}
	r.Trace.EndCall(code, err)
}

// logTo opens the file that an environment variable names. It returns noLog if the variable is not
// set, or, after a warning, if it cannot open the file.
func (r *Request) logTo(variable string) logFile {
	path := r.getenv(variable)
	if path == "" {
		return noLog
	}
	f, err := openLogFile(path, unix.O_CREAT, unix.S_IFREG, unix.S_IFCHR, unix.S_IFIFO)
	if err != nil {
		r.Warn("%s: %v", variable, err)
		return noLog
	}
	r.logs = append(r.logs, f)
	return f
}

// A logFile is the descriptor of a log. Write never blocks, and drops what does not fit into a pipe.
type logFile int

const noLog logFile = -1

// openLogFile opens a file of one of the kinds. It fails for a named pipe without a reader.
func openLogFile(path string, flags int, kinds ...uint32) (logFile, error) {
	flags |= unix.O_WRONLY | unix.O_APPEND | unix.O_NONBLOCK | unix.O_CLOEXEC
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
	if err == nil && !slices.Contains(kinds, st.Mode&unix.S_IFMT) {
		err = fmt.Errorf("%s is neither a regular file nor a character device nor a named pipe", path)
	}
	if err != nil {
		_ = unix.Close(fd)
		return noLog, err
	}
	return logFile(fd), nil
}

func (f logFile) Write(b []byte) (int, error) { return unix.Write(int(f), b) }

func (r *Request) closeLogs() {
	for _, f := range r.logs {
		_ = unix.Close(int(f)) // an incomplete log does not fail the call
	}
}
