// Package file reads and writes small files by the system calls that this takes.
//
// Package os gives each file to the poller of the Go runtime, which is set up for the
// first one (epoll_create1, eventfd2), only to be refused by the kernel: a file on a
// disk is always ready. With the flags that it sets and puts back, the size that it
// asks for and the end that it reads, that is ten calls a file in place of three.
//
// What a signal interrupts, as FUSE and NFS allow, is tried again.
package file

import (
	"errors"
	"io"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

// Here is the folder that a path which is not absolute begins at, for who has no
// descriptor of another one.
const Here = unix.AT_FDCWD

// ErrNotRegular says that something else than a regular file is at a path.
var ErrNotRegular = errors.New("not a regular file")

// Open opens path in the folder with that descriptor, or makes it where the flags say
// so. The caller closes the descriptor, which no started program inherits. Errors here
// and in all that takes a path are *fs.PathError.
func Open(folder int, path string, flags int, mode uint32) (int, error) {
	fd := -1
	err := again(func() (err error) {
		fd, err = unix.Openat(folder, path, flags|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// OpenRegular is Open for a path at which nothing but a regular file makes sense. It does
// not wait for the other end of a named pipe, say: for all else that can be opened the
// error matches ErrNotRegular.
func OpenRegular(folder int, path string, flags int, mode uint32) (int, error) {
	fd, err := Open(folder, path, flags|unix.O_NONBLOCK, mode)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) { // a pipe without a reader, a socket, a device
		return -1, &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = ErrNotRegular
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// Link gives a file another name, in a folder. The flags are those of linkat(2).
func Link(old string, folder int, name string, flags int) error {
	return again(func() error { return unix.Linkat(unix.AT_FDCWD, old, folder, name, flags) })
}

// Unlink removes a name from a folder.
func Unlink(folder int, name string) error {
	return again(func() error { return unix.Unlinkat(folder, name, 0) })
}

// again runs f until no signal interrupts it.
func again(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Read reads all of a file. The flags are those of Open besides O_RDONLY: O_NOFOLLOW,
// O_NONBLOCK.
func Read(folder int, path string, flags int) ([]byte, error) {
	fd, err := Open(folder, path, flags|unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	content, err := All(fd)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return content, nil
}

// All reads what is left of an open file.
func All(fd int) ([]byte, error) {
	var content []byte
	for {
		content = slices.Grow(content, 512)
		n, err := unix.Read(fd, content[len(content):cap(content)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0:
			return content, nil
		default:
			content = content[:len(content)+n]
		}
	}
}

// Head reads into room by one call, and gives what it has got. Of a file on a disk or of
// one that the kernel makes up in one piece (a setting, not a table) that is all, unless
// room is full; one that cannot be read further, by a bad disk say, ends there, too.
func Head(folder int, path string, flags int, room []byte) ([]byte, error) {
	fd, err := Open(folder, path, flags|unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	for {
		n, err := unix.Read(fd, room)
		switch {
		case err == nil:
			return room[:n], nil
		case !errors.Is(err, unix.EINTR):
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
	}
}

// Write writes all of content to an open file.
func Write(fd int, content []byte) error {
	return WriteAll(len(content), func(done int) (int, error) { return unix.Write(fd, content[done:]) })
}

// WriteAll writes until all of a size is done: write begins behind what is done, and
// says how much more is. A file that takes nothing and gives no
// reason (write(2)) would be asked for ever: that is io.ErrShortWrite.
func WriteAll(size int, write func(done int) (int, error)) error {
	for done := 0; done < size; {
		n, err := write(done)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return io.ErrShortWrite
		default:
			done += n
		}
	}
	return nil
}

// WriteNew makes a file, for its owner alone. One that is there is left as it is, and the
// error matches fs.ErrExist. What fails later leaves a file that is not whole.
func WriteNew(folder int, path string, content []byte) error {
	fd, err := Open(folder, path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(Write(fd, content), unix.Close(fd)); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// ReadAt fills room from an offset on. A file that ends before is io.ErrUnexpectedEOF.
func ReadAt(fd int, room []byte, offset int64) error {
	for len(room) > 0 {
		n, err := unix.Pread(fd, room, offset)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			room, offset = room[n:], offset+int64(n)
		}
	}
	return nil
}

// WriteAt writes all of content at an offset.
func WriteAt(fd int, content []byte, offset int64) error {
	return WriteAll(len(content), func(done int) (int, error) {
		return unix.Pwrite(fd, content[done:], offset+int64(done))
	})
}
