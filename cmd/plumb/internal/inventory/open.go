package inventory

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens a regular file for reading. It follows symbolic links. Use it for all files that plumb finds in a directory,
// because it does not block on a named pipe.
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

// ReadFile reads a file that it opens with Open.
func ReadFile(path string) ([]byte, error) {
	file, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(file)
}
