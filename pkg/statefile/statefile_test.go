package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// newFile returns the file of an attachment in a directory that does not exist.
func newFile(t *testing.T) File {
	return File{Dir: filepath.Join(t.TempDir(), "a", "b"), Name: "state.json", Owner: types.Attachment{Network: "net", ContainerID: "c", IfName: "eth0"}}
}

// A count is a state that must not be negative.
type count struct{ N int }

func (c *count) Validate() error {
	if c.N < 0 {
		return errors.New("negative")
	}
	return nil
}

func TestLoad(t *testing.T) {
	f := newFile(t)
	if err := f.Load(&count{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before Save: %v", err)
	}
	var loaded count
	if err := errors.Join(f.Save(&count{7}), f.Load(&loaded)); err != nil || loaded.N != 7 {
		t.Errorf("loaded %v, %v", loaded, err)
	}
	for _, text := range []string{"{", "[]", `{"N":-1}`} {
		if err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := f.Load(&count{}); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestWriteReplacesWhatIsThere(t *testing.T) {
	f := newFile(t)
	if _, err := Read(f.Path()); !errors.Is(err, fs.ErrNotExist) {
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
		if got, err := Read(f.Path()); err != nil || string(got) != text {
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
	if _, err := Read(f.Path()); !errors.Is(err, ErrUnreadable) {
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

func TestReadOfAFileThatIsNotRegular(t *testing.T) {
	f := newFile(t)
	if err := os.MkdirAll(f.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(f.Path()); !errors.Is(err, ErrUnreadable) {
		t.Errorf("read a directory: %v", err)
	}
	if err := os.Remove(f.Path()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(f.Path(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(f.Path()); !errors.Is(err, ErrUnreadable) {
		t.Errorf("read a named pipe: %v", err)
	}
	below := File{Dir: f.Path(), Name: "x"}
	if _, err := Read(below.Path()); !errors.Is(err, ErrUnreadable) {
		t.Errorf("read below a file: %v", err)
	}
	if err := below.Remove(); err != nil {
		t.Errorf("remove below a file: %v", err)
	}
}

func TestReadAll(t *testing.T) {
	dir := t.TempDir()
	if err := ReadAll(nil, filepath.Join(dir, "none"), nil); err != nil {
		t.Errorf("a directory that does not exist: %v", err)
	}
	for _, name := range []string{"b.json", "a.json", "other", TempName(types.Attachment{Network: "net"})} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a.json", filepath.Join(dir, "link.json")); err != nil {
		t.Fatal(err)
	}
	var found []string
	err := ReadAll(nil, dir, func(path string, text []byte) { found = append(found, filepath.Base(path)+" "+string(text)) })
	if want := []string{"a.json a.json", "b.json b.json"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("%q, %v; want %q", found, err, want)
	}
	if err := ReadAll(nil, filepath.Join(dir, "other"), nil); types.AsError(err).Code != types.CodeIO {
		t.Errorf("a file instead of a directory: %v", err)
	}
}

func TestRemoveTemp(t *testing.T) {
	dir := t.TempDir()
	if err := RemoveTemp(nil, filepath.Join(dir, "none"), "net", nil); err != nil {
		t.Errorf("a directory that does not exist: %v", err)
	}
	killed, running := types.Attachment{Network: "net", ContainerID: "killed"}, types.Attachment{Network: "net", ContainerID: "running"}
	other := types.Attachment{Network: "net2", ContainerID: "killed"}
	for _, name := range []string{TempName(killed), TempName(running), TempName(other), "state.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTemp(nil, dir, "net", types.Set{running: true}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{TempName(killed): false, TempName(running): true, TempName(other): true, "state.json": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s exists: %t, want %t", name, err == nil, want)
		}
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
