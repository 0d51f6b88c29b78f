package inject

import "golang.org/x/sys/unix"

// legacyCalls returns the mutating calls that newer architectures do not have.
func legacyCalls() []Syscall { return legacyFileCalls() }

func legacyFileCalls() []Syscall { return []Syscall{{"renameat", unix.SYS_RENAMEAT, nil}} }
