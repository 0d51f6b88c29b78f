// Package invoke runs delegates: plugins that a plugin calls for a part of its work
// (SPEC 1.1.0, section 4). A delegate is an executable in CNI_PATH, always, and sees
// the call as its caller did: the same configuration, the same environment (but for
// GOMAXPROCS).
//
// A delegate is killed with its caller (PR_SET_PDEATHSIG): one that outlived it could
// reserve an address after the DEL that follows. What it had done by then belongs to the
// attachment, and that DEL frees it. A delegate that starts programs of its own has to see
// to them itself.
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

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// A Call is a delegate at work. Its start takes longer than its work, so that the two
// are apart: it is launched, and does nothing until it is told what (Tell).
//
// The goroutine that launches it keeps its thread until Wait or Abandon, and has to make
// these calls: the kernel kills the delegate when the thread that forked it ends.
//
// It is started by system calls of its own rather than by os/exec, which first forks a
// child to see whether the kernel has pidfds and then has a goroutine a stream: a tenth
// of the time of a call. Nothing is read from it before Answer and Wait; what it writes
// until then waits in its pipes, or it does.
type Call struct {
	pid      int
	exited   int // pidfd: readable when the delegate has ended; -1: the kernel has none (before 5.3)
	ended    bool
	config   []byte // what it has not been told yet
	stdin    int    // -1: all was told
	stdout   stream
	stderr   stream
	deadline time.Time
	overTime bool      // over its time
	overSize bool      // over its size
	to       io.Writer // where the delegate's stderr goes
	end      func(error) error
}

// A stream is the end of a pipe that the delegate writes to, and what came out of it.
type stream struct {
	fd   int // -1: ended
	data []byte
}

// A runner holds what tests shorten.
type runner struct {
	limit time.Duration // after which a delegate is killed
	pause time.Duration // before the second try to start a busy file; grows with each
}

func standard() runner {
	return runner{
		// The reference's dhcp plugin waits for its daemon, which asks for 208 s.
		limit: 4 * time.Minute,
		pause: 15 * time.Millisecond,
	}
}

// Launch starts a plugin that will serve a verb: it needs the configuration on its stdin
// for that (SPEC 1.1.0, section 2). The caller must Tell and Wait, or Abandon it.
func Launch(r *skel.Request, verb, plugin string) (*Call, error) {
	return standard().start(r, verb, plugin)
}

// Start is Launch and Tell.
func Start(r *skel.Request, verb, plugin string) (*Call, error) {
	c, err := Launch(r, verb, plugin)
	if err == nil {
		c.Tell()
	}
	return c, err
}

func (u runner) start(r *skel.Request, verb, plugin string) (*Call, error) {
	file, err := Find(plugin, r.Path)
	if err != nil {
		return nil, err
	}
	end, err := r.Trace.Start("run " + plugin + " " + verb)
	if err != nil {
		return nil, err
	}
	c := &Call{config: r.Stdin, exited: -1, stdin: -1, stdout: stream{fd: -1}, stderr: stream{fd: -1}, to: r.Stderr(), end: end}
	if err := u.launch(c, file, environ(r, verb)); err != nil {
		c.close()
		return nil, end(err)
	}
	c.deadline = time.Now().Add(u.limit)
	return c, nil
}

// environ is the caller's environment under another verb. Twice in an environment, the
// first one counts for a Go program, the last one for bash. GOMAXPROCS=1, where the
// caller has none, spares a delegate written in Go the threads that its runtime would
// start for goroutines of its own: a tenth of host-local's time.
func environ(r *skel.Request, verb string) []string {
	caller := r.Environ()
	env := make([]string, 0, len(caller)+3)
	procs := false
	for _, v := range caller {
		procs = procs || strings.HasPrefix(v, "GOMAXPROCS=")
		if !strings.HasPrefix(v, "CNI_COMMAND=") && !strings.HasPrefix(v, skel.CalledForIPAM+"=") {
			env = append(env, v)
		}
	}
	if !procs {
		env = append(env, "GOMAXPROCS=1")
	}
	return append(env, skel.CalledForIPAM+"="+r.Plugin(), "CNI_COMMAND="+verb)
}

// launch starts the delegate with a pipe for each of its streams.
func (u runner) launch(c *Call, file string, env []string) error {
	var theirs []uintptr
	defer func() {
		for _, fd := range theirs {
			_ = unix.Close(int(fd))
		}
	}()
	for _, end := range []*int{&c.stdin, &c.stdout.fd, &c.stderr.fd} {
		ours, its, err := pipe()
		if err != nil {
			return err
		}
		if end == &c.stdin {
			ours, its = its, ours
		}
		*end, theirs = ours, append(theirs, uintptr(its))
		if err := unix.SetNonblock(ours, true); err != nil {
			return err
		}
	}
	var err error
	attr := &syscall.ProcAttr{Env: env, Files: theirs, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
	runtime.LockOSThread()
	if c.pid, err = u.fork(file, attr); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	if fd, err := unix.PidfdOpen(c.pid, 0); err == nil { // close-on-exec by nature
		c.exited = fd
	}
	return nil
}

func pipe() (read, write int, err error) {
	fds := [2]int{-1, -1}
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, fmt.Errorf("make pipe: %w", err)
	}
	return fds[0], fds[1], nil
}

// tries is how often a file that somebody is still writing (an update of the
// plugins in place) is tried: about a second in all.
const tries = 12

// fork starts the process. There is no event for "no longer open for writing", so
// this is a wait by sleeping.
func (u runner) fork(file string, attr *syscall.ProcAttr) (pid int, err error) {
	for try := 1; ; try++ {
		pid, err = syscall.ForkExec(file, []string{file}, attr)
		switch {
		case err == nil:
			return pid, nil
		case !errors.Is(err, syscall.ETXTBSY):
			return 0, fmt.Errorf("start %s: %w", file, err)
		case try == tries:
			return 0, types.Errorf(types.CodeTryAgain, "start %s: %w: the file is open for writing", file, err)
		}
		time.Sleep(time.Duration(try) * u.pause)
	}
}

// Tell gives the delegate its configuration, upon which it acts. What does not fit into
// the pipe follows while its answer is awaited. One that closes its stdin need not read
// it: its answer says what came of that.
func (c *Call) Tell() {
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
		_ = unix.Close(c.stdin)
		c.stdin = -1
	}
}

// Abandon ends a delegate that was told nothing, and so has done nothing.
func (c *Call) Abandon() {
	_ = unix.Kill(c.pid, unix.SIGKILL)
	_ = c.end(c.reap())
	c.close()
}

// Answer gives what the delegate has printed as soon as that is a JSON document, or the
// delegate has ended. Whether it is an answer, Wait says.
func (c *Call) Answer() ([]byte, error) {
	err := c.listen(func() bool { return json.Valid(c.stdout.data) })
	return c.stdout.data, err
}

// Wait gives what the delegate printed in all. The error of a delegate that failed is a
// *types.Error with the code, msg and details of its answer. Wait is called once.
func (c *Call) Wait() ([]byte, error) {
	defer c.close()
	err := c.listen(func() bool { return false })
	if err != nil {
		_ = unix.Kill(c.pid, unix.SIGKILL)
	}
	err = errors.Join(err, c.reap())
	if len(c.stderr.data) > 0 {
		_, _ = c.to.Write(c.stderr.data) // that it cannot be written is no reason to fail
	}
	if err = c.end(c.verdict(err)); err != nil {
		return nil, err
	}
	return c.stdout.data, nil
}

// listen reads both streams until it is enough, or the delegate has ended, or, where the
// kernel does not tell that, until nobody holds them open any more. A delegate that is
// over its time is killed.
func (c *Call) listen(enough func() bool) error {
	for !c.ended && !enough() && (c.stdout.fd >= 0 || c.stderr.fd >= 0 || c.exited >= 0) {
		fds := []unix.PollFd{
			{Fd: int32(c.stdout.fd), Events: unix.POLLIN}, // a negative one is passed over
			{Fd: int32(c.stderr.fd), Events: unix.POLLIN},
			{Fd: int32(c.exited), Events: unix.POLLIN},
			{Fd: int32(c.stdin), Events: unix.POLLOUT},
		}
		n, err := unix.Poll(fds, c.patience())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait: %w", err)
		}
		if err == nil && n == 0 && !c.overTime {
			c.overTime = true
			_ = unix.Kill(c.pid, unix.SIGKILL)
		}
		if err := errors.Join(c.stdout.read(), c.stderr.read()); err != nil {
			return err
		}
		if max(len(c.stdout.data), len(c.stderr.data)) > maxOutput {
			c.overSize = true
			return errTooMuch
		}
		if fds[3].Revents != 0 {
			c.Tell()
		}
		c.ended = fds[2].Revents != 0 // whatever it wrote has been read by now
	}
	return nil
}

// maxOutput is what is read of either stream of a delegate, and far more than an answer has.
const maxOutput = 8 << 20

var errTooMuch = errors.New("it printed more than 8 MiB")

// patience is what is left of the time, for poll: in milliseconds, not negative.
func (c *Call) patience() int {
	if c.overTime {
		return -1
	}
	return int(max(0, time.Until(c.deadline)+time.Millisecond-1) / time.Millisecond)
}

// read takes what is there.
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
			s.close()
		}
		s.data = s.data[:len(s.data)+n]
	}
	return nil
}

func (s *stream) close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.fd = -1
	}
}

func (c *Call) close() {
	if c.stdin >= 0 {
		_ = unix.Close(c.stdin)
	}
	c.stdout.close()
	c.stderr.close()
	if c.exited >= 0 {
		_ = unix.Close(c.exited)
	}
}

// reap gives the way the process ended.
func (c *Call) reap() error {
	defer runtime.UnlockOSThread()
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.pid, &status, 0, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("wait: %w", err)
		}
	}
	switch {
	case status.Signaled():
		return ended(status.Signal())
	case status.ExitStatus() != 0:
		return fmt.Errorf("exit status %d", status.ExitStatus())
	}
	return nil
}

// ErrKilled says that a signal ended the delegate, be it the one that its deadline
// brings: what it had begun it could not undo.
var ErrKilled = errors.New("killed")

// ended is the error of a process that this signal ended.
type ended syscall.Signal

func (e ended) Error() string {
	return "it was killed (" + unix.SignalName(syscall.Signal(e)) + ")"
}

func (e ended) Is(target error) bool { return target == ErrKilled }

// verdict makes the error of the way the process ended.
func (c *Call) verdict(err error) error {
	switch {
	case err == nil:
		return nil
	case c.overTime:
		return types.Errorf(types.CodeTryAgain, "no answer in time, %w: %w", ErrKilled, os.ErrDeadlineExceeded)
	case c.overSize:
		return types.Errorf(types.CodeDecode, "%w, and was %w", errTooMuch, ErrKilled)
	}
	if answer := ErrorIn(c.stdout.data); answer != nil {
		return answer
	}
	return types.Errorf(types.CodeInternal, "%w%s", err, c.outcome(err))
}

// outcome describes a delegate that failed without an error result.
func (c *Call) outcome(err error) string {
	printed, said := firstWords(c.stdout.data), lastWords(c.stderr.data)
	text := " without an error result"
	switch {
	case !errors.Is(err, ErrKilled):
	case printed == "":
		text = " before it answered"
	default:
		text = " before it ended well"
	}
	if printed != "" {
		text += fmt.Sprintf("; it printed %q", printed)
	}
	if said != "" {
		text += "; its last words: " + said
	}
	return text
}

// ErrorIn is the error result that an answer is (SPEC 1.1.0, section 5); nil: it is none.
func ErrorIn(answer []byte) *types.Error {
	var e struct {
		Code    uint   `json:"code"`
		Msg     string `json:"msg"`
		Details string `json:"details"`
	}
	if json.Unmarshal(answer, &e) != nil || e.Msg == "" {
		return nil
	}
	if e.Code == 0 {
		e.Code = types.CodeInternal
	}
	return &types.Error{Code: e.Code, Msg: e.Msg, Details: e.Details}
}

// firstWords is the beginning of what was written to stdout.
func firstWords(stdout []byte) string {
	return strings.TrimSpace(strings.ToValidUTF8(string(stdout[:min(len(stdout), headSize)]), ""))
}

const headSize = 200

// lastWords is the end of what was written to stderr.
func lastWords(stderr []byte) string {
	return strings.TrimSpace(strings.ToValidUTF8(string(stderr[max(0, len(stderr)-tailSize):]), ""))
}

const tailSize = 1024

// Run is Start and Wait.
func Run(r *skel.Request, verb, plugin string) ([]byte, error) {
	c, err := Start(r, verb, plugin)
	if err != nil {
		return nil, err
	}
	return c.Wait()
}
