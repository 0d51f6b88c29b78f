package inject

import "golang.org/x/sys/unix"

// legacyCalls returns the system calls that change something and that newer architectures do not support.
func legacyCalls() []Syscall {
	return append(legacyFileCalls(), Syscall{"fork", unix.SYS_FORK, nil}, Syscall{"vfork", unix.SYS_VFORK, nil})
}

// legacyFileCalls returns the calls of legacyCalls that change files.
func legacyFileCalls() []Syscall {
	return []Syscall{
		{"open", unix.SYS_OPEN, func(c *Call) bool { return c.creates(c.args[1]) }},
		{"creat", unix.SYS_CREAT, nil},
		{"renameat", unix.SYS_RENAMEAT, nil},
		{"rename", unix.SYS_RENAME, nil},
		{"link", unix.SYS_LINK, nil},
		{"symlink", unix.SYS_SYMLINK, nil},
		{"unlink", unix.SYS_UNLINK, nil},
		{"mkdir", unix.SYS_MKDIR, nil},
		{"rmdir", unix.SYS_RMDIR, nil},
		{"chmod", unix.SYS_CHMOD, nil},
	}
}
