package inject

import "golang.org/x/sys/unix"

// legacyCalls returns the system calls that change something and that newer architectures do not support.
func legacyCalls() []Syscall { return legacyFileCalls() }

func legacyFileCalls() []Syscall { return []Syscall{{"renameat", unix.SYS_RENAMEAT, nil}} }
