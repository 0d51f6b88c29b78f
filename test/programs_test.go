package test

import (
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// everywhere lists programs that tests run without a package in a script's list. They come from
// essential or required packages of Debian or from the Go toolchain, or tests build them.
var everywhere = strings.Fields(`awk basename bash cat chmod chroot cp cut date dpkg dpkg-deb echo env false find flock grep
	gzip head id install kill ln ls mkdir mktemp mount mv nsenter printf readlink rm rmdir sed sh sha256sum sha512sum
	sleep sort stat sync tail tar timeout touch tr true umount uname unshare xargs go gofmt apt-get
	/bin/sh /bin/true /proc/self/exe /nonexistent`)

// packages maps other programs that tests and scripts run, or may run in the future, to their
// Debian packages.
var packages = map[string]string{
	"ip": "iproute2", "bridge": "iproute2", "tc": "iproute2", "ss": "iproute2",
	"iptables": "iptables", "iptables-nft": "iptables", "iptables-legacy": "iptables", "iptables-save": "iptables",
	"iptables-restore": "iptables", "iptables-nft-save": "iptables", "iptables-legacy-save": "iptables",
	"ip6tables": "iptables", "ip6tables-nft": "iptables", "ip6tables-legacy": "iptables", "ip6tables-save": "iptables",
	"ip6tables-restore": "iptables", "ip6tables-nft-save": "iptables", "ip6tables-legacy-save": "iptables",
	"nft": "nftables", "conntrack": "conntrack", "ping": "iputils-ping", "arping": "iputils-arping",
	"sysctl": "procps", "ps": "procps", "pgrep": "procps", "pkill": "procps",
	"git": "git", "gcc": "gcc", "cc": "gcc", "shellcheck": "shellcheck",
	"qemu-aarch64-static": "qemu-user-static", "qemu-x86_64-static": "qemu-user-static", "qemu-s390x-static": "qemu-user-static",
	"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "modprobe": "kmod", "depmod": "kmod", "insmod": "kmod",
	"lsmod": "kmod", "cpio": "cpio", "xz": "xz-utils", "debootstrap": "debootstrap",
	"containerd": "containerd", "ctr": "containerd", "runc": "runc", "podman": "podman", "conmon": "conmon",
	"ethtool": "ethtool", "tcpdump": "tcpdump", "strace": "strace", "valgrind": "valgrind", "perf": "linux-perf",
	"openssl": "openssl", "curl": "curl", "wget": "wget", "jq": "jq", "nc": "netcat-openbsd", "socat": "socat", "python3": "python3", "perl": "perl",
	"bc": "bc", "lsof": "lsof", "fuser": "psmisc", "setfacl": "acl", "mkfs.ext4": "e2fsprogs", "dnsmasq": "dnsmasq-base",
	"dbus-daemon": "dbus", "firewalld": "firewalld", "kea-dhcp4": "kea-dhcp4-server",
	"ipvsadm": "ipvsadm", "ipset": "ipset",
	"lintian": "lintian", "rpm": "rpm",
}

// optional maps uses of programs ("FILE: PROGRAM") that no script installs to the reasons.
var optional = map[string]string{
	"scripts/exec-plugin.sh: strace":   "only the flag --strace needs it",
	"scripts/exec-plugin.sh: valgrind": "only the flag --count needs it",
	"test/vm/init.sh: insmod":          "an applet in the virtual machine",
}

// An installation is a script that installs packages, and the files that need these packages.
type installation struct {
	script string
	runs   []string // files, and directories of Go tests and scripts
	except []string // files in these directories that the script does not run
}

var installations = []installation{
	{"scripts/test.sh", []string{"build_linux.sh", "scripts", "pkg", "plugins", "test"}, []string{"test/e2e/ipvs_test.go"}},
	{"scripts/bench.sh", []string{"build_linux.sh", "scripts/bench.sh", "scripts/sandbox.sh", "test/bench", "test/nstest"}, daemons},
	{"scripts/quickstart.sh", []string{"build_linux.sh", "scripts/quickstart.sh"}, nil},
	{"plugins/cluster-local/quickstart.sh", []string{"build_linux.sh", "plugins/cluster-local/quickstart.sh"}, nil},
	{"test/vm/run.sh", []string{"build_linux.sh", "scripts/sandbox.sh", "test/vm", "test/nstest", "test/e2e/ipvs_test.go", "pkg", "plugins"}, append([]string{"plugins/cluster-local/quickstart.sh"}, daemons...)},
	{"test/runtimes/run.sh", []string{"build_linux.sh", "scripts/sandbox.sh", "test/runtimes", "test/nstest"}, daemons},
	{"test/node/run.sh", []string{"build_linux.sh", "scripts/programs.sh", "test/node", "test/nstest"}, daemons},
	{"plugins/cluster-local/test/run.sh", []string{"build_linux.sh", "scripts/sandbox.sh", "plugins/cluster-local/quickstart.sh", "plugins/cluster-local/test", "test/nstest"}, daemons},
	{"test/fresh/run.sh", []string{"test/fresh"}, nil},
}

// daemons lists helpers that start daemons. Only tests that scripts/test.sh runs call them.
var daemons = []string{"test/nstest/dnsmasq.go", "test/nstest/firewalld.go", "test/nstest/kea.go"}

// own lists the directories whose run.sh installs packages itself.
var own = []string{"plugins/cluster-local/test", "test/vm", "test/runtimes", "test/node", "test/fresh"}

// TestProgramsAreInstalled checks that the scripts install the packages of all programs that tests
// and scripts run.
func TestProgramsAreInstalled(t *testing.T) {
	for _, i := range installations {
		installed := listed(read(t, i.script))
		if len(installed) == 0 {
			t.Errorf("%s lists no packages", i.script)
		}
		for _, file := range i.files(t) {
			for _, problem := range missing(file, programsOf(t, file, read(t, file)), installed) {
				t.Errorf("%s: %s", i.script, problem)
			}
		}
	}
}

// files returns the Go tests and scripts that need the installation.
func (i installation) files(t *testing.T) []string {
	t.Helper()
	var files []string
	for _, root := range i.runs {
		err := filepath.WalkDir(filepath.Join("..", root), func(path string, d fs.DirEntry, err error) error {
			path = strings.TrimPrefix(path, "../")
			switch {
			case err != nil:
				return err
			case d.IsDir() && path != root && slices.Contains(own, path):
				return filepath.SkipDir
			case (isTest(path) || strings.HasSuffix(path, ".sh")) && !slices.Contains(i.except, path):
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// isTest reports whether only tests contain a Go file.
func isTest(path string) bool {
	return strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "test/") && strings.HasSuffix(path, ".go")
}

var pair = regexp.MustCompile(`(?:^|[\s("])[\w./-]+:([a-z0-9.+-]+)`)

// listed returns the packages in the pairs PROGRAM:PACKAGE in a script's code.
func listed(script string) map[string]bool {
	all := map[string]bool{}
	for _, line := range strings.Split(script, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, m := range pair.FindAllStringSubmatch(line, -1) {
			all[m[1]] = true
		}
	}
	return all
}

// missing returns a problem for each program without an installed package.
func missing(file string, programs []string, installed map[string]bool) (bad []string) {
	for _, p := range programs {
		_, excused := optional[file+": "+p]
		switch name, known := packages[p]; {
		case excused || slices.Contains(everywhere, p):
		case !known:
			bad = append(bad, file+" runs "+p+"; add its Debian package to packages in test/programs_test.go")
		case !installed[name]:
			bad = append(bad, file+" runs "+p+", but the script does not install the Debian package "+name)
		}
	}
	return bad
}

// programsOf returns the sorted names of the programs that a file runs.
func programsOf(t *testing.T, file, text string) []string {
	t.Helper()
	found := map[string]bool{}
	if strings.HasSuffix(file, ".sh") {
		commands(text, found)
		return slices.Sorted(maps.Keys(found))
	}
	ast.Inspect(parse(t, file, text).file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if p, ok := program(n); ok {
				found[p] = true
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				commands(literal(n), found) // for command lines in tables and for scripts
			}
		}
		return true
	})
	return slices.Sorted(maps.Keys(found))
}

// runners maps functions that run a program to the index of the argument that names it.
var runners = map[string]int{"Command": 0, "CommandContext": 1, "LookPath": 0, "Must": 1, "Exec": 0, "ExecInput": 1}

// program returns the program that a call runs, if the call contains its name.
func program(call *ast.CallExpr) (string, bool) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	at, ok := runners[f.Sel.Name]
	if !ok || at >= len(call.Args) {
		return "", false
	}
	p := literal(call.Args[at])
	return p, p != ""
}

// literal returns the text of a string literal, or "".
func literal(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	text, _ := strconv.Unquote(lit.Value)
	return text
}

var command = regexp.MustCompile(`(?m)(?:^|[;|&("'` + "`" + `])\s*(?:(?:exec|then|do|else|env|xargs|if|while|!)\s+)*([a-z0-9_.-]+)[ \t]+\S`)

// commands adds the known programs at the places where a shell expects a command.
func commands(script string, found map[string]bool) {
	for line := range strings.Lines(script) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, m := range command.FindAllStringSubmatch(line, -1) {
			if packages[m[1]] != "" {
				found[m[1]] = true
			}
		}
	}
}

// TestProgramChecksBite checks that missing packages are found for each way to run a program.
func TestProgramChecksBite(t *testing.T) {
	script, err := os.ReadFile("../scripts/test.sh")
	if err != nil {
		t.Fatal(err)
	}
	all := listed(string(script))
	without := maps.Clone(all)
	delete(without, "conntrack")
	for _, c := range []struct {
		file, text string
		installed  map[string]bool
		want       string
	}{
		{"a_test.go", `var _ = n.Must(t, "conntrack", "-L")`, all, ""},
		{"a_test.go", `var _ = n.Must(t, "conntrack", "-L")`, without, "package conntrack"},
		{"a_test.go", `var _ = exec.Command("conntrack", "-L")`, without, "package conntrack"},
		{"a_test.go", `var _ = Entry("a", "ip link; conntrack -L")`, without, "package conntrack"},
		{"a_test.go", `var _ = exec.Command("nosuch")`, all, "add its Debian package"},
		{"a_test.go", `var _ = exec.Command("cp", "-a")`, all, ""},
		{"a.sh", "# conntrack -L\nif x; then conntrack -L; fi", without, "package conntrack"},
		{"a.sh", "# conntrack -L", without, ""},
	} {
		if strings.HasSuffix(c.file, ".go") {
			c.text = "package a\n" + c.text
		}
		got := strings.Join(missing(c.file, programsOf(t, c.file, c.text), c.installed), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: want %q, got %q", c.text, c.want, got)
		}
	}
}
