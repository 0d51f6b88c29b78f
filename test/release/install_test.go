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

// install runs install.sh and returns its output.
func install(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(filepath.Join(nstest.Root(t), "scripts/install.sh"), args...).CombinedOutput()
	return string(out), err
}

// mustInstall runs install.sh, which must succeed.
func mustInstall(t *testing.T, args ...string) string {
	t.Helper()
	out, err := install(t, args...)
	if err != nil {
		t.Fatalf("install.sh %q: %v\n%s", args, err, out)
	}
	return out
}

// buildTwo returns two folders with two different loopback executables, which both work.
func buildTwo(t *testing.T) (one, other string) {
	t.Helper()
	one, other = t.TempDir(), t.TempDir()
	content, err := os.ReadFile(filepath.Join(nstest.Build(t, "loopback"), "loopback"))
	if err != nil {
		t.Fatal(err)
	}
	writeExecutable(t, filepath.Join(one, "loopback"), string(content))
	writeExecutable(t, filepath.Join(other, "loopback"), string(content)+"the other") // bytes after the sections of an ELF file are ignored
	return one, other
}

// writeExecutable writes an executable file.
func writeExecutable(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestInstallInUse checks that a plugin can be run while it is replaced 50 times, and that its file
// is always one of the two complete executables.
func TestInstallInUse(t *testing.T) {
	dir := t.TempDir()
	one, other := buildTwo(t)
	mustInstall(t, dir, "--from", one)
	path := filepath.Join(dir, "loopback")
	want := map[[sha256.Size]byte]bool{sha256Of(t, filepath.Join(one, "loopback")): true, sha256Of(t, filepath.Join(other, "loopback")): true}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var users sync.WaitGroup
	runs, seen := make([]int, 2), map[[sha256.Size]byte]bool{}
	for i := range runs {
		users.Go(func() {
			for ; ctx.Err() == nil; runs[i]++ {
				if output, err := exec.Command(path).CombinedOutput(); err != nil || !strings.HasPrefix(string(output), "CNI loopback plugin ") {
					t.Errorf("run %d of user %d: %v: %q", runs[i], i, err, output)
					return
				}
			}
		})
	}
	users.Go(func() {
		for ctx.Err() == nil {
			content, err := os.ReadFile(path)
			if sum := sha256.Sum256(content); err != nil || !want[sum] {
				t.Errorf("a file of %d bytes is neither of the two executables: %v", len(content), err)
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
		t.Errorf("the plugin ran %v times, and %d of the two executables were seen: the test shows nothing", runs, len(seen))
	}
	t.Logf("the plugin ran %v times while it was replaced 50 times", runs)
	if left := fileNames(t, dir); left != "loopback" {
		t.Errorf("the folder has %q", left)
	}
}

// sha256Of returns the checksum of a file.
func sha256Of(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(content)
}

// fileNames returns the names of the files in a folder.
func fileNames(t *testing.T, dir string) string {
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

// TestInstallAndRestore checks that --restore restores the folder after several installations,
// except for files that were added.
func TestInstallAndRestore(t *testing.T) {
	dir, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	one, other := buildTwo(t)
	for _, from := range []string{one, other} {
		writeExecutable(t, filepath.Join(from, "bridge"), "#!/bin/sh\n# "+from+"\n")
		writeExecutable(t, filepath.Join(from, "ptp"), "#!/bin/sh\n")
		if err := os.WriteFile(filepath.Join(from, "README.md"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	writeExecutable(t, filepath.Join(dir, "cni"), "multicall")
	writeExecutable(t, filepath.Join(dir, "loopback"), "reference")
	if err := os.Symlink("cni", filepath.Join(dir, "bridge")); err != nil {
		t.Fatal(err)
	}
	before := nstest.SnapshotDir(t, dir)

	output := mustInstall(t, dir, "--from", one, "--backup", backup)
	for _, want := range []string{"bridge       replaced", "loopback     replaced", "ptp          added", "--restore " + backup} {
		if !strings.Contains(output, want) {
			t.Errorf("the output does not contain %q: %s", want, output)
		}
	}
	mustInstall(t, dir, "--from", other, "--backup", backup)
	if got := fileNames(t, dir); got != "bridge cni loopback ptp" {
		t.Errorf("the folder has %q", got)
	}
	for _, name := range []string{"bridge", "loopback", "ptp"} {
		if sha256Of(t, filepath.Join(dir, name)) != sha256Of(t, filepath.Join(other, name)) {
			t.Errorf("%s is not that of the second installation", name)
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "bridge")); err != nil || info.Mode() != 0o755 {
		t.Errorf("bridge is %v (%v), want a file of mode 755", info.Mode(), err)
	}

	output = mustInstall(t, dir, "--restore", backup)
	if !strings.Contains(output, "ptp stays") {
		t.Errorf("the output does not say that ptp stays: %s", output)
	}
	if err := os.Remove(filepath.Join(dir, "ptp")); err != nil {
		t.Error(err)
	}
	if diff := nstest.Compare(before, nstest.SnapshotDir(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestRestoreOfFirstInstallation checks that --restore succeeds after an installation into an empty
// folder, and that the command that it prints empties the folder again.
func TestRestoreOfFirstInstallation(t *testing.T) {
	dir, backup, from := filepath.Join(t.TempDir(), "a folder"), filepath.Join(t.TempDir(), "backup"), t.TempDir()
	for _, name := range []string{"bridge", "ptp"} {
		writeExecutable(t, filepath.Join(from, name), "#!/bin/sh\n")
	}
	mustInstall(t, dir, "--create", "--from", from, "--backup", backup)
	output := mustInstall(t, dir, "--restore", backup)
	if !strings.Contains(output, "ptp stays") || !strings.Contains(output, "0 plugins are restored") {
		t.Errorf("the output does not say that nothing is restored and that ptp stays: %s", output)
	}
	_, command, _ := strings.Cut(output, "any more: ")
	if out, err := exec.Command("bash", "-c", command).CombinedOutput(); err != nil {
		t.Errorf("%q: %v: %s", command, err, out)
	}
	if left := fileNames(t, dir); left != "" {
		t.Errorf("the folder still has %q", left)
	}
	mustInstall(t, dir, "--restore", backup)
	if out, err := install(t, dir, "--restore", t.TempDir()); err == nil || !strings.Contains(out, "no executables to restore") {
		t.Errorf("the restore from an empty folder: %v: %s", err, out)
	}
}

// TestInstallRestartsTheDaemon checks that the daemon of dhcp is restarted if dhcp is installed or restored
// and systemd runs the daemon. A script stands for systemctl.
func TestInstallRestartsTheDaemon(t *testing.T) {
	bin, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("CALLS", calls)
	from := t.TempDir()
	writeExecutable(t, filepath.Join(from, "dhcp"), "#!/bin/sh\n")
	for _, c := range []struct{ name, systemctl, want string }{
		{"runs", "true", "is-active --quiet cni-dhcp.service\nrestart cni-dhcp.service\n"},
		{"does not run", "[ $1 != is-active ]", "is-active --quiet cni-dhcp.service\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			writeExecutable(t, filepath.Join(bin, "systemctl"), "#!/bin/sh\necho \"$*\" >>\"$CALLS\"\n"+c.systemctl+"\n")
			dir, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
			writeExecutable(t, filepath.Join(dir, "dhcp"), "#!/bin/sh\n# before\n")
			for _, args := range [][]string{{dir, "--from", from, "--backup", backup}, {dir, "--restore", backup}} {
				mustInstall(t, args...)
				got, err := os.ReadFile(calls)
				if err != nil || string(got) != c.want {
					t.Errorf("%q: systemctl was called with %q, %v; want %q", args, got, err, c.want)
				}
				if err := os.Remove(calls); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	one, _ := buildTwo(t)
	mustInstall(t, t.TempDir(), "--from", one)
	if _, err := os.Stat(calls); err == nil {
		t.Error("systemctl was called without dhcp")
	}
	writeExecutable(t, filepath.Join(bin, "systemctl"), "#!/bin/sh\n[ $1 != restart ]\n")
	if out, err := install(t, t.TempDir(), "--from", from); err == nil || !strings.Contains(out, "cni-dhcp.service could not be restarted") {
		t.Errorf("a restart that fails: %v\n%s", err, out)
	}
}

// TestInstallRefuses checks that invalid arguments are refused before a file is replaced.
func TestInstallRefuses(t *testing.T) {
	good, _ := buildTwo(t)
	foreign, empty := t.TempDir(), t.TempDir()
	writeExecutable(t, filepath.Join(foreign, "loopback"), foreignELF(t, filepath.Join(good, "loopback")))
	writeExecutable(t, filepath.Join(foreign, "a"), "#!/bin/sh\n")
	for _, c := range []struct {
		name string
		args []string // after the folder
		want string
	}{
		{"a folder that does not exist", []string{"/nope", "--from", good}, "no folder /nope: --create makes it"},
		{"nothing to install", []string{"DIR", "--from", empty}, "no executables in"},
		{"a source that does not exist", []string{"DIR", "--from", "/nope"}, "no folder /nope"},
		{"another architecture", []string{"DIR", "--from", foreign}, "does not run on this machine"},
		{"an empty backup", []string{"DIR", "--restore", empty}, "no executables to restore in"},
		{"a flag without a folder", []string{"DIR", "--from"}, "--from needs a folder"},
		{"an unknown flag", []string{"DIR", "--force"}, "unknown argument --force"},
		{"no folder", nil, "which folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			writeExecutable(t, filepath.Join(dir, "loopback"), "old")
			before := nstest.SnapshotDir(t, dir)
			for i := range c.args {
				c.args[i] = strings.Replace(c.args[i], "DIR", dir, 1)
			}
			if output, err := install(t, c.args...); err == nil || !strings.Contains(output, c.want) {
				t.Errorf("%v: %s; want %q", err, output, c.want)
			}
			if diff := nstest.Compare(before, nstest.SnapshotDir(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
	created := filepath.Join(t.TempDir(), "opt/cni/bin")
	mustInstall(t, created, "--from", good, "--create")
	if got := fileNames(t, created); got != "loopback" {
		t.Errorf("the folder of --create has %q", got)
	}
}

// foreignELF returns the executable with another architecture in its ELF header.
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
