package release

import (
	"context"
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/plumb-cni/plumb/test/nstest"
)

// install runs the script and gives all that it said.
func install(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(filepath.Join(nstest.Root(t), "scripts/install.sh"), args...).CombinedOutput()
	return string(out), err
}

func mustInstall(t *testing.T, args ...string) string {
	t.Helper()
	out, err := install(t, args...)
	if err != nil {
		t.Fatalf("install.sh %q: %v\n%s", args, err, out)
	}
	return out
}

// builds gives two folders with one loopback each, which differ and both work.
func builds(t *testing.T) (one, other string) {
	t.Helper()
	one, other = t.TempDir(), t.TempDir()
	content, err := os.ReadFile(filepath.Join(nstest.Build(t, "loopback"), "loopback"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(one, "loopback"), string(content))
	write(t, filepath.Join(other, "loopback"), string(content)+"the other") // what follows an ELF file's sections is not read
	return one, other
}

// write writes an executable.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestInstallInUse: while the plugin is replaced 50 times it can always be run, and
// what is there is one of the two, whole.
func TestInstallInUse(t *testing.T) {
	dir := t.TempDir()
	one, other := builds(t)
	mustInstall(t, dir, "--from", one)
	path := filepath.Join(dir, "loopback")
	want := map[[sha256.Size]byte]bool{digest(t, filepath.Join(one, "loopback")): true, digest(t, filepath.Join(other, "loopback")): true}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var users sync.WaitGroup
	runs, seen := make([]int, 2), map[[sha256.Size]byte]bool{}
	for i := range runs {
		users.Go(func() {
			for ; ctx.Err() == nil; runs[i]++ {
				if said, err := exec.Command(path).CombinedOutput(); err != nil || !strings.HasPrefix(string(said), "CNI loopback plugin ") {
					t.Errorf("run %d of user %d: %v: %q", runs[i], i, err, said)
					return
				}
			}
		})
	}
	users.Go(func() {
		for ctx.Err() == nil {
			content, err := os.ReadFile(path)
			if sum := sha256.Sum256(content); err != nil || !want[sum] {
				t.Errorf("a file of %d bytes that is neither of the two: %v", len(content), err)
				return
			} else {
				seen[sum] = true
			}
		}
	})
	for i := range 50 {
		mustInstall(t, dir, "--from", []string{other, one}[i%2])
	}
	cancel()
	users.Wait()
	if runs[0]*runs[1] == 0 || len(seen) != 2 {
		t.Errorf("the plugin was run %v times, %d of the two were seen: that shows nothing", runs, len(seen))
	}
	t.Logf("run %v times while it was replaced 50 times", runs)
	if left := list(t, dir); left != "loopback" {
		t.Errorf("the folder has %q", left)
	}
}

func digest(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(content)
}

func list(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestInstallAndBack: --restore makes the folder what it was before the first of
// several installations, however each file stood there.
func TestInstallAndBack(t *testing.T) {
	dir, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	one, other := builds(t)
	for _, from := range []string{one, other} {
		write(t, filepath.Join(from, "bridge"), "#!/bin/sh\n# "+from+"\n")
		write(t, filepath.Join(from, "ptp"), "#!/bin/sh\n")
		if err := os.WriteFile(filepath.Join(from, "README.md"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "cni"), "multicall")
	write(t, filepath.Join(dir, "loopback"), "reference")
	if err := os.Symlink("cni", filepath.Join(dir, "bridge")); err != nil {
		t.Fatal(err)
	}
	before := nstest.SnapshotDir(t, dir)

	said := mustInstall(t, dir, "--from", one, "--backup", backup)
	for _, want := range []string{"bridge       replaced", "loopback     replaced", "ptp          added", "--restore " + backup} {
		if !strings.Contains(said, want) {
			t.Errorf("install.sh does not say %q: %s", want, said)
		}
	}
	mustInstall(t, dir, "--from", other, "--backup", backup)
	if got := list(t, dir); got != "bridge cni loopback ptp" {
		t.Errorf("the folder has %q", got)
	}
	for _, name := range []string{"bridge", "loopback", "ptp"} {
		if digest(t, filepath.Join(dir, name)) != digest(t, filepath.Join(other, name)) {
			t.Errorf("%s is not that of the second installation", name)
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "bridge")); err != nil || info.Mode() != 0o755 {
		t.Errorf("bridge is %v (%v), want a file of mode 755", info.Mode(), err)
	}

	said = mustInstall(t, dir, "--restore", backup)
	if !strings.Contains(said, "ptp stays") {
		t.Errorf("install.sh does not say that ptp stays: %s", said)
	}
	if err := os.Remove(filepath.Join(dir, "ptp")); err != nil {
		t.Error(err)
	}
	if diff := nstest.Compare(before, nstest.SnapshotDir(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestInstallRefuses: what cannot be right is refused before anything is replaced.
func TestInstallRefuses(t *testing.T) {
	good, _ := builds(t)
	foreign, empty := t.TempDir(), t.TempDir()
	write(t, filepath.Join(foreign, "loopback"), foreignELF(t, filepath.Join(good, "loopback")))
	write(t, filepath.Join(foreign, "a"), "#!/bin/sh\n")
	for _, c := range []struct {
		name string
		args []string // after the folder
		want string
	}{
		{"a folder that does not exist", []string{"/nope", "--from", good}, "no folder /nope: --create makes it"},
		{"nothing to install", []string{"DIR", "--from", empty}, "no executables in"},
		{"nowhere to take it from", []string{"DIR", "--from", "/nope"}, "no folder /nope"},
		{"another architecture", []string{"DIR", "--from", foreign}, "does not run on this machine"},
		{"nothing kept", []string{"DIR", "--restore", empty}, "nothing is kept in"},
		{"a flag without its folder", []string{"DIR", "--from"}, "--from needs a folder"},
		{"an unknown flag", []string{"DIR", "--force"}, "unknown argument --force"},
		{"no folder", nil, "which folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "loopback"), "old")
			before := nstest.SnapshotDir(t, dir)
			for i := range c.args {
				c.args[i] = strings.Replace(c.args[i], "DIR", dir, 1)
			}
			if said, err := install(t, c.args...); err == nil || !strings.Contains(said, c.want) {
				t.Errorf("%v: %s; want %q", err, said, c.want)
			}
			if diff := nstest.Compare(before, nstest.SnapshotDir(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
	made := filepath.Join(t.TempDir(), "opt/cni/bin")
	mustInstall(t, made, "--from", good, "--create")
	if got := list(t, made); got != "loopback" {
		t.Errorf("the folder that --create made has %q", got)
	}
}

// foreignELF is the executable with the machine of another architecture in its header.
func foreignELF(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const machine = 18 // e_machine, two bytes
	other := byte(0xb7)
	if runtime.GOARCH == "arm64" {
		other = 0x3e
	}
	content[machine], content[machine+1] = other, 0
	return string(content)
}
