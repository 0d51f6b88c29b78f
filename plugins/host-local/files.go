package main

import (
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// A folder is an open directory. Its files are found from the descriptor, so that they
// stay the same ones when somebody moves the folder and makes another one at its path.
// What a signal interrupts, as FUSE and NFS allow, is tried again. Errors are
// *fs.PathError with the path of the file.
type folder struct {
	fd   int // -1: none
	path string
}

var (
	noFolder = folder{fd: -1}
	// workingDir is for absolute paths, and for paths that are relative to the working directory.
	workingDir = folder{fd: unix.AT_FDCWD}
)

var errSpecial = errors.New("not a regular file of up to 1 MiB")

// maxContent is far over the longest container ID that a process can be started with
// (MAX_ARG_STRLEN, 128 KiB). A larger file is not read.
const maxContent = 1 << 20

func openFolder(path string, flags int) (folder, error) {
	fd, err := workingDir.openFD(path, unix.O_RDONLY|unix.O_DIRECTORY|flags)
	return folder{fd: fd, path: path}, err
}

func (d folder) close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
}

func (d folder) error(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: filepath.Join(d.path, name), Err: err}
}

// errnoOf returns the error number of the system call that failed, without operation and path. If
// there is none, it returns err.
func errnoOf(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

func (d folder) openFD(name string, flags int) (fd int, err error) {
	err = types.RetryEINTR(func() (err error) {
		fd, err = unix.Openat(d.fd, name, flags|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return -1, d.error("open", name, err)
	}
	return fd, nil
}

// open opens a file, or makes one for its owner alone. Unlike os.OpenFile it does not set
// up the poller of the Go runtime, which can do nothing for a file on a disk.
func (d folder) open(name string, flags int) (*os.File, error) {
	fd, err := d.openFD(name, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, name)), nil
}

// read reads a file. The error matches errSpecial for anything but a regular file, a
// symbolic link included: those are neither read nor followed.
func (d folder) read(name string) ([]byte, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := d.openFD(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) { // a link, a socket, a device
		return nil, st, d.error("read", name, errSpecial)
	}
	if err != nil {
		return nil, st, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.path, name))
	defer func() { _ = f.Close() }()
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, st, d.error("stat", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxContent {
		return nil, st, d.error("read", name, errSpecial)
	}
	content, err := io.ReadAll(f)
	return content, st, err
}

// write makes a file, or changes what is in it.
func (d folder) write(name string, content []byte) error {
	f, err := d.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// writeNew makes a file in the place of what is there, which a crash may have left. What a
// link leads to is never written. A file that cannot be written whole does not stay.
func (d folder) writeNew(name string, content []byte) error {
	f, err := d.createNew(name)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, d.remove(name))
	}
	return nil
}

func (d folder) createNew(name string) (*os.File, error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL
	f, err := d.open(name, flags)
	if !errors.Is(err, fs.ErrExist) {
		return f, err
	}
	if err := d.remove(name); err != nil {
		return nil, err
	}
	return d.open(name, flags)
}

// remove removes a file. One that is not there is success.
func (d folder) remove(name string) error {
	err := types.RetryEINTR(func() error { return unix.Unlinkat(d.fd, name, 0) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return d.error("remove", name, err)
}

// link gives the file at the absolute path old a name here. The error matches fs.ErrExist
// when the name is taken.
func (d folder) link(old, name string, flags int) error {
	return d.error("link", name, types.RetryEINTR(func() error { return unix.Linkat(unix.AT_FDCWD, old, d.fd, name, flags) }))
}

func (d folder) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := types.RetryEINTR(func() error { return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, d.error("stat", name, err)
}

// names returns the names in the folder, some at a time: a folder can have 60,000.
func (d folder) names() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		f, err := d.open(".", unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			yield("", err)
			return
		}
		defer func() { _ = f.Close() }()
		for {
			some, err := f.Readdirnames(256)
			for _, name := range some {
				if !yield(name, nil) {
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield("", err)
				return
			}
		}
	}
}
