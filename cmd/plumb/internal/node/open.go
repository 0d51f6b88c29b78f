package node

import (
	"os"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"golang.org/x/sys/unix"
)

// ReadFile reads a file that Open opens, up to hostfile.MaxSize.
func ReadFile(path string) ([]byte, error) { return hostfile.Read(path, 0) }

// Open opens a regular file for reading. It follows symbolic links. Unlike os.Open, it does not block on a named pipe. Use it
// for all files that plumb finds in a directory. The caller closes the file.
func Open(path string) (*os.File, error) {
	fd, err := hostfile.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// SameFile reports whether both paths name the same existing file or directory.
func SameFile(a, b string) bool {
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}
