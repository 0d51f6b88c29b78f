// Package inject strikes programs at chosen system calls, from outside: a program runs
// with all its children under a seccomp filter whose decisions are this process's
// (SECCOMP_RET_USER_NOTIF, seccomp_unotify(2)). A call is let through, refused with an
// errno, or its process is killed before the call is carried out. It is faster than a
// tracer, for only the calls that are listed stop, and one count serves a process,
// whichever of its threads calls.
//
// The program is started by a copy of the test binary, which installs the filter and
// then becomes the program. So the binary's TestMain has to begin with Launch.
package inject

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Verdict is what becomes of a call.
type Verdict struct {
	errno unix.Errno
	kill  bool
}

// Pass lets the call through.
func Pass() Verdict { return Verdict{} }

// Refuse answers the call with an error; it is not carried out.
func Refuse(errno unix.Errno) Verdict { return Verdict{errno: errno} }

// Kill ends the process of the call by SIGKILL; the call is not carried out.
func Kill() Verdict { return Verdict{kill: true} }

// Cause is how programs say what the call was refused with; empty: it was not.
func (v Verdict) Cause() string {
	if v.errno == 0 {
		return ""
	}
	return v.errno.Error()
}

func (v Verdict) String() string {
	if v.kill {
		return "killed"
	}
	return v.Cause()
}

// A Session says at which calls programs stop, and what then.
type Session struct {
	Calls []Syscall
	// Decide is asked for one call after the other, whichever process calls.
	Decide func(*Call) Verdict
	Start  func(*exec.Cmd) error // starts the program; nil: as it is
}

// A Tree is a program and all that it started, be it its children or not any more.
type Tree struct {
	session  Session
	listener int
	calls    map[int]Syscall  // by number
	threads  map[int]*process // by thread ID
	families map[int]*process // by process ID
	done     chan struct{}
	err      error // set before done is closed
}

// A process is one of the tree, from its fork on.
type process struct {
	pid     int
	pidfd   int
	ordinal int
	program string // base name of the executable; of a fork, its parent's until it has its own
	calls   int    // seen so far
}

// Run starts cmd, which must have no ExtraFiles. The caller waits for cmd, and then for
// the tree.
func (s Session) Run(cmd *exec.Cmd) (*Tree, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	err = s.launch(cmd, w)
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	listener, err := takeListener(cmd.Process.Pid, r)
	if err != nil {
		_ = cmd.Process.Kill()
		return nil, errors.Join(err, cmd.Wait())
	}
	t := &Tree{
		session: s, listener: listener, calls: map[int]Syscall{},
		threads: map[int]*process{}, families: map[int]*process{}, done: make(chan struct{}),
	}
	for _, c := range s.Calls {
		t.calls[c.number] = c
	}
	go t.supervise()
	return t, nil
}

// launch starts the copy of this program that becomes cmd. Its end of the pipe, w, says
// what went wrong, and ends when the filter stands.
func (s Session) launch(cmd *exec.Cmd, w *os.File) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd.Args = append([]string{launcher, cmd.Path, s.numbers()}, cmd.Args...)
	cmd.Path = self
	cmd.ExtraFiles = []*os.File{w}
	if s.Start != nil {
		return s.Start(cmd)
	}
	return cmd.Start()
}

// takeListener copies the descriptor of the filter out of the launcher.
func takeListener(pid int, r io.Reader) (int, error) {
	text, err := io.ReadAll(r)
	if err == nil && len(text) > 0 {
		err = errors.New(string(text))
	}
	if err != nil {
		return -1, fmt.Errorf("install filter: %w", err)
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("open launcher: %w", err)
	}
	fd, err := unix.PidfdGetfd(pidfd, listenerFD, 0)
	if err != nil {
		err = fmt.Errorf("copy listener: %w", err)
	}
	return fd, errors.Join(err, unix.Close(pidfd))
}

// Wait returns when every process of the tree has ended.
func (t *Tree) Wait(limit time.Duration) error {
	select {
	case <-t.done:
		return t.err
	case <-time.After(limit):
		return fmt.Errorf("wait for the end of all processes: %w", os.ErrDeadlineExceeded)
	}
}

// supervise answers for as long as a process runs under the filter.
func (t *Tree) supervise() {
	defer close(t.done)
	for t.err == nil {
		poll := []unix.PollFd{{Fd: int32(t.listener), Events: unix.POLLIN}}
		_, err := unix.Poll(poll, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			t.err = err
		case poll[0].Revents&unix.POLLIN != 0:
			t.err = t.serve()
		default: // POLLHUP: nobody is left
			t.err = t.close()
			return
		}
	}
	_ = t.close()
}

func (t *Tree) close() error {
	errs := []error{unix.Close(t.listener)}
	for _, p := range t.families {
		errs = append(errs, unix.Close(p.pidfd))
	}
	return errors.Join(errs...)
}

// serve answers one call.
func (t *Tree) serve() error {
	n, err := receive(t.listener)
	if err != nil {
		return ignoreGone(err)
	}
	p, err := t.process(int(n.tid))
	if err != nil {
		return ignoreGone(err)
	}
	c := &Call{Name: t.calls[int(n.number)].Name, Process: p.ordinal, Program: p.program, args: n.args, process: p}
	isExec := int(n.number) == unix.SYS_EXECVE
	if isExec {
		p.program = c.base()
	}
	if isLaunch := p.ordinal == 0 && p.calls == 0 && isExec && c.Program == ""; isLaunch || !t.calls[int(n.number)].counts(c) {
		return ignoreGone(n.answer(t.listener, Pass()))
	}
	p.calls++
	c.N = p.calls
	v := t.session.Decide(c)
	if v.kill {
		return ignoreGone(unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0))
	}
	return ignoreGone(n.answer(t.listener, v))
}

// process finds the process of a thread.
func (t *Tree) process(tid int) (*process, error) {
	if p := t.threads[tid]; p != nil {
		return p, nil
	}
	pid, parent, err := family(tid)
	if err != nil {
		return nil, err
	}
	p := t.families[pid]
	if p == nil {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return nil, err
		}
		p = &process{pid: pid, pidfd: pidfd, ordinal: len(t.families)}
		if above := t.families[parent]; above != nil {
			p.program = above.program
		}
		t.families[pid] = p
	}
	t.threads[tid] = p
	return p, nil
}

// family reads a thread's process and the process's parent.
func family(tid int) (pid, parent int, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "Tgid: %d", &pid)
		_, _ = fmt.Sscanf(line, "PPid: %d", &parent)
	}
	return pid, parent, nil
}

// ignoreGone: whoever called has ended meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
