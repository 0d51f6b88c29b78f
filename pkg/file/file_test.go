package file_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/plumb-cni/plumb/pkg/file"
	"github.com/plumb-cni/plumb/test/nstest"
	"golang.org/x/sys/unix"
)

// text is a content of which no two parts of a size are the same.
func text(size int) []byte {
	var b []byte
	for i := 0; len(b) < size; i++ {
		b = fmt.Appendf(b, "%d,", i)
	}
	return b[:size]
}

func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, path string, content []byte) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%s has %d bytes, not the %d that were written: %v", path, len(got), len(content), err)
	}
}

func open(t *testing.T, path string, flags int) int {
	t.Helper()
	fd, err := file.Open(file.Here, path, flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func TestReadAndHead(t *testing.T) {
	nstest.LeakCheck(t)
	dir := t.TempDir()
	folder := open(t, dir, unix.O_DIRECTORY)
	for _, size := range []int{0, 1, 511, 512, 513, 1024, 70000} {
		content := text(size)
		put(t, filepath.Join(dir, "a"), content)
		for from, path := range map[int]string{folder: "a", file.Here: filepath.Join(dir, "a")} {
			if got, err := file.Read(from, path, 0); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes of %s: have %d, %v", size, path, len(got), err)
			}
			for _, room := range []int{1, 512, 1 << 17} {
				got, err := file.Head(from, path, 0, make([]byte, room))
				if err != nil || !bytes.Equal(got, content[:min(size, room)]) {
					t.Errorf("%d of %d bytes of %s: have %d, %v", room, size, path, len(got), err)
				}
			}
		}
	}
}

// TestReadGoesOn: a read that gives less than there is room for is not the last.
func TestReadGoesOn(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_DIRECT); err != nil { // a read a write
		t.Fatal(err)
	}
	for _, part := range []string{"one ", "two ", "three"} {
		if err := file.Write(pipe[1], []byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	err := unix.Close(pipe[1])
	got, rerr := file.All(pipe[0])
	if err := errors.Join(err, rerr, unix.Close(pipe[0])); err != nil || string(got) != "one two three" {
		t.Errorf("have %q, %v", got, err)
	}
}

func TestWriteGoesOn(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	// A pipe that does not block takes what it has room for, and then nothing.
	if err := file.Write(pipe[1], text(200000)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a pipe that is full: %v", err)
	}
	room := make([]byte, 200000)
	n, err := unix.Read(pipe[0], room)
	if err := errors.Join(err, unix.Close(pipe[0]), unix.Close(pipe[1])); err != nil || n == 0 || !bytes.Equal(room[:n], text(n)) {
		t.Errorf("have %d bytes, %v", n, err)
	}
}

// TestWriteAfterSignal: a signal cuts a write short that waits for room.
func TestWriteAfterSignal(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	room, err := unix.FcntlInt(uintptr(pipe[0]), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		t.Fatal(err)
	}
	content, thread, written := text(2*room+5000), make(chan int), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		written <- errors.Join(file.Write(pipe[1], content), unix.Close(pipe[1]))
	}()
	tid := <-thread
	for full := 0; full < room; { // once it is, the writer waits or is about to
		if full, err = unix.IoctlGetInt(pipe[0], unix.TIOCINQ); err != nil {
			t.Fatal(err)
		}
	}
	err = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG) // which the runtime takes for one of its own
	got, rerr := file.All(pipe[0])
	if err := errors.Join(err, rerr, <-written, unix.Close(pipe[0])); err != nil || !bytes.Equal(got, content) {
		t.Errorf("have %d bytes, not the %d that were written: %v", len(got), len(content), err)
	}
}

// TestWriteAtGoesOn: a file that must not grow takes what it has room for, and no more.
func TestWriteAtGoesOn(t *testing.T) {
	fd, err := unix.MemfdCreate("sealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Ftruncate(fd, 1<<16)
	_, serr := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
	if err := errors.Join(err, serr); err != nil {
		t.Fatal(err)
	}
	werr, room := file.WriteAt(fd, text(70000), 0), make([]byte, 1<<16)
	if err := errors.Join(file.ReadAt(fd, room, 0), unix.Close(fd)); err != nil || !bytes.Equal(room, text(1<<16)) {
		t.Errorf("what was written is not what is there: %v", err)
	}
	if !errors.Is(werr, unix.EPERM) {
		t.Errorf("70000 bytes in room for %d: %v", len(room), werr)
	}
}

func TestWriteNew(t *testing.T) {
	nstest.LeakCheck(t)
	dir := t.TempDir()
	folder, path := open(t, dir, unix.O_DIRECTORY), filepath.Join(dir, "a")
	if err := file.WriteNew(folder, "a", text(70000)); err != nil {
		t.Fatal(err)
	}
	want(t, path, text(70000))
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := file.WriteNew(file.Here, path, text(3)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file that is there: %v", err)
	}
	if err := os.Symlink(filepath.Join(dir, "b"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := file.WriteNew(folder, "link", text(3)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a link to nothing: %v", err)
	}
	want(t, path, text(70000))
}

func TestAtOffsets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	fd := open(t, path, unix.O_RDWR|unix.O_CREAT)
	content := append(make([]byte, 4096), text(70000)...)
	if err := file.WriteAt(fd, content[4096:], 4096); err != nil {
		t.Fatal(err)
	}
	want(t, path, content)
	for _, part := range []struct{ offset, size int }{{0, 10}, {4000, 200}, {4096, 70000}, {len(content), 0}} {
		room := make([]byte, part.size)
		if err := file.ReadAt(fd, room, int64(part.offset)); err != nil || !bytes.Equal(room, content[part.offset:][:part.size]) {
			t.Errorf("%+v: %v", part, err)
		}
	}
	for _, offset := range []int{len(content) - 9, len(content), len(content) + 1} {
		if err := file.ReadAt(fd, make([]byte, 10), int64(offset)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("10 bytes at %d of %d: %v", offset, len(content), err)
		}
	}
}

func TestErrors(t *testing.T) {
	nstest.LeakCheck(t)
	dir := t.TempDir()
	plain, link, gone := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "gone", "a")
	put(t, plain, text(3))
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	read := func(path string, flags int) error { _, err := file.Read(file.Here, path, flags); return err }
	head := func(path string) error { _, err := file.Head(file.Here, path, 0, make([]byte, 9)); return err }
	for _, c := range []struct {
		what string
		err  error
		path string
		is   error
	}{
		{"read of nothing", read(gone, 0), gone, fs.ErrNotExist},
		{"head of nothing", head(gone), gone, fs.ErrNotExist},
		{"write in no folder", file.WriteNew(file.Here, gone, nil), gone, fs.ErrNotExist},
		{"read of a folder", read(dir, 0), dir, unix.EISDIR},
		{"head of a folder", head(dir), dir, unix.EISDIR},
		{"read through a link", read(link, unix.O_NOFOLLOW), link, unix.ELOOP},
		{"read below a file", read(plain+"/a", 0), plain + "/a", unix.ENOTDIR},
		{"a setting for writing", openError("/proc/sys/kernel/random/boot_id", unix.O_WRONLY), "/proc/sys/kernel/random/boot_id", fs.ErrPermission},
	} {
		var in *fs.PathError
		if !errors.Is(c.err, c.is) || !errors.As(c.err, &in) || in.Path != c.path {
			t.Errorf("%s: %v, want %v of %s", c.what, c.err, c.is, c.path)
		}
	}
	if err := read(link, 0); err != nil {
		t.Errorf("a link that may be followed: %v", err)
	}
	if err := file.Write(open(t, "/dev/full", unix.O_WRONLY), text(3)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	if err := file.WriteAt(open(t, "/dev/full", unix.O_WRONLY), text(3), 0); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk, at an offset: %v", err)
	}
}

func openError(path string, flags int) error {
	_, err := file.Open(file.Here, path, flags, 0)
	return err
}

func TestNothingIsInherited(t *testing.T) {
	flags, err := unix.FcntlInt(uintptr(open(t, t.TempDir(), unix.O_DIRECTORY)), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags of the descriptor %#x, %v", flags, err)
	}
}

func TestOpenRegular(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(unix.Mkfifo(dir+"/pipe", 0o600), os.WriteFile(dir+"/file", []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		dir + "/file": nil, dir + "/new": nil, dir + "/pipe": file.ErrNotRegular, dir: unix.EISDIR, "/dev/null": file.ErrNotRegular, dir + "/a/b": fs.ErrNotExist,
	} {
		for _, flags := range []int{unix.O_RDWR | unix.O_CREAT, unix.O_WRONLY | unix.O_CREAT} { // either end of a pipe, or both
			fd, err := file.OpenRegular(file.Here, path, flags, 0o600)
			if !errors.Is(err, want) || (err == nil) != (fd >= 0) {
				t.Errorf("%s: %d, %v, want %v", path, fd, err, want)
			}
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
	}
}

func TestLinkAndUnlink(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/a", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	folder, err := file.Open(file.Here, dir, unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(folder) }()
	if err := file.Link(dir+"/a", folder, "b", 0); err != nil {
		t.Error(err)
	}
	if err := file.Link(dir+"/a", folder, "b", 0); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	if err := errors.Join(file.Unlink(folder, "a"), file.Unlink(folder, "b")); err != nil {
		t.Error(err)
	}
	if err := file.Unlink(folder, "b"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
