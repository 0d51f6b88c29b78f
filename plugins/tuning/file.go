package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// The calls of package os hand each file to the poller of the Go runtime, which would
// be set up for this one file, only to refuse it: a regular file is always ready.

// readFile reads a regular file, not through a link. What is none is errTorn.
func readFile(path string) ([]byte, error) {
	fd, err := open(path, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(fd) }()
	var info syscall.Stat_t
	if err := syscall.Fstat(fd, &info); err == nil && info.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, fmt.Errorf("%s: %w: it is no regular file", path, errTorn)
	}
	var content []byte
	for {
		content = slices.Grow(content, 512)
		n, err := syscall.Read(fd, content[len(content):cap(content)])
		switch {
		case err == nil && n == 0:
			return content, nil
		case err == nil:
			content = content[:len(content)+n]
		case !errors.Is(err, syscall.EINTR):
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
	}
}

// writeNew writes a file that must not be there.
func writeNew(path string, content []byte) error {
	fd, err := open(path, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for len(content) > 0 && err == nil {
		var n int
		n, err = syscall.Write(fd, content)
		if errors.Is(err, syscall.EINTR) {
			err = nil
			continue
		}
		content = content[max(n, 0):]
	}
	if err = errors.Join(err, syscall.Close(fd)); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func open(path string, flags int, mode uint32) (int, error) {
	for {
		fd, err := syscall.Open(path, flags|syscall.O_CLOEXEC, mode)
		switch {
		case err == nil:
			return fd, nil
		case !errors.Is(err, syscall.EINTR): // FUSE and NFS can be interrupted
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// rename is os.Rename without its look at what is there.
func rename(from, to string) error {
	if err := syscall.Rename(from, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
