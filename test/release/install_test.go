package release

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/renameio/v2"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func install(t *testing.T, args ...string) (string, error) {
	t.Helper()
	plumb := filepath.Join(nstest.Build(t, "plumb"), "plumb")
	out, err := exec.Command(plumb, append([]string{"install"}, args...)...).CombinedOutput()
	return string(out), err
}

func mustInstall(t *testing.T, args ...string) string {
	t.Helper()
	out, err := install(t, args...)
	if err != nil {
		t.Fatalf("plumb install %q: %v\n%s", args, err, out)
	}
	return out
}

// buildTwo returns two directories with different executables loopback that both work.
func buildTwo(t *testing.T) (one, other string) {
	t.Helper()
	one, other = t.TempDir(), t.TempDir()
	content := nstest.ReadFile(t, filepath.Join(nstest.Build(t, "loopback"), "loopback"))
	writeExecutable(t, filepath.Join(one, "loopback"), content)
	writeExecutable(t, filepath.Join(other, "loopback"), content+"the other") // the kernel ignores bytes after the sections of an ELF file
	return one, other
}

func writeExecutable(t *testing.T, path, content string) {
	t.Helper()
	nstest.Must(t, os.WriteFile(path, []byte(content), 0o755))
}

// TestInstallInUse checks that a plugin can run while it is replaced 50 times, and that its file always contains one of
// the two complete executables.
func TestInstallInUse(t *testing.T) {
	dir := t.TempDir()
	one, other := buildTwo(t)
	mustInstall(t, "--to", dir, "--from", one)
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
					t.Errorf("run %d of goroutine %d: %v: %q", runs[i], i, err, output)
					return
				}
			}
		})
	}
	users.Go(func() {
		for ctx.Err() == nil {
			content, err := os.ReadFile(path)
			if sum := sha256.Sum256(content); err != nil || !want[sum] {
				t.Errorf("a file of %d bytes differs from both executables: %v", len(content), err)
				return
			} else {
				seen[sum] = true
			}
		}
	})
	for i := range 50 {
		mustInstall(t, "--to", dir, "--from", []string{other, one}[i%2])
	}
	cancel()
	users.Wait()
	if runs[0]*runs[1] == 0 || len(seen) != 2 {
		t.Errorf("the plugin ran %v times, and %d of the two executables were seen, which proves nothing", runs, len(seen))
	}
	t.Logf("the plugin ran %v times while it was replaced 50 times", runs)
	if left := fileNames(t, dir); left != "loopback" {
		t.Errorf("want only loopback, got %q", left)
	}
}

func sha256Of(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	content, err := os.ReadFile(path)
	nstest.Must(t, err)
	return sha256.Sum256(content)
}

func fileNames(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	nstest.Must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestInstallAndRestore checks that --restore restores the directory after several installations,
// except for files that were added.
func TestInstallAndRestore(t *testing.T) {
	dir, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	one, other := buildTwo(t)
	for _, from := range []string{one, other} {
		writeExecutable(t, filepath.Join(from, "bridge"), "#!/bin/sh\n# "+from+"\n")
		writeExecutable(t, filepath.Join(from, "ptp"), "#!/bin/sh\n")
		nstest.Must(t, os.WriteFile(filepath.Join(from, "README.md"), nil, 0o644))
	}
	writeExecutable(t, filepath.Join(dir, "cni"), "#!/bin/sh\n# multicall\n")
	writeExecutable(t, filepath.Join(dir, "loopback"), "#!/bin/sh\nexit 1 # without CNI_COMMAND\n")
	nstest.Must(t, os.Symlink("cni", filepath.Join(dir, "bridge")))
	before := nstest.SnapshotDir(t, dir)

	output := mustInstall(t, "--to", dir, "--from", one, "--backup", backup)
	for _, want := range []string{"bridge                   replaced", "loopback                 replaced", "ptp                      added", "--restore " + backup} {
		if !strings.Contains(output, want) {
			t.Errorf("the output does not contain %q: %s", want, output)
		}
	}
	mustInstall(t, "--to", dir, "--from", other, "--backup", backup)
	if got := fileNames(t, dir); got != "bridge cni loopback ptp" {
		t.Errorf("want %q, got %q", "bridge cni loopback ptp", got)
	}
	for _, name := range []string{"bridge", "loopback", "ptp"} {
		if sha256Of(t, filepath.Join(dir, name)) != sha256Of(t, filepath.Join(other, name)) {
			t.Errorf("%s is not from the second installation", name)
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "bridge")); err != nil || info.Mode() != 0o755 {
		t.Errorf("want a file of mode 755, got %v (%v) for bridge", info.Mode(), err)
	}

	output = mustInstall(t, "--to", dir, "--restore", backup)
	if !strings.Contains(output, "ptp                      stays") {
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
// directory, and that the command that it prints empties the directory again.
func TestRestoreOfFirstInstallation(t *testing.T) {
	dir, backup, from := filepath.Join(t.TempDir(), "a directory"), filepath.Join(t.TempDir(), "backup"), t.TempDir()
	for _, name := range []string{"bridge", "ptp"} {
		writeExecutable(t, filepath.Join(from, name), "#!/bin/sh\n")
	}
	output := mustInstall(t, "--to", dir, "--create", "--from", from, "--backup", backup)
	if strings.Contains(output, "To restore") {
		t.Errorf("want no command to restore files, because all were added, got %s", output)
	}
	output = mustInstall(t, "--to", dir, "--restore", backup)
	if !strings.Contains(output, "ptp                      stays") || !strings.Contains(output, "restored in "+dir+": 0") {
		t.Errorf("the output does not say that nothing is restored and that ptp stays: %s", output)
	}
	_, command, _ := strings.Cut(output, "remove them later: ")
	if out, err := exec.Command("bash", "-c", command).CombinedOutput(); err != nil {
		t.Errorf("%q: %v: %s", command, err, out)
	}
	if left := fileNames(t, dir); left != "" {
		t.Errorf("the directory still contains %q", left)
	}
	mustInstall(t, "--to", dir, "--restore", backup)
	if out, err := install(t, "--to", dir, "--restore", t.TempDir()); err == nil || !strings.Contains(out, "no executables to restore") {
		t.Errorf("the restore from an empty directory: %v: %s", err, out)
	}
}

// TestRestoreTriesFiles checks that --restore restores nothing if the backup contains a file that cannot be a plugin or a
// configuration.
func TestRestoreTriesFiles(t *testing.T) {
	for name, text := range map[string]string{"ptp": "", "tap": "\x7fELF for another machine", "net.d/10-pods.conflist": "{"} {
		dir, confs, backup, from := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "backup"), t.TempDir()
		writeExecutable(t, filepath.Join(from, "bridge"), "#!/bin/sh\n")
		writeExecutable(t, filepath.Join(dir, "bridge"), "#!/missing/interpreter\n")
		mustInstall(t, "--to", dir, "--from", from, "--backup", backup)
		nstest.Must(t, os.MkdirAll(filepath.Join(backup, "net.d"), 0o755))
		bad := filepath.Join(backup, name)
		writeExecutable(t, bad, text)
		before := nstest.SnapshotDir(t, dir) + nstest.SnapshotDir(t, confs)
		out, err := install(t, "--to", dir, "--conf-dir", confs, "--restore", backup)
		if err == nil || !strings.Contains(out, bad+": ") || !strings.Contains(out, "nothing was restored; remove the file from the backup") {
			t.Errorf("the restore of %s: %v: %s", name, err, out)
		}
		if diff := nstest.Compare(before, nstest.SnapshotDir(t, dir)+nstest.SnapshotDir(t, confs)); diff != "" {
			t.Error(diff)
		}
		nstest.Must(t, os.Remove(bad))
		mustInstall(t, "--to", dir, "--conf-dir", confs, "--restore", backup)
	}
}

// TestInstallModes checks that installed plugins are executable even if the replaced files were not, and that install
// names a plugin that is not executable.
func TestInstallModes(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{"bridge": "#!/bin/sh\n", "ptp": "another"} {
		writeExecutable(t, filepath.Join(from, name), "#!/bin/sh\n")
		nstest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	nstest.Must(t, os.WriteFile(filepath.Join(from, "tap"), nil, 0o644))
	output := mustInstall(t, "--to", dir, "--from", from)
	if want := filepath.Join(from, "tap") + " was skipped, because it is not executable. "; !strings.Contains(output, "installed in "+dir+": 2\n"+want) {
		t.Errorf("the output does not contain %q: %s", want, output)
	}
	if output := mustInstall(t, "--to", dir, "--from", from); !strings.Contains(output, ": 0, unchanged: 2\n") {
		t.Errorf("the second installation: %s", output)
	}
	for _, name := range []string{"bridge", "ptp"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o755 {
			t.Errorf("%s: want mode 755, got %v (%v)", name, info.Mode(), err)
		}
	}
}

// TestInstallRestartsTheDaemon checks that an installation or a restore of dhcp restarts the daemon if systemd runs it.
// A script replaces systemctl.
func TestInstallRestartsTheDaemon(t *testing.T) {
	bin, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("CALLS", calls)
	from := t.TempDir()
	writeExecutable(t, filepath.Join(from, "dhcp"), "#!/bin/sh\n")
	for _, c := range []struct{ name, systemctl, want string }{
		{"runs", "[ $1$3 != is-activeplumb-dhcp.service ]",
			"is-active --quiet cni-dhcp.service\nrestart cni-dhcp.service\nis-active --quiet plumb-dhcp.service\n"},
		{"runs from a package", "[ $1$3 != is-activecni-dhcp.service ]",
			"is-active --quiet cni-dhcp.service\nis-active --quiet plumb-dhcp.service\nrestart plumb-dhcp.service\n"},
		{"does not run", "[ $1 != is-active ]", "is-active --quiet cni-dhcp.service\nis-active --quiet plumb-dhcp.service\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			writeExecutable(t, filepath.Join(bin, "systemctl"), "#!/bin/sh\necho \"$*\" >>\"$CALLS\"\n"+c.systemctl+"\n")
			dir, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
			writeExecutable(t, filepath.Join(dir, "dhcp"), "#!/bin/sh\n# before\n")
			for _, args := range [][]string{{"--to", dir, "--from", from, "--backup", backup}, {"--to", dir, "--restore", backup}} {
				mustInstall(t, args...)
				got, err := os.ReadFile(calls)
				if err != nil || string(got) != c.want {
					t.Errorf("%q: want the calls of systemctl %q, got %q, %v", args, c.want, got, err)
				}
				nstest.Must(t, os.Remove(calls))
			}
		})
	}
	one, _ := buildTwo(t)
	mustInstall(t, "--to", t.TempDir(), "--from", one)
	if _, err := os.Stat(calls); err == nil {
		t.Error("systemctl was called without dhcp")
	}
	writeExecutable(t, filepath.Join(bin, "systemctl"), "#!/bin/sh\n[ $1 != restart ]\n")
	if out, err := install(t, "--to", t.TempDir(), "--from", from); err == nil || !strings.Contains(out, "restart cni-dhcp.service: ") {
		t.Errorf("want an error of the restart, got %v\n%s", err, out)
	}
}

// TestInstallRefuses checks that plumb rejects invalid arguments before it replaces a file.
func TestInstallRefuses(t *testing.T) {
	good, _ := buildTwo(t)
	foreign, empty := t.TempDir(), t.TempDir()
	writeExecutable(t, filepath.Join(foreign, "loopback"), foreignELF(t, filepath.Join(good, "loopback")))
	writeExecutable(t, filepath.Join(foreign, "a"), "#!/bin/sh\n")
	bad := filepath.Join(t.TempDir(), "10-bad.conflist")
	nstest.Must(t, os.WriteFile(bad, []byte("{"), 0o644))
	pipe := filepath.Join(t.TempDir(), "10-pipe.conflist")
	nstest.Must(t, syscall.Mkfifo(pipe, 0o644))
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"a directory that does not exist", []string{"--to", "/nope", "--from", good}, "no directory /nope; --create creates it"},
		{"nothing to install", []string{"--to", "DIR", "--from", empty}, "no executables in"},
		{"a source that does not exist", []string{"--to", "DIR", "--from", "/nope"}, "no directory /nope"},
		{"another architecture", []string{"--to", "DIR", "--from", foreign}, "does not run on this machine"},
		{"an empty backup", []string{"--to", "DIR", "--restore", empty}, "no executables to restore in"},
		{"a backup that does not exist", []string{"--to", "DIR", "--restore", "/nope"}, "no directory /nope; name the directory of the backup with --restore"},
		{"a backup in the directory itself", []string{"--to", "DIR", "--from", good, "--backup", "DIR"}, "--backup must not be"},
		{"a configuration that is not JSON", []string{"--to", "DIR", "--from", good, "--conf-dir", "DIR", "--conf", bad}, "error parsing configuration"},
		{"a configuration that no runtime would read", []string{"--to", "DIR", "--from", good, "--conf-dir", "DIR", "--conf", filepath.Join(good, "loopback")}, "runtimes read only files *.conflist, *.conf and *.json"},
		{"a configuration that is a pipe", []string{"--to", "DIR", "--from", good, "--conf-dir", "DIR", "--conf", pipe}, "not a regular file"},
		{"no time for a plugin", []string{"--to", "DIR", "--from", good, "--timeout", "0s"}, "--timeout must be positive"},
		{"a configuration without a directory", []string{"--to", "DIR", "--from", good, "--conf", bad}, "--conf needs --conf-dir"},
		{"a restore of some plugins", []string{"--to", "DIR", "--restore", empty, "--only", "bridge"}, "leave out --from, --only"},
		{"an unknown format", []string{"--to", "DIR", "--from", good, "-o", "yaml"}, "want text or json"},
		{"a flag without a directory", []string{"--to", "DIR", "--from"}, "flag needs an argument: --from"},
		{"an unknown flag", []string{"--to", "DIR", "--force"}, "unknown flag: --force"},
		{"no directory", nil, "--to is required"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			writeExecutable(t, filepath.Join(dir, "loopback"), "old")
			before := nstest.SnapshotDir(t, dir)
			for i := range c.args {
				if c.args[i] == "DIR" {
					c.args[i] = dir
				}
			}
			if output, err := install(t, c.args...); err == nil || !strings.Contains(output, c.want) {
				t.Errorf("want %q, got %v: %s", c.want, err, output)
			}
			if diff := nstest.Compare(before, nstest.SnapshotDir(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
	created := filepath.Join(t.TempDir(), "opt/cni/bin")
	mustInstall(t, "--to", created, "--from", good, "--create")
	if got := fileNames(t, created); got != "loopback" {
		t.Errorf("directory of --create: want loopback, got %q", got)
	}
}

// foreignELF returns the executable with another architecture in its ELF header.
func foreignELF(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	nstest.Must(t, err)
	const machine = 18 // e_machine, two bytes
	other := byte(0xb7)
	if runtime.GOARCH == "arm64" {
		other = 0x3e
	}
	content[machine], content[machine+1] = other, 0
	return string(content)
}

// TestInstallLeavesEqualFilesAlone checks that a second installation changes no file, and that --only restricts the
// installation to the named executables. plumb itself is installed only if --only names it.
func TestInstallLeavesEqualFilesAlone(t *testing.T) {
	from, dir := t.TempDir(), t.TempDir()
	for _, name := range []string{"bridge", "dhcp", "plumb", "ptp"} {
		writeExecutable(t, filepath.Join(from, name), "#!/bin/sh\n# "+name+"\n")
	}
	mustInstall(t, "--to", dir, "--from", from, "--only", "bridge,plumb")
	if got := fileNames(t, dir); got != "bridge plumb" {
		t.Errorf("want bridge and plumb, got %q", got)
	}
	before := modificationTime(t, filepath.Join(dir, "bridge"))
	output := mustInstall(t, "--to", dir, "--from", from, "-o", "json")
	var report struct {
		Executables                       []struct{ Path, Action string }
		Configurations, Restarted, Advice []any
	}
	if err := json.Unmarshal([]byte(output), &report); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	want := []struct{ Path, Action string }{{dir + "/bridge", "unchanged"}, {dir + "/dhcp", "added"}, {dir + "/ptp", "added"}}
	if !slices.Equal(report.Executables, want) || report.Configurations == nil || report.Restarted == nil || report.Advice == nil {
		t.Errorf("unexpected report %s", output)
	}
	if output := mustInstall(t, "--to", dir, "--from", from); !strings.HasSuffix(output, "\nExecutables installed in "+dir+": 0, unchanged: 3\n") {
		t.Errorf("unexpected output of an installation without changes: %q", output)
	}
	if output, err := install(t, "--to", dir, "--from", from, "--only", "nosuch"); err == nil || !strings.Contains(output, `--only nosuch: no such executable in `) || !strings.Contains(output, "which contains bridge, dhcp, ptp\n") {
		t.Errorf("--only nosuch: want an error with the existing plugins, got %v: %s", err, output)
	}
	if after := modificationTime(t, filepath.Join(dir, "bridge")); !after.Equal(before) {
		t.Error("bridge was replaced again")
	}
}

func modificationTime(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	nstest.Must(t, err)
	return info.ModTime()
}

// TestInstallTakesThePluginsBesidePlumb checks the default of --from, which is the directory of plumb if it contains
// plugins.
func TestInstallTakesThePluginsBesidePlumb(t *testing.T) {
	from, dir := t.TempDir(), t.TempDir()
	plumb := filepath.Join(from, "plumb")
	run(t, from, nil, "cp", filepath.Join(nstest.Build(t, "plumb"), "plumb"), plumb)
	writeExecutable(t, filepath.Join(from, "reboot"), "#!/bin/sh\n")
	if out, err := exec.Command(plumb, "install", "--to", dir).CombinedOutput(); err == nil || !strings.Contains(string(out), "no plugins in "+from) {
		t.Errorf("want an error without plugins in plumb's directory, got %v: %s", err, out)
	}
	writeExecutable(t, filepath.Join(from, "loopback"), "#!/bin/sh\n")
	run(t, dir, nil, plumb, "install", "--to", dir)
	if got := fileNames(t, dir); got != "loopback reboot" {
		t.Errorf("want %q, got %q", "loopback reboot", got)
	}
}

func writeConf(t *testing.T, path, plugin string) {
	t.Helper()
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "containers", "plugins": [{"type": %q}]}`, plugin)
	nstest.Must(t, os.WriteFile(path, []byte(conf), 0o640))
}

// TestInstallConfigurations checks that configurations are installed and restored, even if they are the symbolic links
// of a ConfigMap.
func TestInstallConfigurations(t *testing.T) {
	one, _ := buildTwo(t)
	dir, confDir, backup, from := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "backup"), t.TempDir()
	writeConf(t, filepath.Join(confDir, "10-containers.conflist"), "bridge")
	before := nstest.SnapshotDir(t, confDir)
	writeConf(t, filepath.Join(from, "content"), "ptp")
	for _, name := range []string{"10-containers.conflist", "20-added.conflist"} {
		nstest.Must(t, os.Symlink("content", filepath.Join(from, name)))
	}
	output := mustInstall(t, "--to", dir, "--from", one, "--backup", backup, "--conf-dir", confDir,
		"--conf", filepath.Join(from, "10-containers.conflist"), "--conf", filepath.Join(from, "20-added.conflist"))
	for _, name := range []string{"10-containers.conflist", "20-added.conflist"} {
		info, err := os.Lstat(filepath.Join(confDir, name))
		if err != nil || info.Mode() != 0o640 || sha256Of(t, filepath.Join(confDir, name)) != sha256Of(t, filepath.Join(from, "content")) {
			t.Errorf("%s: want a copy of mode 640, got %v (%v)", name, info, err)
		}
	}
	_, command, _ := strings.Cut(strings.TrimSpace(output), "To restore what was replaced: plumb ")
	output = mustInstall(t, strings.Fields(strings.TrimPrefix(command, "install "))...)
	_, command, _ = strings.Cut(output, "remove them later: ")
	run(t, dir, nil, "sh", "-c", command)
	if diff := nstest.Compare(before, nstest.SnapshotDir(t, confDir)); diff != "" {
		t.Error(diff)
	}
	if got := fileNames(t, dir); got != "" {
		t.Errorf("the directory of the plugins contains %q", got)
	}
}

// TestInstallOnAFullDisk checks that a failed copy leaves complete files and no temporary file. plumb must not install
// the configurations, which come after the plugins. With more space, the installation must succeed.
func TestInstallOnAFullDisk(t *testing.T) {
	from, dir, confDir := t.TempDir(), t.TempDir(), t.TempDir()
	nstest.Must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"))
	defer func() { _ = syscall.Unmount(dir, 0) }()
	for _, name := range []string{"bridge", "ptp"} {
		writeExecutable(t, filepath.Join(from, name), "#!/bin/sh\n"+strings.Repeat("#\n", 40<<10))
	}
	writeExecutable(t, filepath.Join(dir, "ptp"), "old")
	conf := filepath.Join(from, "10-containers.conflist")
	writeConf(t, conf, "bridge")
	args := []string{"--to", dir, "--from", from, "--conf-dir", confDir, "--conf", conf}
	out, err := install(t, args...)
	if err == nil || !strings.Contains(out, "no space left") || !strings.Contains(out, "bridge                   added") {
		t.Errorf("%v: %s", err, out)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "ptp")); err != nil || string(content) != "old" {
		t.Errorf("want the old file ptp, got %d bytes (%v)", len(content), err)
	}
	if got := fileNames(t, dir) + fileNames(t, confDir); got != "bridge ptp" {
		t.Errorf("want %q, got %q", "bridge ptp", got)
	}
	nstest.Must(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=1m"))
	mustInstall(t, args...)
	if got := fileNames(t, dir) + " " + fileNames(t, confDir); got != "bridge ptp 10-containers.conflist" {
		t.Errorf("want %q, got %q", "bridge ptp 10-containers.conflist", got)
	}
}

// TestInstallAfterAKill checks that an installation and a restore remove only the temporary files that a killed
// installation left in the directory and in the backup.
func TestInstallAfterAKill(t *testing.T) {
	dir, backup, from := t.TempDir(), t.TempDir(), t.TempDir()
	writeExecutable(t, filepath.Join(from, "bridge"), "#!/bin/sh\n")
	writeExecutable(t, filepath.Join(from, "static"), "#!/bin/sh\n")
	writeExecutable(t, filepath.Join(dir, "bridge"), "#!/bin/sh\n# old\n")
	kill := func() {
		for _, path := range []string{filepath.Join(dir, "bridge"), filepath.Join(dir, "static"), filepath.Join(backup, "bridge"), filepath.Join(backup, ".new")} {
			if _, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path))); err != nil {
				t.Fatal(err)
			}
		}
	}
	kill()
	writeExecutable(t, filepath.Join(dir, ".bridge-2"), "another program's")
	mustInstall(t, "--to", dir, "--from", from, "--backup", backup)
	if got := fileNames(t, dir) + ", " + fileNames(t, backup); got != ".bridge-2 bridge static, .new bridge" {
		t.Errorf("want %q, got %q", ".bridge-2 bridge static, .new bridge", got)
	}
	kill()
	mustInstall(t, "--to", dir, "--restore", backup)
	if got := fileNames(t, dir) + ", " + fileNames(t, backup); got != ".bridge-2 bridge static, .new bridge" {
		t.Errorf("want %q, got %q", ".bridge-2 bridge static, .new bridge", got)
	}
}

// TestInstallAtTheSameTime checks that an installation waits while another one uses the directory.
func TestInstallAtTheSameTime(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	writeExecutable(t, filepath.Join(from, "bridge"), "#!/bin/sh\n")
	directory, err := os.Open(dir)
	if err == nil {
		err = syscall.Flock(int(directory.Fd()), syscall.LOCK_EX)
	}
	nstest.Must(t, err)
	ended := make(chan string, 1)
	go func() {
		output, _ := install(t, "--to", dir, "--from", from)
		ended <- output
	}()
	for len(nstest.LockWaiters(dir)) == 0 {
		select {
		case output := <-ended:
			t.Fatalf("the installation did not wait: %s", output)
		case <-time.After(10 * time.Millisecond):
		}
	}
	nstest.Must(t, directory.Close())
	if output := <-ended; !strings.Contains(output, "bridge                   added") {
		t.Error(output)
	}
}

// TestInstallOfAPluginThatHangs checks that install rejects a plugin that does not answer, and that a signal ends
// install while it waits.
func TestInstallOfAPluginThatHangs(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	called := filepath.Join(dir, "called")
	writeExecutable(t, filepath.Join(from, "static"), "#!/bin/sh\n: > "+called+"\nsleep 600\n")
	output, err := install(t, "--to", dir, "--from", from, "--timeout", "10ms")
	if want := "static does not run on this machine (" + runtime.GOARCH + "): no answer in 10ms; nothing was replaced"; err == nil || !strings.Contains(output, want) {
		t.Errorf("want %q, got %v: %s", want, err, output)
	}
	nstest.Must(t, os.RemoveAll(called))
	cmd := exec.Command(filepath.Join(nstest.Build(t, "plumb"), "plumb"), "install", "--to", dir, "--from", from, "--timeout", "10m")
	var messages strings.Builder
	cmd.Stderr = &messages
	nstest.Must(t, cmd.Start())
	for _, err := os.Stat(called); err != nil; _, err = os.Stat(called) {
		time.Sleep(10 * time.Millisecond)
	}
	nstest.Must(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err == nil || messages.String() != "plumb: terminated signal received; nothing was replaced\n" {
		t.Errorf("%v: %s", err, messages.String())
	}
}

// TestInstallWaits checks that --wait restores only after SIGTERM, and that the exit status is 0.
func TestInstallWaits(t *testing.T) {
	dir, backup, from := t.TempDir(), filepath.Join(t.TempDir(), "backup"), t.TempDir()
	writeExecutable(t, filepath.Join(from, "bridge"), "#!/bin/sh\n")
	writeExecutable(t, filepath.Join(dir, "bridge"), "#!/bin/sh\n# old\n")
	before := nstest.SnapshotDir(t, dir)
	mustInstall(t, "--to", dir, "--from", from, "--backup", backup)
	installed := nstest.SnapshotDir(t, dir)
	for _, args := range [][]string{{"--wait"}, {"--wait", "--to", dir, "--restore", backup}} {
		if diff := nstest.Compare(installed, nstest.SnapshotDir(t, dir)); diff != "" {
			t.Error(diff)
		}
		cmd := exec.Command(filepath.Join(nstest.Build(t, "plumb"), "plumb"), append([]string{"install"}, args...)...)
		messages, err := cmd.StderrPipe()
		if err == nil {
			err = cmd.Start()
		}
		nstest.Must(t, err)
		if line, err := bufio.NewReader(messages).ReadString('\n'); err != nil || line != "plumb: waiting for SIGTERM\n" {
			t.Errorf("%q: %v: %q", args, err, line)
		}
		nstest.Must(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	if diff := nstest.Compare(before, nstest.SnapshotDir(t, dir)); diff != "" {
		t.Error(diff)
	}
}
