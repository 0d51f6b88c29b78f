package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/plumb-cni/plumb/pkg/types"
)

// newFile returns the file of an attachment in a folder that does not exist yet.
func newFile(t *testing.T) File {
	return File{Dir: filepath.Join(t.TempDir(), "a", "b"), Name: "state.json", Owner: types.Attachment{Network: "net", ContainerID: "c", IfName: "eth0"}}
}

func TestWriteReplacesWhatIsThere(t *testing.T) {
	f := newFile(t)
	if _, err := f.Read(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before the first Write: %v", err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		if err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Read(); err != nil || string(got) != text {
			t.Fatalf("read %q, %v; want %q", got, err, text)
		}
		for _, path := range []string{f.Path(), f.temp()} { // the next Write finds links
			_ = os.Remove(path)
			if err := os.Symlink(outside, path); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, _ := os.ReadFile(outside); string(got) != "outside" {
		t.Errorf("Write followed a symbolic link: %q", got)
	}
	if _, err := f.Read(); !errors.Is(err, ErrUnreadable) {
		t.Errorf("read a symbolic link: %v", err)
	}
	for range 2 {
		if err := f.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := os.ReadDir(f.Dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestReadOfWhatIsNoRegularFile(t *testing.T) {
	f := newFile(t)
	if err := os.MkdirAll(f.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(); !errors.Is(err, ErrUnreadable) {
		t.Errorf("read a folder: %v", err)
	}
	if err := os.Remove(f.Path()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(f.Path(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(); !errors.Is(err, ErrUnreadable) {
		t.Errorf("read a named pipe: %v", err)
	}
	below := File{Dir: f.Path(), Name: "x"}
	if _, err := below.Read(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read below a file: %v", err)
	}
}

func TestTemporaryFilesOfANetwork(t *testing.T) {
	name := TempName(types.Attachment{Network: "net", ContainerID: "c", IfName: "eth0"})
	if !IsTempOf(name, "net") || IsTempOf(name, "net2") {
		t.Errorf("%s: of net %t, of net2 %t", name, IsTempOf(name, "net"), IsTempOf(name, "net2"))
	}
}

func TestCheckWritable(t *testing.T) {
	dir := t.TempDir()
	if err := CheckWritable(filepath.Join(dir, "not", "there")); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckWritable(file); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file: %v", err)
	}
	if err := CheckWritable("/proc/sys"); err == nil {
		t.Error("/proc/sys is writable")
	}
}
