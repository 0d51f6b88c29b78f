// Package release tests the files that scripts/release.sh creates, and plumb install with a directory in use.
package release

import (
	"archive/tar"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/plumb-cni/plumb/v2/test/nstest"
	"github.com/plumb-cni/plumb/v2/test/nstest/sandbox"
)

// TestMain skips the package for ordinary users.
func TestMain(m *testing.M) {
	sandbox.RequireRoot("because an installation changes owners, and a release needs all modules")
	os.Exit(m.Run())
}

// version contains a pre-release and build metadata, which file names, packages, registries and Helm write differently.
const (
	version = "v2.99.0-rc.1+test"
	tag     = "v2.99.0-rc.1_test"
	epoch   = 1700000000
)

// architectures returns the architectures that the test packs. They are the architecture of most hosts and, in the nightly
// tests, a 32-bit architecture, for which scripts/modfile.sh changes a library.
func architectures() map[string]elf.Machine {
	if nstest.AllFaults() {
		return map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm": elf.EM_ARM}
	}
	return map[string]elf.Machine{"amd64": elf.EM_X86_64}
}

func archiveName(arch string) string { return "cni-plugins-linux-" + arch + "-" + version + ".tgz" }

// These are the names of the other files. nfpm writes the version in the form that dpkg and rpm sort.
const (
	sbomName  = "cni-plugins-linux-" + version + ".spdx.json"
	imageName = "plumb-image-" + version + ".tar"

	daemonSetName = "plumb-daemonset-" + version + ".yaml"
	schemasName   = "cni-plugins-" + version + ".schemas.tgz"
	chartName     = "plumb-chart-" + version + ".tgz"
	debName       = "plumb-cni_2.99.0~rc.1+test_amd64.deb"
	rpmName       = "plumb-cni-2.99.0~rc.1+test-1.x86_64.rpm"
)

// checkout copies the sources of a release to a directory without git history.
func checkout(t *testing.T, dir string) {
	t.Helper()
	root := nstest.Root(t)
	for _, part := range []string{"go.mod", "go.sum", "README.md", "LICENSE", "build_linux.sh", "cmd", "deploy", "docs/upstream", "pkg", "plugins", "scripts"} {
		if info, err := os.Stat(filepath.Join(root, part)); err != nil {
			t.Fatal(err)
		} else if info.IsDir() {
			err = os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(root, part)))
			nstest.Must(t, err)
			continue
		}
		run(t, dir, nil, "cp", filepath.Join(root, part), dir)
	}
}

func run(t *testing.T, dir string, environ []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if environ != nil {
		cmd.Env = append(os.Environ(), environ...)
	}
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, exit.Stderr)
		}
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return string(out)
}

// TestRelease creates a release. Only in the nightly tests, release.sh builds it twice, as for a real release, because the second
// build links everything again.
func TestRelease(t *testing.T) {
	here, out := t.TempDir(), t.TempDir()
	checkout(t, here)
	args := append([]string{"--out", out}, slices.Sorted(maps.Keys(architectures()))...)
	if !nstest.AllFaults() {
		args = append([]string{"--once"}, args...)
	}
	said := run(t, here, []string{"VERSION=" + version, fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch), "SECOND_GOCACHE=" + buildCache(t)},
		"scripts/release.sh", args...)
	t.Run("contains only the expected files", func(t *testing.T) { checkNames(t, out) })
	t.Run("has checksums", func(t *testing.T) { checkSums(t, out) })
	for arch, machine := range architectures() {
		t.Run("has an archive for "+arch, func(t *testing.T) {
			checkArchive(t, filepath.Join(out, archiveName(arch)))
			checkExecutables(t, filepath.Join(out, archiveName(arch)), machine)
		})
	}
	t.Run("unpacks over a directory in use", func(t *testing.T) { checkUnpack(t, filepath.Join(out, archiveName("amd64"))) })
	t.Run("contains an SBOM with all modules", func(t *testing.T) { checkSBOM(t, out) })
	t.Run("contains an image with the archives' executables", func(t *testing.T) { checkImage(t, out) })
	t.Run("contains manifests with its version", func(t *testing.T) { checkManifests(t, out) })
	t.Run("contains a deb that lintian accepts", func(t *testing.T) { checkLintian(t, filepath.Join(out, debName)) })
	t.Run("contains a deb that can be installed, upgraded and removed", func(t *testing.T) { checkDeb(t, filepath.Join(out, debName)) })
	t.Run("contains an rpm that can be installed and removed", func(t *testing.T) { checkRPM(t, filepath.Join(out, rpmName)) })
	t.Run("is never replaced", func(t *testing.T) { checkNotReplaced(t, here, out) })
	t.Run("contains the same bytes if it is created elsewhere, and says how", func(t *testing.T) {
		if !nstest.AllFaults() {
			t.Skip("only the nightly tests build twice; TestReleaseComparesBuilds shows that release.sh compares")
		}
		for _, want := range []string{"built twice, with the same bytes\n", "scripts/release.sh --once --out DIR amd64"} {
			if !strings.Contains(said, want) {
				t.Errorf("want %q in the output, got\n%s", want, said)
			}
		}
	})
}

// buildCache returns the directory of the build cache. With it, a second build only links.
func buildCache(t *testing.T) string {
	return strings.TrimSpace(run(t, ".", nil, "go", "env", "GOCACHE"))
}

// TestVersion checks that only a build of a tagged pre-release gets a pre-release version. Nomad requires ">= 1.3.0" of the
// version that bridge prints, and otherwise skips CHECK. In github.com/hashicorp/go-version, no pre-release satisfies this.
func TestVersion(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "scripts/version.sh")
	nstest.Must(t, os.CopyFS(filepath.Dir(script), os.DirFS(filepath.Join(nstest.Root(t), "scripts"))))
	git := func(args ...string) {
		run(t, dir, nil, "git", append([]string{"-c", "user.name=plumb", "-c", "user.email=plumb@example.com"}, args...)...)
	}
	for _, step := range []struct {
		git  []string
		want string
	}{
		{[]string{"init", "--quiet"}, `v2\.0\.0\+dev`},
		{[]string{"commit", "--quiet", "--allow-empty", "--message=one"}, `v2\.0\.0\+dev\.g[0-9a-f]{7}`},
		{[]string{"tag", "v2.4.0-rc.1"}, `v2\.4\.0-rc\.1`},
		{[]string{"tag", "v2.4.0"}, `v2\.4\.0`},
		{[]string{"add", "scripts"}, `v2\.4\.0\+0\.g[0-9a-f]+\.dirty`},
		{[]string{"commit", "--quiet", "--message=two"}, `v2\.4\.0\+1\.g[0-9a-f]+`},
	} {
		git(step.git...)
		got := strings.TrimSpace(run(t, dir, []string{"VERSION="}, script))
		if !regexp.MustCompile("^" + step.want + "$").MatchString(got) {
			t.Errorf("after git %s: want %s, got %s", step.git, step.want, got)
		}
	}
}

// TestReleaseComparesBuilds checks that release.sh fails if two builds differ. A script replaces build_linux.sh. It copies one
// executable, and appends its directory.
func TestReleaseComparesBuilds(t *testing.T) {
	dir := t.TempDir()
	checkout(t, dir)
	writeExecutable(t, filepath.Join(dir, "build_linux.sh"), "#!/bin/sh\nmkdir -p $1 && cp $LOOPBACK $1 && cd ${0%/*} && pwd >>$1/loopback\n")
	cmd := exec.Command(filepath.Join(dir, "scripts/release.sh"), "--out", t.TempDir(), "amd64")
	cmd.Env = append(os.Environ(), "VERSION="+version, fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch), "SECOND_GOCACHE="+buildCache(t),
		"LOOPBACK="+filepath.Join(nstest.Build(t, "loopback"), "loopback"))
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "the second build produced other bytes\n") {
		t.Errorf("want an error for the second build, got %v:\n%s", err, out)
	}
}

// TestArchitectures checks the types of all packages for each architecture of a release that TestRelease does not pack.
// It finds errors in code for some architectures only, and constants that overflow. A compilation would take ten times
// as long. Only the nightly tests check all of them.
func TestArchitectures(t *testing.T) {
	root := nstest.Root(t)
	script := nstest.ReadFile(t, filepath.Join(root, "scripts/release.sh"))
	_, rest, _ := strings.Cut(script, "\narchitectures=(")
	list, _, _ := strings.Cut(rest, ")")
	all := strings.Fields(list)
	if len(all) < 8 {
		t.Fatalf("unexpected architectures in scripts/release.sh: %q", all)
	}
	typecheck := filepath.Join(t.TempDir(), "typecheck")
	run(t, root, nil, "go", "build", "-o", typecheck, "./test/release/typecheck")
	if !nstest.AllFaults() {
		all = []string{"arm", "mips64le"} // constants overflow on the one, and differ most from amd64's on the other
	}
	for _, arch := range all {
		if _, packed := architectures()[arch]; !packed {
			modfile := strings.TrimSpace(run(t, root, []string{"GOARCH=" + arch}, "scripts/modfile.sh"))
			run(t, root, []string{"MODFILE=" + modfile}, typecheck, arch, root, "./plugins/...", "./cmd/...")
			run(t, root, nil, typecheck, arch, filepath.Join(root, "plugins/cluster-local/datastore/etcd"), ".")
		}
	}
}

// digests returns the mode, name and checksum of each file.
func digests(t *testing.T, dir string) string {
	t.Helper()
	return run(t, dir, nil, "sh", "-c", "stat -c '%a %n' * && sha256sum *")
}

func checkNames(t *testing.T, out string) {
	want := []string{sbomName}
	for _, name := range summed() {
		want = append(want, name, name+".sha256", name+".sha512")
	}
	slices.Sort(want)
	entries, err := os.ReadDir(out)
	nstest.Must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("want %q, got %q", want, got)
	}
}

// summed returns the names of the files with checksums.
func summed() []string {
	names := []string{archiveName("amd64"), schemasName, imageName, debName, rpmName, daemonSetName, chartName}
	if nstest.AllFaults() {
		names = append(names, archiveName("arm"), "plumb-cni_2.99.0~rc.1+test_armhf.deb", "plumb-cni-2.99.0~rc.1+test-1.armv6hl.rpm")
	}
	return names
}

// checkManifests checks that the DaemonSet and the Helm chart name the image of the release.
func checkManifests(t *testing.T, out string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(out, daemonSetName))
	if got := strings.Count(string(text), "image: registry.example/plumb:"+tag+"\n"); err != nil || got != 2 {
		t.Errorf("%s: want the image of the release twice, got it %d times (%v):\n%s", daemonSetName, got, err, text)
	}
	chart := run(t, out, nil, "tar", "--extract", "--to-stdout", "--file", chartName, "plumb/Chart.yaml")
	for _, want := range []string{"\nversion: " + strings.TrimPrefix(version, "v") + "\n", "\nappVersion: " + tag + "\n"} {
		if !strings.Contains(chart, want) {
			t.Errorf("want %q in Chart.yaml, got\n%s", want, chart)
		}
	}
	readArchive(t, filepath.Join(out, chartName), func(h *tar.Header, _ io.Reader) {
		if !strings.HasPrefix(h.Name, "plumb/") {
			t.Errorf("%s: want only the directory plumb/, got %s", chartName, h.Name)
		}
	})
}

// checkSums checks the checksum files with sha256sum and sha512sum.
func checkSums(t *testing.T, out string) {
	for _, name := range summed() {
		for _, sum := range []string{"sha256", "sha512"} {
			run(t, out, nil, sum+"sum", "--check", "--strict", name+"."+sum)
		}
	}
}

// readArchive calls visit for each member of an archive.
func readArchive(t *testing.T, path string, visit func(*tar.Header, io.Reader)) {
	t.Helper()
	f, err := os.Open(path)
	nstest.Must(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	nstest.Must(t, err)
	if !z.ModTime.IsZero() || z.Name != "" {
		t.Errorf("want a gzip header without name and time, got %q, %v", z.Name, z.ModTime)
	}
	visitTar(t, z, visit)
}

func visitTar(t *testing.T, r io.Reader, visit func(*tar.Header, io.Reader)) {
	t.Helper()
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		nstest.Must(t, err)
		visit(h, archive)
	}
}

// texts lists the files of an archive that are not executables.
var texts = []string{"./LICENSE", "./README.md", "./cni-dhcp.service", "./cni-dhcp.socket", "./plumb-firewalld.service"}

// checkArchive checks that an archive contains only files "./name", owned by root, and no entry for the directory.
func checkArchive(t *testing.T, path string) {
	var names []string
	readArchive(t, path, func(h *tar.Header, _ io.Reader) {
		names = append(names, h.Name)
		mode := fs.FileMode(0o755)
		if slices.Contains(texts, h.Name) {
			mode = 0o644
		}
		if h.Typeflag != tar.TypeReg || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || h.FileInfo().Mode() != mode {
			t.Errorf("%s: type %q, %d:%d %q:%q, %v; want a file, 0:0, %v", h.Name, h.Typeflag, h.Uid, h.Gid, h.Uname, h.Gname, h.FileInfo().Mode(), mode)
		}
		if h.ModTime.Unix() != epoch {
			t.Errorf("%s: unexpected time %v", h.Name, h.ModTime)
		}
	})
	want := append(slices.Clone(texts), "./cluster-local-etcd", "./cluster-local-kubernetes", "./plumb")
	sources, _ := filepath.Glob(filepath.Join(nstest.Root(t), "plugins/*/main.go"))
	for _, main := range sources {
		want = append(want, "./"+filepath.Base(filepath.Dir(main)))
	}
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("want %q, got %q", want, names)
	}
}

// checkExecutables checks that each executable is static, is for this architecture, and contains the version.
func checkExecutables(t *testing.T, path string, machine elf.Machine) {
	dir := t.TempDir()
	unpack(t, path, dir)
	files, _ := filepath.Glob(dir + "/*")
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Mode()&0o111 == 0 {
			continue
		}
		e, err := elf.Open(file)
		nstest.Must(t, err)
		dynamic := slices.ContainsFunc(e.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC })
		if e.Machine != machine || dynamic {
			t.Errorf("%s: want a static executable for %v, got %v, dynamic %v", file, machine, e.Machine, dynamic)
		}
		_ = e.Close()
		if content, err := os.ReadFile(file); err != nil || !strings.Contains(string(content), version) {
			t.Errorf("%s does not contain version %s (%v)", file, version, err)
		}
	}
}

func unpack(t *testing.T, path, dir string) {
	t.Helper()
	run(t, dir, nil, "tar", "--extract", "--gzip", "--file", path)
}

// checkUnpack checks that unpacking replaces the plugins, keeps other files, and keeps the directory's owner and mode,
// which an entry "./" in the archive would change (containernetworking/plugins#1053). It also unpacks only
// "./loopback".
func checkUnpack(t *testing.T, path string) {
	dir := t.TempDir()
	for name, content := range map[string]string{"bridge": "old", "other": "mine"} {
		nstest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700))
	}
	nstest.Must(t, errors.Join(os.Chown(dir, 12345, 23456), os.Chmod(dir, 0o711)))
	unpack(t, path, dir)
	run(t, dir, nil, "tar", "--extract", "--gzip", "--file", path, "./loopback")
	var got syscall.Stat_t
	nstest.Must(t, syscall.Stat(dir, &got))
	if got.Uid != 12345 || got.Gid != 23456 || got.Mode&0o7777 != 0o711 {
		t.Errorf("owner and mode of the directory: want 12345:23456 711, got %d:%d %o", got.Uid, got.Gid, got.Mode&0o7777)
	}
	if other, err := os.ReadFile(filepath.Join(dir, "other")); err != nil || string(other) != "mine" {
		t.Errorf("another file was changed: %q, %v", other, err)
	}
	if bridge, err := os.ReadFile(filepath.Join(dir, "bridge")); err != nil || !strings.HasPrefix(string(bridge), elf.ELFMAG) {
		t.Errorf("bridge was not replaced (%v)", err)
	}
}

// sbom contains the fields of an SPDX document that the test reads.
type sbom struct {
	SPDXVersion       string
	DocumentNamespace string
	CreationInfo      struct{ Created string }
	Packages          []struct {
		SPDXID, Name, VersionInfo, LicenseDeclared, Comment string
		Checksums                                           []struct{ Algorithm, ChecksumValue string }
	}
	Relationships []struct{ SPDXElementID, RelationshipType, RelatedSPDXElement string }
}

// checkSBOM checks that the SBOM lists each module of an executable, with its version and the
// checksum in go.sum, and each archive with its checksum.
func checkSBOM(t *testing.T, out string) {
	var b sbom
	text, err := os.ReadFile(filepath.Join(out, sbomName))
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	nstest.Must(t, err)
	if b.SPDXVersion != "SPDX-2.3" || b.CreationInfo.Created != "2023-11-14T22:13:20Z" || b.DocumentNamespace == "" {
		t.Errorf("unexpected version %q, creation time %q or namespace %q", b.SPDXVersion, b.CreationInfo.Created, b.DocumentNamespace)
	}
	if purl := "pkg:golang/github.com/plumb-cni/plumb/v2@" + strings.ReplaceAll(version, "+", "%2B"); !strings.Contains(string(text), purl+`"`) {
		t.Errorf("the SBOM does not contain the package URL %s", purl)
	}
	ids, listed := map[string]bool{"SPDXRef-DOCUMENT": true}, map[string]bool{}
	for _, p := range b.Packages {
		if ids[p.SPDXID] {
			t.Errorf("%s is listed twice", p.SPDXID)
		}
		ids[p.SPDXID], listed[p.Name+" "+p.VersionInfo+" "+p.Comment] = true, true
		if p.LicenseDeclared == "NOASSERTION" {
			t.Errorf("the licence of %s is unknown", p.Name)
		}
		for _, sum := range p.Checksums {
			program := strings.ToLower(sum.Algorithm) + "sum"
			if got := run(t, out, nil, program, p.Name); !strings.HasPrefix(got, sum.ChecksumValue+" ") {
				t.Errorf("%s: want %s, got %s", program, sum.ChecksumValue, got)
			}
		}
	}
	for _, r := range b.Relationships {
		if !ids[r.SPDXElementID] || !ids[r.RelatedSPDXElement] {
			t.Errorf("%v names an unknown element", r)
		}
	}
	for arch := range architectures() {
		checkListed(t, filepath.Join(out, archiveName(arch)), listed)
	}
}

// checkListed checks that listed contains the archive and the modules of its executables.
func checkListed(t *testing.T, archive string, listed map[string]bool) {
	dir := t.TempDir()
	unpack(t, archive, dir)
	var sums string
	for _, module := range []string{".", "plugins/cluster-local/datastore/etcd"} {
		text := nstest.ReadFile(t, filepath.Join(nstest.Root(t), module, "go.sum"))
		sums += text
	}
	modules := map[string]bool{}
	files, _ := filepath.Glob(dir + "/*")
	for _, file := range files {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			continue // not an executable
		}
		for _, m := range info.Deps {
			if m.Path == "github.com/plumb-cni/plumb/v2" {
				continue // the datastore's module replaces plumb's with the directory above it
			}
			if m.Replace != nil {
				if m.Replace.Path != "./.patched/nftables-"+m.Version {
					t.Errorf("%s is linked with %s instead of %s", file, m.Replace.Path, m.Path)
				}
				modules[m.Path+"-patched "+m.Version+" a copy of "+m.Path+" that scripts/modfile.sh changed, so that it compiles for 32-bit processors"] = true
				continue
			}
			if !strings.Contains(sums, m.Path+" "+m.Version+" "+m.Sum+"\n") {
				t.Errorf("%s is linked with %s %s, which go.sum does not name", file, m.Path, m.Version)
			}
			modules[m.Path+" "+m.Version+" go.sum: "+m.Sum] = true
		}
		modules["Go standard library "+strings.TrimPrefix(info.GoVersion, "go")+" "] = true
	}
	if len(modules) < 2 {
		t.Errorf("%s: unexpected modules %v", archive, modules)
	}
	for m := range modules {
		if !listed[m] {
			t.Errorf("the SBOM does not list %s", m)
		}
	}
	if !listed[filepath.Base(archive)+" "+version+" "] {
		t.Errorf("the SBOM does not list %s", archive)
	}
}

// checkNotReplaced checks that a second release with the same version fails.
func checkNotReplaced(t *testing.T, checkout, out string) {
	before := digests(t, out)
	cmd := exec.Command(filepath.Join(checkout, "scripts/release.sh"), "--once", "--out", out, "amd64")
	cmd.Env = append(os.Environ(), "VERSION="+version, fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch+1))
	if output, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(output), "does not replace") {
		t.Errorf("want an error for a second release with the same version, got %v\n%s", err, output)
	}
	if diff := nstest.Compare(before, digests(t, out)); diff != "" {
		t.Error(diff)
	}
}
