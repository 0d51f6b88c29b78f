package inject

import "golang.org/x/sys/unix"

// oldMutating are the mutating calls that newer architectures do not have any more.
func oldMutating() []Syscall { return oldFiles() }

func oldFiles() []Syscall { return []Syscall{{"renameat", unix.SYS_RENAMEAT, nil}} }
