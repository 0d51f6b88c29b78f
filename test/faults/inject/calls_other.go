//go:build !amd64 && !arm64

package inject

func legacyCalls() []Syscall { return nil }

func legacyFileCalls() []Syscall { return nil }
