// Package invoke runs delegates, which are plugins that another plugin calls for a part of its work (SPEC 1.1.0,
// section 4). A delegate is an executable in CNI_PATH. It gets the configuration and the environment of its caller,
// except for CNI_COMMAND, skel.CalledForIPAM and GOMAXPROCS.
//
// The kernel kills a delegate when its caller ends (PR_SET_PDEATHSIG). Otherwise a delegate that outlives its caller
// could reserve an address after the next DEL. That DEL releases what the delegate reserved before it was killed. The
// kernel does not kill programs that the delegate started.
//
// RunProgram runs an executable in CNI_PATH that is not a plugin.
package invoke

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// A State is a stage of a Call. A Call never returns to an earlier state.
type State int

// The states of a Call.
const (
	Launched State = iota // the process waits for its configuration, and has done nothing
	Running               // the process has its configuration, and may have printed its result
	Ended                 // the process has ended, and Wait knows whether it succeeded
)

// A Call is one run of a delegate. The process of a delegate takes longer to start than to do its work. Therefore a
// caller can start it early. Launch starts the process, which does nothing until SendConfig has sent it the
// configuration.
//
// Launch locks the calling goroutine to its thread until the call has ended, because the kernel kills the delegate when
// the thread that forked it ends. All methods must be called from that goroutine.
//
// Call does not use os/exec, which first starts another process to find out whether the kernel supports pidfds, and
// runs one goroutine per stream. Both together take a tenth of the time of a call. The output of the delegate stays in
// its pipes until ReadAnswer or Wait reads it.
type Call struct {
	state    State
	err      error // the error of the call in state Ended
	pid      int
	pidfd    int    // readable when the process has exited, or -1 if the kernel does not support pidfds (before 5.3)
	exited   bool   // pidfd was readable
	config   []byte // the part of the configuration that has not been sent
	stdin    int    // the end of the pipe to write to, or -1 if it is closed
	stdout   stream
	stderr   stream
	limit    time.Duration
	deadline time.Time         // limit after the start of the process
	timedOut bool              // the delegate was killed at the deadline
	stderrTo io.Writer         // receives the delegate's stderr
	endStep  func(error) error // ends the step of the tracer (see trace.Tracer.Start)
}

// A stream is stdout or stderr of the delegate.
type stream struct {
	fd   int    // the end of the pipe to read from, or -1 if it is closed
	data []byte // what has been read
}

// timing contains the durations that tests shorten.
type timing struct {
	limit      time.Duration // how long a delegate may run before it is killed
	retryPause time.Duration // pause before the second attempt to start a busy file; the pause before attempt n+1 is n times as long
}

func defaultTiming() timing {
	return timing{
		// The reference's dhcp plugin waits for its daemon for up to 208 s.
		limit:      4 * time.Minute,
		retryPause: 15 * time.Millisecond,
	}
}

// Launch starts the process of a plugin for a verb. The plugin does nothing until it has read the configuration from
// its stdin (SPEC 1.1.0, section 2). The caller must call SendConfig and Wait, or Kill. If CNI_PATH contains no such
// plugin, the error matches fs.ErrNotExist and has types.CodeConfig.
func Launch(r *skel.Request, verb, plugin string) (*Call, error) {
	return defaultTiming().launch(r, verb, plugin)
}

// Start calls Launch and SendConfig. The caller must call Wait.
func Start(r *skel.Request, verb, plugin string) (*Call, error) {
	c, err := Launch(r, verb, plugin)
	if err == nil {
		c.SendConfig()
	}
	return c, err
}

func (t timing) launch(r *skel.Request, verb, plugin string) (*Call, error) {
	file, err := Find(plugin, r.Path)
	if err != nil {
		return nil, err
	}
	endStep, err := r.Trace.Start("run " + plugin + " " + verb)
	if err != nil {
		return nil, err
	}
	c := newCall(r, r.Stdin, t.limit, endStep)
	inHost := func(f func() error) error { return f() }
	if r.HostNS != nil {
		inHost = r.HostNS.Do // an earlier Do that could not return left this thread in another namespace
	}
	if err := inHost(func() error { return t.startProcess(c, file, pluginEnviron(r, verb)) }); err != nil {
		c.end(err)
		return nil, c.err
	}
	return c, nil
}

func newCall(r *skel.Request, config []byte, limit time.Duration, endStep func(error) error) *Call {
	closed := stream{fd: -1}
	return &Call{config: config, limit: limit, pidfd: -1, stdin: -1, stdout: closed, stderr: closed, stderrTo: r.Stderr(), endStep: endStep}
}

// pluginEnviron returns the caller's environment with another CNI_COMMAND.
func pluginEnviron(r *skel.Request, verb string) []string {
	env := environ(r, func(name string) bool { return name != "CNI_COMMAND" && name != skel.CalledForIPAM })
	return append(env, skel.CalledForIPAM+"="+r.Plugin(), "CNI_COMMAND="+verb)
}

// environ returns the variables of the caller's environment whose names keep accepts. A variable that is set again must
// be removed first, because a Go program uses the first of two settings, and bash the last one. If the caller's
// environment lacks GOMAXPROCS, environ adds GOMAXPROCS=1. With it, a Go program starts fewer threads, which saves a
// tenth of the time of host-local.
func environ(r *skel.Request, keep func(name string) bool) []string {
	env := slices.DeleteFunc(slices.Clone(r.Environ()), func(setting string) bool {
		name, _, _ := strings.Cut(setting, "=")
		return !keep(name)
	})
	if !slices.ContainsFunc(env, func(setting string) bool { return strings.HasPrefix(setting, "GOMAXPROCS=") }) {
		env = append(env, "GOMAXPROCS=1")
	}
	return env
}

// startProcess starts the process with a pipe for each of its standard streams.
func (t timing) startProcess(c *Call, file string, env []string) error {
	var childFiles []uintptr
	defer func() {
		for _, fd := range childFiles {
			_ = unix.Close(int(fd))
		}
	}()
	for _, end := range []*int{&c.stdin, &c.stdout.fd, &c.stderr.fd} {
		ours, child, err := pipe()
		if err != nil {
			return err
		}
		if end == &c.stdin {
			ours, child = child, ours
		}
		*end, childFiles = ours, append(childFiles, uintptr(child))
		if err := unix.SetNonblock(ours, true); err != nil {
			return err
		}
	}
	var err error
	attr := &syscall.ProcAttr{Env: env, Files: childFiles, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, skel.TimerSlack, 0, 0, 0) // which the process inherits
	if c.pid, err = t.fork(file, attr); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	c.deadline = time.Now().Add(c.limit)
	if fd, err := unix.PidfdOpen(c.pid, 0); err == nil { // a pidfd is always close-on-exec
		c.pidfd = fd
	}
	return nil
}

// pipe creates a pipe with close-on-exec ends.
func pipe() (read, write int, err error) {
	fds := [2]int{-1, -1}
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, fmt.Errorf("create pipe: %w", err)
	}
	return fds[0], fds[1], nil
}

// maxAttempts is how often fork tries to start a file that another process is writing because the plugins are being
// updated in place. All attempts together take about a second.
const maxAttempts = 12

// fork starts the process. It sleeps between attempts, because the kernel does not report when a file is no longer open
// for writing.
func (t timing) fork(file string, attr *syscall.ProcAttr) (pid int, err error) {
	for attempt := 1; ; attempt++ {
		pid, err = syscall.ForkExec(file, []string{file}, attr)
		switch {
		case err == nil:
			return pid, nil
		case !errors.Is(err, syscall.ETXTBSY):
			return 0, fmt.Errorf("start %s: %w", file, err)
		case attempt == maxAttempts:
			return 0, types.Errorf(types.CodeTryAgain, "start %s: %w: the file is open for writing", file, err)
		}
		time.Sleep(time.Duration(attempt) * t.retryPause)
	}
}

// State returns the state of the call.
func (c *Call) State() State { return c.state }

// SendConfig sends the configuration to the delegate, which then does its work. SendConfig does not block, because
// ReadAnswer and Wait send the part that does not fit into the pipe. A delegate may close its stdin without reading it,
// which is not an error.
func (c *Call) SendConfig() {
	c.state = max(c.state, Running)
	for c.stdin >= 0 {
		n, err := unix.Write(c.stdin, c.config)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n > 0 && n < len(c.config):
			c.config = c.config[n:]
			continue
		}
		closeFD(&c.stdin)
	}
}

// Kill ends a delegate in the state Launched, which has no configuration and has done nothing. In the other states,
// Kill does nothing.
func (c *Call) Kill() {
	if c.state == Launched {
		_ = unix.Kill(c.pid, unix.SIGKILL)
		c.end(c.reap())
	}
}

// ReadAnswer returns the delegate's stdout as soon as it is a JSON document or the delegate has ended. Wait tells
// whether the delegate succeeded.
func (c *Call) ReadAnswer() ([]byte, error) {
	err := c.readUntil(func() bool { return json.Valid(c.stdout.data) })
	return c.stdout.data, err
}

// Wait waits until the delegate has ended, and returns its stdout. If the delegate failed, the error is a *types.Error
// with the code, msg and details of the delegate's error result. Later calls return the same values.
func (c *Call) Wait() ([]byte, error) {
	if c.state != Ended {
		c.end(c.failure(c.waitForEnd()))
	}
	if c.err != nil {
		return nil, c.err
	}
	return c.stdout.data, nil
}

// waitForEnd waits until the process has ended, and copies its stderr.
func (c *Call) waitForEnd() error {
	err := c.readUntil(func() bool { return false })
	if err != nil {
		_ = unix.Kill(c.pid, unix.SIGKILL)
	}
	err = errors.Join(err, c.reap())
	if len(c.stderr.data) > 0 {
		_, _ = c.stderrTo.Write(c.stderr.data) // a failed write does not fail the call
	}
	return err
}

// end records that the process has ended, and that err is the error of the call.
func (c *Call) end(err error) {
	c.state, c.err = Ended, c.endStep(err)
	c.close()
}

// readUntil reads both streams until done returns true or the process has exited. If the kernel does not support
// pidfds, it reads until every process has closed the streams. It kills the delegate at the deadline.
func (c *Call) readUntil(done func() bool) error {
	for !c.exited && !done() && (c.stdout.fd >= 0 || c.stderr.fd >= 0 || c.pidfd >= 0) {
		fds := []unix.PollFd{
			{Fd: int32(c.stdout.fd), Events: unix.POLLIN}, // poll ignores a negative descriptor
			{Fd: int32(c.stderr.fd), Events: unix.POLLIN},
			{Fd: int32(c.pidfd), Events: unix.POLLIN},
			{Fd: int32(c.stdin), Events: unix.POLLOUT},
		}
		n, err := unix.Poll(fds, c.pollTimeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait: %w", err)
		}
		if err == nil && n == 0 && !c.timedOut {
			c.timedOut = true
			_ = unix.Kill(c.pid, unix.SIGKILL)
		}
		if err := errors.Join(c.stdout.read(), c.stderr.read()); err != nil {
			return err
		}
		if max(len(c.stdout.data), len(c.stderr.data)) > maxOutput {
			return errTooMuch
		}
		if fds[3].Revents != 0 {
			c.SendConfig()
		}
		c.exited = fds[2].Revents != 0 // all that the delegate wrote has been read above
	}
	return nil
}

// maxOutput limits how many bytes are read from each stream of a delegate. Results are far smaller.
const maxOutput = 8 << 20

var errTooMuch = errors.New("it printed more than 8 MiB")

// pollTimeout returns the time until the deadline in milliseconds for poll(2), or -1 for no limit.
func (c *Call) pollTimeout() int {
	if c.timedOut {
		return -1
	}
	return int(max(0, time.Until(c.deadline)+time.Millisecond-1) / time.Millisecond)
}

// read reads the content of the pipe, and does not wait for more.
func (s *stream) read() error {
	for s.fd >= 0 && len(s.data) <= maxOutput {
		s.data = slices.Grow(s.data, 4096)
		n, err := unix.Read(s.fd, s.data[len(s.data):cap(s.data)])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("read answer: %w", err)
		case n == 0:
			closeFD(&s.fd)
		}
		s.data = s.data[:len(s.data)+n]
	}
	return nil
}

func (c *Call) close() {
	for _, fd := range []*int{&c.stdin, &c.stdout.fd, &c.stderr.fd, &c.pidfd} {
		closeFD(fd)
	}
}

// closeFD closes *fd if it is open, and sets it to -1.
func closeFD(fd *int) {
	if *fd >= 0 {
		_ = unix.Close(*fd)
		*fd = -1
	}
}

// reap waits for the process and returns an error if it did not exit with status 0.
func (c *Call) reap() error {
	defer runtime.UnlockOSThread()
	var status syscall.WaitStatus
	err := types.RetryEINTR(func() error {
		_, err := syscall.Wait4(c.pid, &status, 0, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	switch {
	case status.Signaled():
		return signalError(status.Signal())
	case status.ExitStatus() != 0:
		return fmt.Errorf("exit status %d", status.ExitStatus())
	}
	return nil
}

// ErrKilled is the error for a delegate that was ended by a signal, for example because it exceeded its time limit.
// Such a delegate could not undo its changes.
var ErrKilled = errors.New("killed")

// A signalError is the number of the signal that ended a process. It is an error that matches ErrKilled.
type signalError syscall.Signal

func (e signalError) Error() string {
	return "it was killed (" + unix.SignalName(syscall.Signal(e)) + ")"
}

func (e signalError) Is(target error) bool { return target == ErrKilled }

// failure returns the error of the call. err says how the process ended.
func (c *Call) failure(err error) error {
	if err == nil {
		return nil
	}
	if stopped := c.stopError(err); stopped != nil {
		return stopped
	}
	if result := ParseError(c.stdout.data); result != nil {
		return result
	}
	return c.failureWithoutResult(err)
}

// stopError says why readUntil killed the process. It returns nil if readUntil did not. err says how the process ended.
func (c *Call) stopError(err error) error {
	switch {
	case err != nil && c.timedOut:
		return types.Errorf(types.CodeTryAgain, "no answer within %v, %w: %w", c.limit, ErrKilled, os.ErrDeadlineExceeded)
	case errors.Is(err, errTooMuch):
		return types.Errorf(types.CodeDecode, "%w, and was %w", errTooMuch, ErrKilled)
	}
	return nil
}

// failureWithoutResult returns the error of a delegate that failed without an error result. The code is
// types.CodeInternal, because none of the codes that SPEC 1.1.0 reserves (0 to 99) has that meaning.
func (c *Call) failureWithoutResult(err error) error {
	stdout := printable(c.stdout.data[:min(len(c.stdout.data), maxShownStdout)])
	stderr := printable(c.stderr.data[max(0, len(c.stderr.data)-maxShownStderr):])
	msg := "it failed without an error result: %w"
	switch {
	case !errors.Is(err, ErrKilled):
	case stdout == "":
		msg = "%w before it answered"
	default:
		msg = "%w before it exited"
	}
	failure := types.Errorf(types.CodeInternal, msg, err)
	var details []string
	if stdout != "" {
		details = append(details, fmt.Sprintf("it printed %q", stdout))
	}
	if stderr != "" {
		details = append(details, "its stderr ends with: "+stderr)
	}
	failure.Details = strings.Join(details, "; ")
	return failure
}

// ParseError returns the error result (SPEC 1.1.0, section 5) that a delegate printed, or nil if the output is not an
// error result. It ignores a key "problems" of another type, which a plugin of another project may print.
func ParseError(output []byte) *types.Error {
	e := new(types.Error)
	err := json.Unmarshal(output, e)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && strings.HasPrefix(wrong.Field, "problems") {
		e.Problems, err = nil, nil
	}
	if err != nil || e.Msg == "" {
		return nil
	}
	if e.Code == 0 {
		e.Code = types.CodeInternal
	}
	return e
}

// The largest numbers of output bytes that an error quotes.
const (
	maxShownStdout = 200
	maxShownStderr = 1024
)

// printable returns output without invalid characters, and without white space at both ends.
func printable(output []byte) string {
	return strings.TrimSpace(strings.ToValidUTF8(string(output), ""))
}

// Run calls Start and Wait.
func Run(r *skel.Request, verb, plugin string) ([]byte, error) {
	c, err := Start(r, verb, plugin)
	if err != nil {
		return nil, err
	}
	return c.Wait()
}
