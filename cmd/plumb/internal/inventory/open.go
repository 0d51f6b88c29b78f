package inventory

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ReadFile reads a file that Open opens.
func ReadFile(path string) ([]byte, error) {
	file, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(file)
}

// Open opens a regular file for reading. It follows symbolic links. Unlike os.Open, it does not block on a named pipe. Use it
// for all files that plumb finds in a directory. The caller closes the file.
func Open(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, errors.Join(&fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}, file.Close())
	}
	return file, nil
}
