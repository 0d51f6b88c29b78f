package pool

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// A directory is an open directory. Its methods take names of files relative to the descriptor, so that they still
// access the same directory if another process moves it and creates another one at the path. The methods repeat a
// system call that a signal interrupted (EINTR), which happens on FUSE and NFS. Their errors are *fs.PathError with the
// path of the file.
type directory struct {
	fd   int // descriptor, or -1 if no directory is open
	path string
}

var (
	noDirectory = directory{fd: -1}
	// workingDir is the working directory of the process. It is used with absolute paths.
	workingDir = directory{fd: unix.AT_FDCWD}
)

// errUnreadable is the error of read for a file that is not regular or is larger than maxFileSize.
var errUnreadable = errors.New("not a regular file of up to 1 MiB")

// maxFileSize is the size in bytes of the largest file that is read. The longest container ID is much
// shorter, because an environment variable of a new process is limited to 128 KiB (MAX_ARG_STRLEN).
const maxFileSize = 1 << 20

// openDirectory opens the directory at path. flags are additional flags of openat(2). The caller must close the
// directory.
func openDirectory(path string, flags int) (directory, error) {
	fd, err := workingDir.openFD(path, unix.O_RDONLY|unix.O_DIRECTORY|flags, 0)
	return directory{fd: fd, path: path}, err
}

func (d directory) close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
}

// pathError returns err as a *fs.PathError with the path of the file. It returns nil for nil.
func (d directory) pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: filepath.Join(d.path, name), Err: err}
}

// openFD opens a file and returns its descriptor. If openFD creates the file, the file gets the mode.
func (d directory) openFD(name string, flags int, mode uint32) (fd int, err error) {
	err = types.RetryEINTR(func() (err error) {
		fd, err = unix.Openat(d.fd, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return -1, d.pathError("open", name, err)
	}
	return fd, nil
}

// open opens a regular file to write to it. If open creates the file, the file gets the mode 0600. For any other kind of
// file, the error matches hostfile.ErrNotRegular.
func (d directory) open(name string, flags int) (*os.File, error) {
	fd, _, err := hostfile.OpenAt(d.fd, name, flags|unix.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, d.pathError("open", name, err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, name)), nil
}

// read returns the content and the status of a regular file. For any other file, including a symbolic
// link, and for a file larger than maxFileSize, the error matches errUnreadable. read does not follow
// symbolic links and does not wait for the writer of a named pipe.
func (d directory) read(name string) ([]byte, unix.Stat_t, error) {
	fd, st, err := hostfile.OpenAt(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, hostfile.ErrNotRegular) {
		return nil, st, d.pathError("read", name, errUnreadable)
	}
	if err != nil {
		return nil, st, d.pathError("open", name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	content, err := hostfile.ReadAll(hostfile.Descriptor(fd), maxFileSize)
	if errors.Is(err, hostfile.ErrTooLarge) {
		err = errUnreadable
	}
	return content, st, d.pathError("read", name, err)
}

// create creates a file with this content, and returns its modification time. The error matches fs.ErrExist if there
// is a file with the name. If the content cannot be written, create removes the file.
func (d directory) create(name string, content []byte) (written time.Time, err error) {
	fd, err := d.openFD(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return written, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.path, name))
	var st unix.Stat_t
	_, err = f.Write(content)
	err = errors.Join(err, unix.Fstat(int(f.Fd()), &st), f.Close())
	if err != nil {
		err = errors.Join(err, d.remove(name))
	}
	return time.Unix(st.Mtim.Unix()), err
}

// remove removes a file. It returns nil if there is no such file. For a directory, the error matches hostfile.ErrNotRegular.
func (d directory) remove(name string) error {
	err := types.RetryEINTR(func() error { return unix.Unlinkat(d.fd, name, 0) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.EISDIR):
		err = hostfile.ErrNotRegular
	}
	return d.pathError("remove", name, err)
}

// replace creates a file with this content. It removes an old file instead of writing to it, because the file could be a
// symbolic link, or have other hard links.
func (d directory) replace(name string, content []byte) error {
	err := d.remove(name)
	if err == nil {
		_, err = d.create(name, content)
	}
	return err
}

// link creates a hard link with this name, in the directory, to the file at the absolute path old. The error
// matches fs.ErrExist if there is a file with the name.
func (d directory) link(old, name string) error {
	return d.pathError("link", name, types.RetryEINTR(func() error { return unix.Linkat(unix.AT_FDCWD, old, d.fd, name, 0) }))
}

// stat returns the status of a file. It does not follow symbolic links.
func (d directory) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := types.RetryEINTR(func() error { return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, d.pathError("stat", name, err)
}

// names returns the names of all files in the directory, in no particular order.
func (d directory) names() ([]string, error) {
	fd, err := d.openFD(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.path)
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}
