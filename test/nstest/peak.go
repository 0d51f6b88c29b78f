package nstest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// Peak runs a program and gives the most memory that its process had resident, in KiB.
// out gets what it writes on stdout and stderr. The error is that of a program that
// failed, too. The maximum in rusage does not tell: it has in it what the process was
// before its execve, a copy of this one (mm: setmax_mm_hiwater_rss in exec_mmap). So
// the process is stopped at its exit, and its status is read.
func Peak(path string, environ []string, in, out *os.File) (kib int, err error) {
	runtime.LockOSThread() // it is the thread that traces
	defer runtime.UnlockOSThread()
	pid, err := syscall.ForkExec(path, []string{path}, &syscall.ProcAttr{
		Env: environ, Files: []uintptr{in.Fd(), out.Fd(), out.Fd()},
		Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		return 0, err
	}
	const exitKill = 0x100000 // PTRACE_O_EXITKILL
	for first := true; ; first = false {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
			return kib, err
		}
		if !status.Stopped() {
			if status.ExitStatus() != 0 {
				err = fmt.Errorf("exit status %d", status.ExitStatus())
			}
			return kib, err
		}
		signal := 0
		switch {
		case first:
			err = syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACEEXIT|exitKill)
		case status.TrapCause() == syscall.PTRACE_EVENT_EXIT:
			kib, err = highWater(pid)
		case status.StopSignal() != syscall.SIGTRAP:
			signal = int(status.StopSignal())
		}
		// ESRCH: another of its threads has ended the process meanwhile; its exit is next.
		if cerr := syscall.PtraceCont(pid, signal); !errors.Is(cerr, syscall.ESRCH) {
			err = errors.Join(err, cerr)
		}
		if err != nil {
			return kib, errors.Join(err, syscall.Kill(pid, syscall.SIGKILL), awaitEnd(pid))
		}
	}
}

// awaitEnd waits for a traced process that was killed: it may stop once more.
func awaitEnd(pid int) error {
	for {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
			return err
		}
		_ = syscall.PtraceCont(pid, 0)
	}
}

func highWater(pid int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			return strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
		}
	}
	return 0, errors.New("no VmHWM in the status of an exiting process")
}
