// Package hostfile accesses files that other programs can replace, and finds the directory of the files that do not
// survive a reboot.
//
// Opening a named pipe can block until another process opens it as well, and reading a device can go on forever. The
// functions of this package do not block, and limit what they read.
package hostfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

var (
	// ErrNotRegular is the error for a directory, a named pipe, a socket or a device in the place of a file and, with
	// O_NOFOLLOW, for a symbolic link.
	ErrNotRegular = errors.New("not a regular file; remove it")
	// ErrSymbolicLink is the error for a symbolic link with O_NOFOLLOW. Such an error also matches ErrNotRegular.
	ErrSymbolicLink = errors.New("a symbolic link")
	// ErrTooLarge is the error for a file that is larger than the limit.
	ErrTooLarge = errors.New("the file is too large")
)

// MaxSize is the size in bytes of the largest file that Read reads.
const MaxSize = 64 << 20

// Open opens a regular file and returns its descriptor, which the caller closes. flags and mode are those of open(2). For
// any other kind of file, the error matches ErrNotRegular.
func Open(path string, flags int, mode uint32) (fd int, err error) {
	fd, _, err = OpenAt(unix.AT_FDCWD, path, flags, mode)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// OpenAt opens a file like Open, relative to a directory (openat(2)), and returns its status as well. Its errors do not
// contain the name.
func OpenAt(dir int, name string, flags int, mode uint32) (fd int, st unix.Stat_t, err error) {
	fd, st, err = openAny(dir, name, flags, mode)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, st, errors.Join(unix.Close(fd), ErrNotRegular)
	}
	return fd, st, err
}

// openAny opens a file of any kind except a socket, without blocking.
func openAny(dir int, name string, flags int, mode uint32) (fd int, st unix.Stat_t, err error) {
	err = types.RetryEINTR(func() (err error) {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, mode)
		return err
	})
	switch {
	case errors.Is(err, unix.ELOOP) && flags&unix.O_NOFOLLOW != 0:
		err = fmt.Errorf("%w, %w", ErrSymbolicLink, ErrNotRegular)
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EISDIR):
		err = ErrNotRegular // a socket, a named pipe without a reader, a device without a driver, or a directory
	}
	if err != nil {
		return -1, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, st, errors.Join(err, unix.Close(fd))
	}
	return fd, st, nil
}

// Read returns the content of the regular file at path. flags is 0 or, for a file of plumb, O_NOFOLLOW. The error matches
// ErrNotRegular or ErrTooLarge if the file is one of these.
func Read(path string, flags int) ([]byte, error) {
	fd, st, err := OpenAt(unix.AT_FDCWD, path, unix.O_RDONLY|flags, 0)
	if err != nil {
		if flags&unix.O_NOFOLLOW == 0 {
			err = withoutAdvice(st, err)
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if st.Size > MaxSize {
		return nil, errors.Join(&fs.PathError{Op: "read", Path: path, Err: tooLarge(MaxSize)}, unix.Close(fd))
	}
	return readAndClose(path, fd, MaxSize)
}

// errNamed is ErrNotRegular without the advice to remove the file.
type errNamed string

func (e errNamed) Error() string { return string(e) }

func (errNamed) Is(target error) bool { return target == ErrNotRegular }

// withoutAdvice returns err without the advice to remove the file, because the administrator needs the directory or socket that
// a configuration or an argument names by mistake.
func withoutAdvice(st unix.Stat_t, err error) error {
	switch {
	case !errors.Is(err, ErrNotRegular):
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return errNamed("a directory, not a regular file")
	}
	return errNamed("not a regular file")
}

// ReadConfig returns the content of a file that an administrator names. The file may be a symbolic link, or a character
// device, because /dev/null is a usual file without content. The error matches ErrTooLarge above limit.
func ReadConfig(path string, limit int64) ([]byte, error) {
	fd, st, err := openAny(unix.AT_FDCWD, path, unix.O_RDONLY, 0)
	if kind := st.Mode & unix.S_IFMT; err == nil && kind != unix.S_IFREG && kind != unix.S_IFCHR {
		err = errors.Join(unix.Close(fd), ErrNotRegular)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: withoutAdvice(st, err)}
	}
	return readAndClose(path, fd, limit)
}

func readAndClose(path string, fd int, limit int64) ([]byte, error) {
	text, err := ReadAll(Descriptor(fd), limit)
	if err != nil {
		err = &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return text, errors.Join(err, unix.Close(fd))
}

// A Descriptor reads an open file. Unlike os.NewFile, it does not try to register the file with the poller of the Go
// runtime, which cannot poll files on a disk.
type Descriptor int

// Read implements io.Reader.
func (d Descriptor) Read(b []byte) (n int, err error) {
	err = types.RetryEINTR(func() (err error) {
		n, err = unix.Read(int(d), b)
		return err
	})
	if err == nil && n == 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

// ReadAll reads r until its end. Above limit, the error is ErrTooLarge.
func ReadAll(r io.Reader, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(text)) > limit {
		return nil, tooLarge(limit)
	}
	return text, err
}

func tooLarge(limit int64) error { return fmt.Errorf("%w: want at most %d bytes", ErrTooLarge, limit) }

// Write writes a file in place. A new file gets the mode. Write does not follow a symbolic link.
func Write(path string, content []byte, mode uint32) error {
	fd, err := Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), path)
	err = f.Truncate(0)
	if err == nil {
		_, err = f.Write(content)
	}
	return errors.Join(err, f.Close())
}

// MkdirAll creates a directory and its parents like os.MkdirAll. Other users may read it, except below /run/user, where
// each directory is private (XDG Base Directory Specification).
func MkdirAll(dir string) error {
	mode := fs.FileMode(0o755)
	if isBelow(dir, userRun) {
		mode = 0o700
	}
	return os.MkdirAll(dir, mode)
}

func isBelow(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel) && rel != "."
}
