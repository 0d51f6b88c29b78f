package inject

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Syscall is a system call at which a program stops.
type Syscall struct {
	Name   string
	number int
	only   func(*Call) bool // a further condition, or nil
}

// matches reports whether the program stops at this call.
func (s Syscall) matches(c *Call) bool { return s.Name != "" && (s.only == nil || s.only(c)) }

// Mutating returns the calls with which a program changes something outside of its process,
// including those that start a process.
func Mutating() []Syscall {
	return slices.Concat(sendCalls(nil), fileCalls(), []Syscall{
		{"setsockopt", unix.SYS_SETSOCKOPT, (*Call).replacesTable},
		{"ioctl", unix.SYS_IOCTL, (*Call).isTun},
		{"mount", unix.SYS_MOUNT, nil},
		{"umount2", unix.SYS_UMOUNT2, nil},
		{"clone", unix.SYS_CLONE, (*Call).isFork},
		{"clone3", unix.SYS_CLONE3, nil},
		{"execve", unix.SYS_EXECVE, nil},
	}, legacyCalls())
}

// NetlinkRequests returns the calls that send requests to the kernel. They write to netlink sockets,
// replace a table of legacy iptables, or create a tap.
func NetlinkRequests() []Syscall {
	return append(sendCalls((*Call).isNetlink),
		Syscall{"setsockopt", unix.SYS_SETSOCKOPT, (*Call).replacesTable}, Syscall{"ioctl", unix.SYS_IOCTL, (*Call).isTun})
}

// NetlinkReplies returns the calls that read the kernel's replies. If such a call is refused, the
// kernel has already executed the request.
func NetlinkReplies() []Syscall {
	return []Syscall{{"recvfrom", unix.SYS_RECVFROM, (*Call).isNetlink}, {"recvmsg", unix.SYS_RECVMSG, (*Call).isNetlink}}
}

// ProcWrites returns the calls that write to files in /proc.
func ProcWrites() []Syscall {
	return []Syscall{{"write", unix.SYS_WRITE, (*Call).isProcFile}}
}

// TCPCalls returns the calls with which a program connects, sends and receives over TCP. When a receive
// call is refused, the peer has already received the request.
func TCPCalls() []Syscall {
	return []Syscall{{"connect", unix.SYS_CONNECT, (*Call).isTCP}, {"write", unix.SYS_WRITE, (*Call).isTCP}, {"read", unix.SYS_READ, (*Call).isTCP}}
}

// FileChanges returns the calls that change regular files or directories.
func FileChanges() []Syscall {
	all := fileCalls()
	for i, s := range all {
		if strings.Contains(s.Name, "write") {
			all[i].only = (*Call).isRegular
		}
	}
	return append(all, legacyFileCalls()...)
}

// sendCalls returns the calls that send a message and for which only returns true.
func sendCalls(only func(*Call) bool) []Syscall {
	return []Syscall{{"sendto", unix.SYS_SENDTO, only}, {"sendmsg", unix.SYS_SENDMSG, only}, {"sendmmsg", unix.SYS_SENDMMSG, only}}
}

// fileCalls returns the calls that change a file of any type.
func fileCalls() []Syscall {
	return []Syscall{
		{"write", unix.SYS_WRITE, (*Call).isExternal},
		{"writev", unix.SYS_WRITEV, (*Call).isExternal},
		{"pwrite64", unix.SYS_PWRITE64, (*Call).isExternal},
		{"openat", unix.SYS_OPENAT, func(c *Call) bool { return c.creates(c.args[2]) }},
		{"renameat2", unix.SYS_RENAMEAT2, nil},
		{"linkat", unix.SYS_LINKAT, nil},
		{"symlinkat", unix.SYS_SYMLINKAT, nil},
		{"unlinkat", unix.SYS_UNLINKAT, nil},
		{"mkdirat", unix.SYS_MKDIRAT, nil},
		{"ftruncate", unix.SYS_FTRUNCATE, nil},
		{"fchmod", unix.SYS_FCHMOD, nil},
		{"utimensat", unix.SYS_UTIMENSAT, nil},
		{"fsync", unix.SYS_FSYNC, nil},
		{"fdatasync", unix.SYS_FDATASYNC, nil},
	}
}

// A Call is a system call that stopped. Its arguments can be read until Decide returns.
type Call struct {
	Name    string
	Process int    // the number of the process, in the order of the processes' first calls; 0 for the program itself
	Program string // the base name of the executable
	N       int    // the number of the call in its process, from 1

	args    [6]uint64
	process *process
}

func (c *Call) String() string {
	return fmt.Sprintf("%s, call %d: %s %s", c.Program, c.N, c.Name, c.object())
}

// object returns the path, socket or file that the call uses.
func (c *Call) object() string {
	switch c.Name {
	case "clone", "clone3", "fork", "vfork":
		return ""
	case "execve", "open", "creat", "mkdir", "rmdir", "unlink", "rename", "link", "mount":
		return c.cString(c.args[0])
	case "openat", "mkdirat", "unlinkat", "renameat", "renameat2", "linkat", "utimensat":
		return c.cString(c.args[1])
	case "sendto":
		return c.target() + c.messageType(c.args[1])
	case "sendmsg":
		return c.target() + c.messageType(c.firstBuffer(c.args[1]))
	}
	return c.target()
}

// target returns the socket or file of the descriptor in the first argument.
func (c *Call) target() string {
	if domain, protocol, ok := c.socket(); ok {
		return fmt.Sprintf("socket of family %d, protocol %d", domain, protocol)
	}
	return c.file()
}

// isFork reports whether the call creates a process and not a thread.
func (c *Call) isFork() bool { return c.args[0]&unix.CLONE_THREAD == 0 }

// creates reports whether flags of open(2) create or truncate the file.
func (c *Call) creates(flags uint64) bool { return flags&(unix.O_CREAT|unix.O_TRUNC) != 0 }

// isExternal reports whether the file is not an eventfd or epoll descriptor of Go's runtime.
func (c *Call) isExternal() bool { return !strings.HasPrefix(c.file(), "anon_inode:") }

// isRegular reports whether the file is in a file system, and not a pipe, a memfd or a file in /proc.
func (c *Call) isRegular() bool {
	name := c.file()
	return strings.HasPrefix(name, "/") && !c.isProcFile() && !strings.HasPrefix(name, "/memfd:")
}

func (c *Call) isProcFile() bool { return strings.HasPrefix(c.file(), "/proc/") }

// replacesTable reports whether legacy iptables replaces a table with this socket option.
func (c *Call) replacesTable() bool {
	const replace = 64 // IPT_SO_SET_REPLACE, IP6T_SO_SET_REPLACE
	level := int(c.args[1])
	return (level == unix.SOL_IP || level == unix.SOL_IPV6) && c.args[2] == replace
}

// isTun reports whether the descriptor is the device file that creates taps.
func (c *Call) isTun() bool { return c.file() == "/dev/net/tun" }

func (c *Call) isNetlink() bool {
	domain, _, ok := c.socket()
	return ok && domain == unix.AF_NETLINK
}

func (c *Call) isTCP() bool {
	domain, protocol, ok := c.socket()
	return ok && (domain == unix.AF_INET || domain == unix.AF_INET6) && protocol == unix.IPPROTO_TCP
}

// file returns the path of the descriptor in the first argument.
func (c *Call) file() string {
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.process.pid, int32(c.args[0])))
	return name
}

func (c *Call) socket() (domain, protocol int, ok bool) {
	fd, err := unix.PidfdGetfd(c.process.pidfd, int(int32(c.args[0])), 0)
	if err != nil {
		return 0, 0, false
	}
	domain, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	protocol, err2 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return domain, protocol, errors.Join(err, err2, unix.Close(fd)) == nil
}

// messageType returns the type of the netlink message at an address.
func (c *Call) messageType(at uint64) string {
	if b := c.memory(at, 6); len(b) == 6 {
		return fmt.Sprintf(", message type %#x", binary.NativeEndian.Uint16(b[4:]))
	}
	return ""
}

// firstBuffer returns the address of the first buffer of a struct msghdr.
func (c *Call) firstBuffer(header uint64) uint64 {
	const iov = 16 // the offset of msg_iov
	if b := c.memory(header+iov, 8); len(b) == 8 {
		if b := c.memory(binary.NativeEndian.Uint64(b), 8); len(b) == 8 {
			return binary.NativeEndian.Uint64(b)
		}
	}
	return 0
}

// executable returns the base name of the path in the first argument.
func (c *Call) executable() string { return filepath.Base(c.cString(c.args[0])) }

// cString reads a NUL-terminated string at an address.
func (c *Call) cString(at uint64) string {
	b := c.memory(at, 4096-int(at%4096))
	if end := bytes.IndexByte(b, 0); end >= 0 {
		return string(b[:end])
	}
	return string(append(b, c.memory(at+uint64(len(b)), 256)...))
}

// memory reads n bytes of the process's memory. It returns nil on an error.
func (c *Call) memory(at uint64, n int) []byte {
	b := make([]byte, n)
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(n)
	got, err := unix.ProcessVMReadv(c.process.pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: n}}, 0)
	if err != nil {
		return nil
	}
	return b[:got]
}
