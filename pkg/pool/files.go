package pool

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// A folder is an open directory. Names of files are relative to the descriptor: if another process
// moves the directory and makes a new one at its path, the folder is still the old one. A system call
// that a signal interrupts, which happens on FUSE and NFS, is repeated. Errors are *fs.PathError with
// the path of the file.
type folder struct {
	fd   int // -1: no open directory
	path string
}

var (
	noFolder = folder{fd: -1}
	// workingDir is the working directory. Its methods accept absolute paths, too.
	workingDir = folder{fd: unix.AT_FDCWD}
)

// errSpecial is the error of read for a file that is not regular, or larger than maxFileSize.
var errSpecial = errors.New("not a regular file of up to 1 MiB")

// maxFileSize is the size in bytes of the largest file that is read. The longest container ID is much
// shorter: an environment variable of a new process has at most 128 KiB (MAX_ARG_STRLEN).
const maxFileSize = 1 << 20

// openFolder opens the directory at path. The flags are added to those of openat(2).
func openFolder(path string, flags int) (folder, error) {
	fd, err := workingDir.openFD(path, unix.O_RDONLY|unix.O_DIRECTORY|flags, 0)
	return folder{fd: fd, path: path}, err
}

// close closes the descriptor, if there is one.
func (d folder) close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
}

// pathError returns err as a *fs.PathError with the path of the file. It returns nil for nil.
func (d folder) pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: filepath.Join(d.path, name), Err: err}
}

// openFD opens a file and returns its descriptor. The mode is that of a new file.
func (d folder) openFD(name string, flags int, mode uint32) (fd int, err error) {
	err = types.RetryEINTR(func() (err error) {
		fd, err = unix.Openat(d.fd, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return -1, d.pathError("open", name, err)
	}
	return fd, nil
}

// open opens a file. A new file has the mode 0600. Unlike os.OpenFile, open does not register the file
// with the poller of the Go runtime, which cannot poll files on a disk.
func (d folder) open(name string, flags int) (*os.File, error) {
	fd, err := d.openFD(name, flags, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, name)), nil
}

// read returns the content and the status of a regular file. For any other file, including a symbolic
// link, and for a file larger than maxFileSize, the error matches errSpecial. read does not follow
// symbolic links and does not block on named pipes.
func (d folder) read(name string) ([]byte, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := d.openFD(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) { // a symbolic link, a socket, a device
		return nil, st, d.pathError("read", name, errSpecial)
	}
	if err != nil {
		return nil, st, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.path, name))
	defer func() { _ = f.Close() }()
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, st, d.pathError("stat", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxFileSize {
		return nil, st, d.pathError("read", name, errSpecial)
	}
	content, err := io.ReadAll(f)
	return content, st, err
}

// create creates a file with this content. The error matches fs.ErrExist if the name exists. If the
// content cannot be written, create removes the file.
func (d folder) create(name string, content []byte) error {
	f, err := d.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, d.remove(name))
	}
	return nil
}

// replace removes a file, if there is one, and creates a new one with this content. So it neither
// follows a symbolic link nor writes to the other names of a file.
func (d folder) replace(name string, content []byte) error {
	if err := d.remove(name); err != nil {
		return err
	}
	return d.create(name, content)
}

// remove removes a file. It returns nil if there is no such file.
func (d folder) remove(name string) error {
	err := types.RetryEINTR(func() error { return unix.Unlinkat(d.fd, name, 0) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return d.pathError("remove", name, err)
}

// link makes a hard link in the folder to the file at the absolute path old. The error matches
// fs.ErrExist if the name exists.
func (d folder) link(old, name string) error {
	return d.pathError("link", name, types.RetryEINTR(func() error { return unix.Linkat(unix.AT_FDCWD, old, d.fd, name, 0) }))
}

// stat returns the status of a file. It does not follow symbolic links.
func (d folder) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := types.RetryEINTR(func() error { return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, d.pathError("stat", name, err)
}

// names returns the names of the files in the folder.
func (d folder) names() ([]string, error) {
	f, err := d.open(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}
