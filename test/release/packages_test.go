package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// checkLintian checks that lintian finds no errors or warnings except those in
// scripts/packages/lintian-overrides. It skips the spelling check of the executables, which takes half of the
// time.
func checkLintian(t *testing.T, deb string) {
	out, err := exec.Command("lintian", "--allow-root", "-X", "binaries/spelling", "--fail-on", "error,warning", deb).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A debian is this machine's Debian, mounted at a directory. All changes go to another directory.
type debian struct {
	t           *testing.T
	root, upper string
}

// newDebian mounts an overlay over the file system of this machine. In the overlay, systemctl is a script that
// writes its arguments to /run/systemctl, and /mnt/release contains the files of the release.
func newDebian(t *testing.T, release string) debian {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "debian") // on a tmpfs, because the upper layer of an overlay cannot be on another overlay
	if err != nil {
		t.Fatal(err)
	}
	d := debian{t, filepath.Join(dir, "root"), filepath.Join(dir, "upper")}
	work := filepath.Join(dir, "work")
	for _, path := range []string{d.root, d.upper, work} {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.mount("overlay", "", "overlay", 0, "lowerdir=/,upperdir="+d.upper+",workdir="+work)
	d.mount("tmpfs", "run", "tmpfs", 0, "")
	d.mount("tmpfs", "mnt", "tmpfs", 0, "")
	d.mount("/proc", "proc", "", syscall.MS_BIND|syscall.MS_REC, "")
	d.mount("/dev", "dev", "", syscall.MS_BIND|syscall.MS_REC, "")
	for _, path := range []string{"run/systemd/system", "mnt/release"} {
		if err := os.MkdirAll(filepath.Join(d.root, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.mount(release, "mnt/release", "", syscall.MS_BIND, "")
	systemctl := filepath.Join(d.root, "usr/bin/systemctl")
	_ = os.Remove(systemctl) // systemctl is a symbolic link on some systems
	writeExecutable(t, systemctl, "#!/bin/sh\necho \"$*\" >>/run/systemctl\n")
	return d
}

// mount mounts source in the root until the test ends.
func (d debian) mount(source, path, fsType string, flags uintptr, data string) {
	d.t.Helper()
	target := filepath.Join(d.root, path)
	if err := syscall.Mount(source, target, fsType, flags, data); err != nil {
		d.t.Fatalf("mount %s: %v", target, err)
	}
	d.t.Cleanup(func() {
		if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
			d.t.Errorf("unmount %s: %v", target, err)
		}
	})
}

func (d debian) run(args ...string) string {
	d.t.Helper()
	return run(d.t, "/", []string{"DPKG_FORCE=unsafe-io"}, "chroot", append([]string{d.root}, args...)...)
}

// expectCalls checks the arguments with which systemctl was called since the previous expectCalls.
func (d debian) expectCalls(want ...string) {
	d.t.Helper()
	calls := filepath.Join(d.root, "run/systemctl")
	got, _ := os.ReadFile(calls)
	_ = os.Remove(calls)
	if text := strings.Join(want, ""); string(got) != text {
		d.t.Errorf("want the calls of systemctl %q, got %q", text, got)
	}
}

// changes returns the files in the upper layer, except for the files of dpkg and rpm themselves.
func (d debian) changes() string {
	d.t.Helper()
	return run(d.t, d.upper, nil, "find", ".", "!", "-type", "d", "!", "-path", "./var/*", "!", "-path", "./usr/bin/systemctl")
}

// checkInstalled checks that the package's executables run, and that plumb finds the plugins.
func (d debian) checkInstalled() {
	d.t.Helper()
	for _, path := range []string{"man/man8/plumb.8.gz", "man/man8/plumb-doctor.8.gz", "bash-completion/completions/plumb", "fish/vendor_completions.d/plumb.fish"} {
		d.run("test", "-s", "/usr/share/"+path)
	}
	if out := d.run("/usr/bin/plumb", "--version"); out != "plumb "+version+"\n" {
		d.t.Errorf("unexpected output of plumb --version: %q", out)
	}
	if out := d.run("sh", "-c", "/usr/lib/plumb/cni/bridge 2>&1"); !strings.HasPrefix(out, "CNI bridge plugin "+version) {
		d.t.Errorf("unexpected output of bridge: %q", out)
	}
	d.run("plumb", "install", "--to", "/run/bin", "--create", "--only", "bridge,loopback")
	if got := fileNames(d.t, filepath.Join(d.root, "run/bin")); got != "bridge loopback" {
		d.t.Errorf("want bridge and loopback, got %q", got)
	}
	for _, unit := range []string{"plumb-dhcp.service", "plumb-firewalld.service", "plumb-maintain.service"} {
		text, err := os.ReadFile(filepath.Join(d.root, "usr/lib/systemd/system", unit))
		_, command, _ := strings.Cut(string(text), "ExecStart=")
		program, _, _ := strings.Cut(command, " ")
		if info, missing := os.Stat(filepath.Join(d.root, program)); err != nil || missing != nil || info.Mode()&0o111 == 0 {
			d.t.Errorf("%s starts %q, which is not installed (%v)", unit, program, err)
		}
	}
}

func (d debian) checkRemoved() {
	d.t.Helper()
	if left := d.changes(); left != "" {
		d.t.Errorf("files remain or were changed: %s", left)
	}
	for _, dir := range []string{"usr/lib/plumb", "usr/share/doc/plumb-cni", "usr/share/licenses/plumb-cni"} {
		if _, err := os.Stat(filepath.Join(d.root, dir)); err == nil {
			d.t.Errorf("%s remains", dir)
		}
	}
}

const (
	restarted = "daemon-reload\ntry-restart plumb-dhcp.service\ntry-restart --no-block plumb-maintain.service\n"
	disabled  = "disable --now --quiet plumb-dhcp.service\ndisable --now --quiet plumb-dhcp.socket\ndisable --now --quiet plumb-firewalld.service\n" +
		"disable --now --quiet plumb-maintain.timer\ndisable --now --quiet plumb-maintain.service\n"
)

// checkDeb checks that dpkg installs, upgrades and removes the package on this machine's Debian, in addition
// to the distribution's package of the reference plugins.
func checkDeb(t *testing.T, deb string) {
	d := newDebian(t, filepath.Dir(deb))
	path := "/mnt/release/" + filepath.Base(deb)
	for range 2 { // the second run is an upgrade
		d.run("dpkg", "--install", path)
		d.expectCalls(restarted)
	}
	d.checkInstalled()
	if out := d.run("dpkg", "--verify", "plumb-cni", "containernetworking-plugins"); out != "" {
		t.Errorf("want no changed files, got %s", out)
	}
	d.run("dpkg", "--purge", "plumb-cni")
	d.expectCalls(disabled)
	d.checkRemoved()
}

// checkRPM checks that rpm installs, upgrades and removes the package. It ignores the package's dependencies,
// because the rpm database is empty on Debian.
func checkRPM(t *testing.T, path string) {
	d := newDebian(t, filepath.Dir(path))
	rpm := func(args ...string) {
		t.Helper()
		d.run(append([]string{"rpm", "--dbpath", "/var/lib/rpm-test", "--nodeps", "--force-debian"}, args...)...)
	}
	name := "/mnt/release/" + filepath.Base(path)
	d.run("rpm", "--dbpath", "/var/lib/rpm-test", "--checksig", "--nosignature", name)
	if got := run(t, ".", nil, "rpm", "--query", "--package", "--queryformat", "%{BUILDHOST}", path); got != "reproducible" {
		t.Errorf("want no name of a machine in the rpm, got %q", got)
	}
	rpm("--install", name)
	d.expectCalls(restarted)
	rpm("--upgrade", "--force", name)
	d.expectCalls(restarted)
	d.checkInstalled()
	rpm("--erase", "plumb-cni")
	d.expectCalls(disabled)
	d.checkRemoved()
}
