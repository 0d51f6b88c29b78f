package hostfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/plumb-cni/plumb/v2/test/nstest/sandbox"
	"golang.org/x/sys/unix"
)

// kinds maps a kind of file to a function that creates one at a path.
var kinds = map[string]func(t *testing.T, path string) error{
	"directory":  func(_ *testing.T, path string) error { return os.Mkdir(path, 0o700) },
	"named pipe": func(_ *testing.T, path string) error { return unix.Mkfifo(path, 0o600) },
	"socket": func(t *testing.T, path string) error {
		l, err := net.Listen("unix", path)
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	},
	"endless device": func(_ *testing.T, path string) error { return os.Symlink("/dev/zero", path) },
	"empty device":   func(_ *testing.T, path string) error { return os.Symlink("/dev/null", path) },
	"symbolic link":  func(_ *testing.T, path string) error { return os.Symlink("/proc/version", path) },
	"large file": func(_ *testing.T, path string) error {
		return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, MaxSize+1))
	},
	"regular file":     func(_ *testing.T, path string) error { return os.WriteFile(path, []byte("text"), 0o600) },
	"dangling symlink": func(_ *testing.T, path string) error { return os.Symlink("/nonexistent", path) },
}

func TestKindsOfFiles(t *testing.T) {
	for name, want := range map[string]struct{ read, noFollow, config, write error }{
		"directory":        {ErrNotRegular, ErrNotRegular, ErrNotRegular, ErrNotRegular},
		"named pipe":       {ErrNotRegular, ErrNotRegular, ErrNotRegular, ErrNotRegular},
		"socket":           {ErrNotRegular, ErrNotRegular, ErrNotRegular, ErrNotRegular},
		"endless device":   {ErrNotRegular, ErrSymbolicLink, ErrTooLarge, ErrSymbolicLink},
		"empty device":     {ErrNotRegular, ErrSymbolicLink, nil, ErrSymbolicLink},
		"symbolic link":    {nil, ErrSymbolicLink, nil, ErrSymbolicLink},
		"large file":       {ErrTooLarge, ErrTooLarge, ErrTooLarge, nil},
		"regular file":     {nil, nil, nil, nil},
		"dangling symlink": {fs.ErrNotExist, ErrSymbolicLink, fs.ErrNotExist, ErrSymbolicLink},
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := kinds[name](t, path); err != nil {
			t.Fatal(err)
		}
		check := func(what string, err, want error) {
			t.Helper()
			var withPath *fs.PathError
			if !errors.Is(err, want) || err != nil && (!errors.As(err, &withPath) || withPath.Path != path) {
				t.Errorf("%s %s: %v, want %v", what, name, err, want)
			}
		}
		_, err := Read(path, 0)
		check("read", err, want.read)
		if err != nil && strings.Contains(err.Error(), "remove") {
			t.Errorf("an administrator's %s: %v", name, err)
		}
		_, err = Read(path, unix.O_NOFOLLOW)
		check("read without following", err, want.noFollow)
		_, err = ReadConfig(path, 1<<20)
		check("read as configuration", err, want.config)
		check("write", Write(path, []byte("new"), 0o600), want.write)
		if text, err := Read(path, unix.O_NOFOLLOW); want.write == nil && string(text) != "new" {
			t.Errorf("%s after Write: %q, %v", name, text, err)
		}
	}
}

func TestMkdirAll(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]fs.FileMode{filepath.Join(dir, "a/b"): 0o755, "/run/user/4711/cni": 0o700} {
		if err := MkdirAll(path); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info, err, want)
		}
	}
	if err := os.RemoveAll("/run/user/4711"); err != nil {
		t.Error(err)
	}
}

func TestInRunOfRoot(t *testing.T) {
	for _, path := range []string{"/run/cni/x", "/run/cni", "/tmp/x", "/proc/x", "relative"} {
		if got := InRun(path); got != path {
			t.Errorf("%s: %q", path, got)
		}
	}
}
