// Package lock provides locks that processes share. A process waits for a lock for a limited time only. The
// kernel gives a lock to waiting processes in the order of their requests.
//
// The kernel releases a lock when its process ends, even if the process is killed. Programs that the process
// starts do not inherit the lock, because its descriptors are close-on-exec.
package lock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// Flock takes an exclusive flock(2) of an open file. The kernel releases the lock when the file is closed.
// If the lock is not free within the limit, Flock returns os.ErrDeadlineExceeded.
func Flock(fd int, limit time.Duration) error {
	err := types.RetryEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	return withLimit(limit, fd, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX) })
}

// A Key is one of the locks in a lock file. It locks one byte, whose offset is a hash of the key. The file
// stays empty, because a lock may be beyond the end of its file (fcntl_locking(2), open file description
// locks, Linux 3.15). Therefore all keys share one file, which is never removed.
type Key struct {
	fd     int
	offset int64
	length int64 // 1 for one key; zero means all keys of the file
}

// NewKey opens the lock file at path, and creates the file and its directory if they do not exist. It does
// not lock the key. The caller must call Close once, which also unlocks the key. The error matches
// hostfile.ErrNotRegular if something else is at the path.
func NewKey(path, key string) (*Key, error) {
	fd, err := openFile(path)
	if err != nil {
		return nil, err
	}
	hash := types.Hash(key)
	offset := int64(binary.BigEndian.Uint64(hash[:]) >> 2) // an offset must not be negative
	return &Key{fd: fd, offset: offset, length: 1}, nil
}

// NewAll returns a Key that conflicts with every other Key of the file. Otherwise it works like NewKey.
func NewAll(path string) (*Key, error) {
	fd, err := openFile(path)
	if err != nil {
		return nil, err
	}
	return &Key{fd: fd}, nil
}

// openFile does not use os.OpenFile, which needs five more system calls to find out that the file cannot be polled.
func openFile(path string) (fd int, err error) {
	const flags = unix.O_RDWR | unix.O_NOFOLLOW
	fd, err = hostfile.Open(path, flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := hostfile.MkdirAll(filepath.Dir(path)); err != nil {
			return -1, err
		}
		fd, err = hostfile.Open(path, flags|unix.O_CREAT, 0o600)
	}
	return fd, err
}

// TryLock locks the key unless another Key has locked it, and reports whether it locked the key.
func (k *Key) TryLock() (bool, error) {
	err := types.RetryEINTR(func() error { return k.fcntl(k.fd, unix.F_OFD_SETLK) })
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// Lock waits until the key is free, and locks it. If the key is not free within the limit, Lock returns
// os.ErrDeadlineExceeded.
func (k *Key) Lock(limit time.Duration) error {
	return withLimit(limit, k.fd, func(fd int) error { return k.fcntl(fd, unix.F_OFD_SETLKW) })
}

// fcntl runs a lock command of fcntl(2) for the bytes of the key.
func (k *Key) fcntl(fd, command int) error {
	return unix.FcntlFlock(uintptr(fd), command, &unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: k.offset, Len: k.length})
}

// Close unlocks the key and closes its file. A nil Key is valid.
func (k *Key) Close() error {
	if k == nil {
		return nil
	}
	return unix.Close(k.fd)
}

// withLimit calls acquire, which blocks until it has the lock. If acquire has not returned after the limit,
// withLimit returns os.ErrDeadlineExceeded, and acquire continues in the background. By that time, the
// caller may have closed fd, and the number may belong to another file. Therefore acquire gets a duplicate
// of fd, which withLimit closes when acquire returns. If acquire gets the lock after the limit, the lock is
// released when both descriptors are closed.
func withLimit(limit time.Duration, fd int, acquire func(fd int) error) error {
	duplicate, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("duplicate descriptor: %w", err)
	}
	result := make(chan error, 1)
	go func() {
		err := types.RetryEINTR(func() error { return acquire(duplicate) })
		_ = unix.Close(duplicate)
		result <- err
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.C:
		return os.ErrDeadlineExceeded
	}
}
