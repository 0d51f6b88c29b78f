// Package inject injects faults into a program at chosen system calls. The program and its children
// run with a seccomp filter that asks this process about a call (SECCOMP_RET_USER_NOTIF,
// seccomp_unotify(2)). This process lets the call pass, refuses it with an errno, or kills the
// caller before the kernel runs the call. This is faster than ptrace, because only the listed calls
// stop. Another advantage is that the calls of all threads of a process are numbered together.
//
// A copy of the test binary installs the filter and then executes the program. Therefore the
// TestMain of the test binary must first call Launch.
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

// A Verdict decides about a call.
type Verdict struct {
	errno unix.Errno
	kill  bool
}

// Pass lets the kernel run the call.
func Pass() Verdict { return Verdict{} }

// Refuse returns an error from the call, which the kernel does not run.
func Refuse(errno unix.Errno) Verdict { return Verdict{errno: errno} }

// Kill kills the process with SIGKILL before the kernel runs the call.
func Kill() Verdict { return Verdict{kill: true} }

// Cause returns the text of Refuse's errno, or "" for other verdicts.
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

// A Session says at which system calls a program stops, and decides about each of them.
type Session struct {
	Calls []Syscall
	// Decide is called for one system call at a time, for all processes.
	Decide func(*Call) Verdict
	Start  func(*exec.Cmd) error // starts the program; nil for (*exec.Cmd).Start
}

// A ProcessTree is a program and all its descendants, including orphans.
type ProcessTree struct {
	session   Session
	listener  int
	calls     map[int]Syscall  // the calls that stop, by number
	threads   map[int]*process // by thread ID
	processes map[int]*process // by process ID
	done      chan struct{}
	err       error // set before done is closed
}

// A process is one process of a ProcessTree.
type process struct {
	pid       int
	pidfd     int
	number    int
	program   string // the base name of the executable or, until the first execve, of the parent's
	callsSeen int    // the number of calls that have stopped so far
}

// Run starts cmd. cmd.ExtraFiles must be empty. The caller must wait for cmd, and then for the
// ProcessTree.
func (s Session) Run(cmd *exec.Cmd) (*ProcessTree, error) {
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
	t := &ProcessTree{
		session: s, listener: listener, calls: map[int]Syscall{},
		threads: map[int]*process{}, processes: map[int]*process{}, done: make(chan struct{}),
	}
	for _, c := range s.Calls {
		t.calls[c.number] = c
	}
	go t.serveAll()
	return t, nil
}

// launch starts a copy of this program, which executes cmd. The copy writes an error to the pipe
// w, or closes it after it has installed the filter.
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

// takeListener copies the filter's file descriptor from the launcher.
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

// Wait waits until every process of the tree has ended. After limit, it returns
// os.ErrDeadlineExceeded.
func (t *ProcessTree) Wait(limit time.Duration) error {
	select {
	case <-t.done:
		return t.err
	case <-time.After(limit):
		return fmt.Errorf("wait for the end of all processes: %w", os.ErrDeadlineExceeded)
	}
}

// serveAll answers calls until no process runs with the filter.
func (t *ProcessTree) serveAll() {
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
		default: // POLLHUP: all processes have ended
			t.err = t.close()
			return
		}
	}
	_ = t.close()
}

func (t *ProcessTree) close() error {
	errs := []error{unix.Close(t.listener)}
	for _, p := range t.processes {
		errs = append(errs, unix.Close(p.pidfd))
	}
	return errors.Join(errs...)
}

func (t *ProcessTree) serve() error {
	n, err := receive(t.listener)
	if err != nil {
		return ignoreEnded(err)
	}
	p, err := t.process(int(n.tid))
	if err != nil {
		return ignoreEnded(err)
	}
	c := &Call{Name: t.calls[int(n.number)].Name, Process: p.number, Program: p.program, args: n.args, process: p}
	isExec := int(n.number) == unix.SYS_EXECVE
	if isExec {
		p.program = c.executable()
	}
	if isLaunch := p.number == 0 && p.callsSeen == 0 && isExec && c.Program == ""; isLaunch || !t.calls[int(n.number)].matches(c) {
		return ignoreEnded(n.answer(t.listener, Pass()))
	}
	p.callsSeen++
	c.N = p.callsSeen
	v := t.session.Decide(c)
	if v.kill {
		return ignoreEnded(unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0))
	}
	return ignoreEnded(n.answer(t.listener, v))
}

func (t *ProcessTree) process(tid int) (*process, error) {
	if p := t.threads[tid]; p != nil {
		return p, nil
	}
	pid, parent, err := processAndParent(tid)
	if err != nil {
		return nil, err
	}
	p := t.processes[pid]
	if p == nil {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return nil, err
		}
		p = &process{pid: pid, pidfd: pidfd, number: len(t.processes)}
		if above := t.processes[parent]; above != nil {
			p.program = above.program
		}
		t.processes[pid] = p
	}
	t.threads[tid] = p
	return p, nil
}

// processAndParent returns the IDs of a thread's process and of the parent process.
func processAndParent(tid int) (pid, parent int, err error) {
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

// ignoreEnded ignores the errors that mean that the process has ended.
func ignoreEnded(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
