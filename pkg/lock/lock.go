// Package lock takes locks that processes share, and waits for them in the kernel, which
// serves those who wait in turn, but not without a limit.
//
// The kernel frees a lock when its holder ends, in whatever way. Started programs do not
// inherit one: the descriptors are close-on-exec.
package lock

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Flock takes the exclusive flock of an open file. The error of a lock that is still held
// by somebody else after the limit matches os.ErrDeadlineExceeded.
func Flock(fd int, limit time.Duration) error {
	err := again(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	return wait(fd, limit, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX) })
}

// A Key is one of the locks of a file of keys. All keys share one file: a key is a range
// of it, one byte long, at the key's hash (fcntl_locking(2), open file description locks,
// kernel 3.15). So there is nothing to remove, and the file stays empty.
type Key struct {
	fd     int
	offset int64
}

// NewKey opens a file of keys, and makes it if there is none. The caller closes the key,
// which frees it.
func NewKey(path, key string) (*Key, error) {
	const flags = unix.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := open(path, flags)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		fd, err = open(path, flags|unix.O_CREAT)
	}
	if err != nil {
		return nil, err
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(key))
	return &Key{fd: fd, offset: int64(hash.Sum64() >> 2)}, nil
}

func open(path string, flags int) (fd int, err error) {
	err = again(func() error {
		fd, err = unix.Open(path, flags, 0o600)
		return err
	})
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// TryLock reports whether the key was free, and is now the caller's.
func (k *Key) TryLock() (bool, error) {
	err := again(func() error { return k.set(k.fd, unix.F_OFD_SETLK) })
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// Lock waits for the key. The error of a key that is still held by somebody else after the
// limit matches os.ErrDeadlineExceeded.
func (k *Key) Lock(limit time.Duration) error {
	return wait(k.fd, limit, func(fd int) error { return k.set(fd, unix.F_OFD_SETLKW) })
}

func (k *Key) set(fd, command int) error {
	return unix.FcntlFlock(uintptr(fd), command, &unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: k.offset, Len: 1})
}

// Close frees the key. It may be called on a nil key.
func (k *Key) Close() error {
	if k == nil {
		return nil
	}
	return unix.Close(k.fd)
}

// wait runs take, which blocks, for at most the limit. take gets a descriptor of its own
// of the same open file: one that is late must not work on a number that the caller has
// closed, and that may be another file's by then. A lock that it still gets ends with
// that descriptor.
func wait(fd int, limit time.Duration, take func(fd int) error) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("duplicate descriptor: %w", err)
	}
	got := make(chan error, 1)
	go func() {
		err := again(func() error { return take(own) })
		_ = unix.Close(own)
		got <- err
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-got:
		return err
	case <-timer.C:
		return os.ErrDeadlineExceeded
	}
}

// again runs f until no signal interrupts it.
func again(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
