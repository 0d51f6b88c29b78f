package inject

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	launcher   = "plumb-inject" // argv[0] of a launcher process
	reportFD   = 3
	listenerFD = 100
)

// Launch executes the program if Session.Run started this process. Otherwise, it does nothing.
func Launch() {
	if len(os.Args) < 4 || os.Args[0] != launcher {
		return
	}
	err := launch(os.Args[1], os.Args[2], os.Args[3:])
	_, _ = unix.Write(reportFD, []byte(err.Error()))
	os.Exit(127)
}

// launch installs the filter for this thread, and executes the program. Between these two steps, it must
// not run a call that stops, because no process answers yet.
func launch(path, numbers string, args []string) error {
	var calls []uint32
	for _, text := range strings.Split(numbers, ",") {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return err
		}
		calls = append(calls, uint32(n))
	}
	env := os.Environ()
	runtime.LockOSThread()
	fd, err := install(filter(calls))
	if err != nil {
		return err
	}
	if err := unix.Dup3(fd, listenerFD, unix.O_CLOEXEC); err != nil {
		return err
	}
	if err := unix.Close(reportFD); err != nil {
		return err
	}
	return syscall.Exec(path, args, env)
}

// numbers returns the numbers of the calls that stop. They include execve, where the launcher must stop
// until this process has copied the filter's file descriptor.
func (s Session) numbers() string {
	all := []string{strconv.Itoa(unix.SYS_EXECVE)}
	for _, c := range s.Calls {
		all = append(all, strconv.Itoa(c.number))
	}
	return strings.Join(all, ",")
}

// filter returns a filter program that stops at the calls (Documentation/userspace-api/seccomp_filter.rst).
func filter(calls []uint32) []unix.SockFilter {
	prog := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // seccomp_data.nr
	for i, n := range calls {
		prog = append(prog, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(len(calls) - i), K: n})
	}
	return append(prog,
		unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_USER_NOTIF},
	)
}

// install installs the filter and returns the file descriptor for its notifications. Go's runtime
// interrupts threads with signals. Without WAIT_KILLABLE_RECV (kernel 5.19), each signal would restart a
// call that waits for a decision.
func install(prog []unix.SockFilter) (int, error) {
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return -1, fmt.Errorf("seccomp: %w", errno)
	}
	return int(fd), nil
}

// notification is struct seccomp_notif.
type notification struct {
	id     uint64
	tid    uint32
	_      uint32 // flags
	number int32
	_      uint32 // architecture
	_      uint64 // instruction pointer
	args   [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	_     int64 // value
	errno int32 // negative
	flags uint32
}

func receive(listener int) (notification, error) {
	var n notification
	return n, ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
}

func (n notification) answer(listener int, v Verdict) error {
	r := response{id: n.id, errno: -int32(v.errno)}
	if v.errno == 0 {
		r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	}
	return ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
}

// ioctl repeats an ioctl that a signal interrupts.
func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}
