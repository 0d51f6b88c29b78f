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

// A Syscall is a system call at which programs stop.
type Syscall struct {
	Name   string
	number int
	only   func(*Call) bool // nil: always
}

func (s Syscall) counts(c *Call) bool { return s.Name != "" && (s.only == nil || s.only(c)) }

// Mutating are the calls by which a program changes anything outside of itself, be it
// by starting another one.
func Mutating() []Syscall {
	return slices.Concat(sends(nil), files(), []Syscall{
		{"setsockopt", unix.SYS_SETSOCKOPT, (*Call).isTable},
		{"mount", unix.SYS_MOUNT, nil},
		{"umount2", unix.SYS_UMOUNT2, nil},
		{"clone", unix.SYS_CLONE, (*Call).isFork},
		{"clone3", unix.SYS_CLONE3, nil},
		{"execve", unix.SYS_EXECVE, nil},
	}, oldMutating())
}

// Netlink are the calls that send requests to the kernel: netlink's, and those of the
// legacy iptables.
func Netlink() []Syscall {
	return append(sends((*Call).isNetlink), Syscall{"setsockopt", unix.SYS_SETSOCKOPT, (*Call).isTable})
}

// Answers are the calls that take what the kernel has to say. A request that was done
// and its answer are two things.
func Answers() []Syscall {
	return []Syscall{{"recvfrom", unix.SYS_RECVFROM, (*Call).isNetlink}, {"recvmsg", unix.SYS_RECVMSG, (*Call).isNetlink}}
}

// Settings are the calls that write below /proc.
func Settings() []Syscall {
	return []Syscall{{"write", unix.SYS_WRITE, (*Call).isSetting}}
}

// Files are the calls that change the file system, as far as the file is a regular one
// or a folder.
func Files() []Syscall {
	all := files()
	for i, s := range all {
		if strings.Contains(s.Name, "write") {
			all[i].only = (*Call).isRegular
		}
	}
	return append(all, oldFiles()...)
}

func sends(only func(*Call) bool) []Syscall {
	return []Syscall{{"sendto", unix.SYS_SENDTO, only}, {"sendmsg", unix.SYS_SENDMSG, only}, {"sendmmsg", unix.SYS_SENDMMSG, only}}
}

func files() []Syscall {
	return []Syscall{
		{"write", unix.SYS_WRITE, (*Call).isOutward},
		{"writev", unix.SYS_WRITEV, (*Call).isOutward},
		{"pwrite64", unix.SYS_PWRITE64, (*Call).isOutward},
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

// A Call is a system call that stopped. Its arguments can be looked at for as long as
// Decide runs.
type Call struct {
	Name    string
	Process int    // in the order of appearance; 0: the program itself
	Program string // base name of the process's executable
	N       int    // ordinal of the call in its process, from 1

	args    [6]uint64
	process *process
}

// String says what the call is about, as far as it can be read.
func (c *Call) String() string {
	return fmt.Sprintf("%s, call %d: %s %s", c.Program, c.N, c.Name, c.about())
}

// about is the object of the call.
func (c *Call) about() string {
	switch c.Name {
	case "clone", "clone3", "fork", "vfork":
		return ""
	case "execve", "open", "creat", "mkdir", "rmdir", "unlink", "rename", "link", "mount":
		return c.text(c.args[0])
	case "openat", "mkdirat", "unlinkat", "renameat", "renameat2", "linkat", "utimensat":
		return c.text(c.args[1])
	case "sendto":
		return c.target() + c.message(c.args[1])
	case "sendmsg":
		return c.target() + c.message(c.first(c.args[1]))
	}
	return c.target()
}

// target is what the descriptor that is the first argument leads to.
func (c *Call) target() string {
	if domain, protocol, ok := c.socket(); ok {
		return fmt.Sprintf("socket of family %d, protocol %d", domain, protocol)
	}
	return c.file()
}

// isFork: the call makes a process, not a thread.
func (c *Call) isFork() bool { return c.args[0]&unix.CLONE_THREAD == 0 }

func (c *Call) creates(flags uint64) bool { return flags&(unix.O_CREAT|unix.O_TRUNC) != 0 }

// isOutward: the file is not one by which Go's runtime wakes itself.
func (c *Call) isOutward() bool { return !strings.HasPrefix(c.file(), "anon_inode:") }

// isRegular: the file is on a disk, not a pipe, a setting of the kernel, or in memory.
func (c *Call) isRegular() bool {
	name := c.file()
	return strings.HasPrefix(name, "/") && !c.isSetting() && !strings.HasPrefix(name, "/memfd:")
}

func (c *Call) isSetting() bool { return strings.HasPrefix(c.file(), "/proc/") }

// isTable: the option is one by which the legacy iptables replaces a table.
func (c *Call) isTable() bool {
	const replace = 64 // IPT_SO_SET_REPLACE, IP6T_SO_SET_REPLACE
	level := int(c.args[1])
	return (level == unix.SOL_IP || level == unix.SOL_IPV6) && c.args[2] == replace
}

func (c *Call) isNetlink() bool {
	domain, _, ok := c.socket()
	return ok && domain == unix.AF_NETLINK
}

// file is what the descriptor that is the first argument leads to.
func (c *Call) file() string {
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.process.pid, int32(c.args[0])))
	return name
}

// socket tells what kind of socket the first argument is.
func (c *Call) socket() (domain, protocol int, ok bool) {
	fd, err := unix.PidfdGetfd(c.process.pidfd, int(int32(c.args[0])), 0)
	if err != nil {
		return 0, 0, false
	}
	domain, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	protocol, err2 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return domain, protocol, errors.Join(err, err2, unix.Close(fd)) == nil
}

// message is the type of a netlink message.
func (c *Call) message(at uint64) string {
	if b := c.memory(at, 6); len(b) == 6 {
		return fmt.Sprintf(", message type %#x", binary.NativeEndian.Uint16(b[4:]))
	}
	return ""
}

// first is where the data of a struct msghdr begins.
func (c *Call) first(header uint64) uint64 {
	const iov = 16 // offset of msg_iov
	if b := c.memory(header+iov, 8); len(b) == 8 {
		if b := c.memory(binary.NativeEndian.Uint64(b), 8); len(b) == 8 {
			return binary.NativeEndian.Uint64(b)
		}
	}
	return 0
}

func (c *Call) base() string { return filepath.Base(c.text(c.args[0])) }

// text reads a string of C.
func (c *Call) text(at uint64) string {
	b := c.memory(at, 4096-int(at%4096))
	if end := bytes.IndexByte(b, 0); end >= 0 {
		return string(b[:end])
	}
	return string(append(b, c.memory(at+uint64(len(b)), 256)...))
}

// memory reads n bytes of the process; none where it cannot.
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
