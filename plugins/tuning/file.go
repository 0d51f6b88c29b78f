package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/file"
)

// readFile reads a regular file, not through a link. What is none is errTorn.
func readFile(path string) ([]byte, error) {
	fd, err := file.Open(file.Here, path, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(fd) }()
	var info syscall.Stat_t
	if err := syscall.Fstat(fd, &info); err == nil && info.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, fmt.Errorf("%s: %w: it is no regular file", path, errTorn)
	}
	content, err := file.All(fd)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return content, nil
}

// rename is os.Rename without its look at what is there.
func rename(from, to string) error {
	for {
		err := syscall.Rename(from, to)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EINTR):
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
		}
	}
}
