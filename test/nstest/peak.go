package nstest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// PeakMemory runs a program with this environment and stdin. It returns the program's peak resident memory in KiB, and
// its stdout and stderr. A failure of the program is an error.
//
// ru_maxrss would also cover the time before execve, when the child is a copy of this process (setmax_mm_hiwater_rss in
// the kernel's exec_mmap). Therefore PeakMemory stops the process at its exit, and reads its status.
func PeakMemory(environ []string, stdin []byte, program ...string) (kib int, output []byte, err error) {
	in, inErr := memoryFile(stdin)
	out, outErr := memoryFile(nil)
	if err := errors.Join(inErr, outErr); err != nil {
		return 0, nil, err
	}
	defer in.Close()
	defer out.Close()
	kib, err = tracedPeak(environ, in, out, program)
	_, seekErr := out.Seek(0, io.SeekStart)
	output, readErr := io.ReadAll(out)
	return kib, output, errors.Join(err, seekErr, readErr)
}

// memoryFile returns a file in memory with this content, and its offset at the start.
func memoryFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "memory")
	_, err = f.WriteAt(content, 0)
	return f, err
}

// tracedPeak runs a program with in as its stdin and out as its stdout and stderr.
func tracedPeak(environ []string, in, out *os.File, program []string) (kib int, err error) {
	runtime.LockOSThread() // only the thread that started the process can trace it
	defer runtime.UnlockOSThread()
	pid, err := syscall.ForkExec(program[0], program, &syscall.ProcAttr{
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
		// ESRCH means that another thread has ended the process in the meantime. The next event is its exit.
		if cerr := syscall.PtraceCont(pid, signal); !errors.Is(cerr, syscall.ESRCH) {
			err = errors.Join(err, cerr)
		}
		if err != nil {
			return kib, errors.Join(err, syscall.Kill(pid, syscall.SIGKILL), awaitEnd(pid))
		}
	}
}

// awaitEnd waits until a killed traced process has ended. The process may stop once more before it exits.
func awaitEnd(pid int) error {
	for {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
			return err
		}
		_ = syscall.PtraceCont(pid, 0)
	}
}

// highWater returns the peak resident memory of a process in KiB.
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
