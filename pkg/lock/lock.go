// Package lock has locks between processes. A process waits for a lock in the kernel, which
// serves waiting processes in order, and only for a limited time.
//
// The kernel releases a lock when its process ends, for whatever reason. Programs that the
// process starts do not inherit the lock: the descriptors are close-on-exec.
package lock

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// Flock takes an exclusive flock(2) of an open file. If another process still holds the lock
// after the limit, Flock returns os.ErrDeadlineExceeded.
func Flock(fd int, limit time.Duration) error {
	err := types.RetryEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	return wait(fd, limit, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX) })
}

// A Key is one lock of a file of locks. All keys share one empty file: each key locks one byte,
// whose offset is the hash of the key (fcntl_locking(2), open file description locks, kernel
// 3.15). So no file needs to be removed.
type Key struct {
	fd     int
	offset int64
}

// NewKey opens the file of locks at path, and makes the file and its folder if they do not
// exist. It does not lock the key. The caller must close the key, which also unlocks it.
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
	err = types.RetryEINTR(func() error {
		fd, err = unix.Open(path, flags, 0o600)
		return err
	})
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// TryLock locks the key if it is free, and reports whether it did.
func (k *Key) TryLock() (bool, error) {
	err := types.RetryEINTR(func() error { return k.set(k.fd, unix.F_OFD_SETLK) })
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// Lock waits until the key is free, and locks it. If another process still holds the lock after
// the limit, Lock returns os.ErrDeadlineExceeded.
func (k *Key) Lock(limit time.Duration) error {
	return wait(k.fd, limit, func(fd int) error { return k.set(fd, unix.F_OFD_SETLKW) })
}

func (k *Key) set(fd, command int) error {
	return unix.FcntlFlock(uintptr(fd), command, &unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: k.offset, Len: 1})
}

// Close unlocks the key. A nil Key has nothing to close.
func (k *Key) Close() error {
	if k == nil {
		return nil
	}
	return unix.Close(k.fd)
}

// wait runs take, which blocks, and returns os.ErrDeadlineExceeded if take has not returned
// after the limit. take may return later than wait. It therefore gets a duplicate of the
// descriptor: the caller may have closed its own, and the number may belong to another file. A
// lock that take gets late is released when the open file is closed.
func wait(fd int, limit time.Duration, take func(fd int) error) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("duplicate descriptor: %w", err)
	}
	got := make(chan error, 1)
	go func() {
		err := types.RetryEINTR(func() error { return take(own) })
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
