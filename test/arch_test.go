// Package test checks the rules of CONTRIBUTING.md for layers, imports, sizes, names and pages. It lists each
// exception by name, with the reason.
package test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode"
)

const module = "github.com/plumb-cni/plumb/v2/"

// layers returns the packages in the table of docs/explanation/architecture.md, from bottom to top, and the imports of each
// package.
var layers = sync.OnceValues(func() (names []string, imports map[string]string) {
	page, err := os.ReadFile("../docs/explanation/architecture.md")
	if err != nil {
		panic(err)
	}
	imports = map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| \[([\w-]+)\]\((?:\.\./)+(?:pkg|plugins)/[\w-]+\) \|.*\| (.*) ?\|$`).FindAllStringSubmatch(string(page), -1) {
		names, imports[row[1]] = append(names, row[1]), strings.TrimSpace(row[2])
	}
	return names, imports
})

// restricted maps imports and symbols to the packages that may use them. There is one package per kernel facility, and
// one for the process's environment.
var restricted = map[string][]string{
	"github.com/vishvananda/netlink":     {"pkg/nl"},
	"github.com/google/nftables":         {"pkg/nft"},
	"github.com/mdlayher/netlink":        {"pkg/nft", "pkg/nl"}, // for what google/nftables and vishvananda/netlink do not support
	"github.com/coreos/go-iptables":      {"pkg/iptables"},
	"github.com/godbus/dbus":             {"plugins/firewall/internal/firewalld"},
	"github.com/insomniacslk/dhcp":       {"plugins/dhcp/internal/dhcp4"},
	"github.com/mdlayher/packet":         {"plugins/dhcp/internal/dhcp4"},
	"golang.org/x/sys/unix.Socket":       {"pkg/ns"},
	"os/exec":                            {"pkg/iptables"},
	"golang.org/x/sys/unix.Setns":        nil,
	"github.com/vishvananda/netns":       {"pkg/ns"},
	"syscall.Setns":                      nil,
	"os.Getenv":                          nil,
	"os.LookupEnv":                       nil,
	"os.Environ":                         {"pkg/skel"},
	"os.Stdin":                           {"pkg/skel"},
	"os.Stdout":                          {"pkg/skel"},
	"os.Stderr":                          {"pkg/skel"},
	"os.Args":                            {"pkg/skel"},
	"os.Exit":                            {"pkg/skel"},
	"fmt.Print":                          nil,
	"fmt.Printf":                         nil,
	"fmt.Println":                        nil,
	"time.Sleep":                         nil, // await the event instead
	"github.com/onsi/ginkgo/v2":          nil, // only tests use this and the next two
	"github.com/onsi/gomega":             nil,
	"github.com/containernetworking/cni": nil,
	"regexp":                             nil, // each of these packages costs more at the start than a step
	"net/http":                           nil,
	"crypto/md5":                         nil, // these four initialize Go's FIPS 140-3 module; types.Hash is the alternative
	"crypto/sha1":                        nil,
	"crypto/sha256":                      nil,
	"crypto/sha512":                      {"pkg/iptables", "pkg/masq", "plugins/bandwidth"}, // names that the reference plugins derive
	"google.golang.org/grpc":             nil,                                               // only the tool and datastores use this and the next one
	"k8s.io/cri-api":                     nil,
	"text/template":                      nil,
	"log":                                nil,
	"flag":                               {"plugins/dhcp/daemon"}, // the DHCP daemon supports the reference daemon's flags
	"testing":                            nil,
}

// exceptions contains uses that restricted and the layers forbid, with the reasons. A key is "FILE: NAME" or "PACKAGE:
// NAME".
var exceptions = map[string]string{
	"pkg/nl/conn.go: time.Sleep":                 "no event says that a list no longer changes (NLM_F_DUMP_INTR)",
	"pkg/invoke/invoke.go: time.Sleep":           "no event says that an executable is no longer open for writing (ETXTBSY)",
	"pkg/pool/machine.go: /proc/sys":             "the boot ID is not a setting, and is only read",
	"plugins/tap/selinux.go: os/exec":            "SELinux gives a tap the context of the process that creates it, and only a new process can get another context",
	"plugins/tuning/allowlist.go: regexp":        "the lines of the allowlist are regular expressions, as for the reference plugin, and are compiled only if the file exists",
	"plugins/dhcp/daemon/clock.go: /proc/sys":    "the boot ID is not a setting, and is only read",
	"plugins/dhcp/daemon: golang.org/x/sys/unix": "a timer that counts the time in which the machine is suspended, and modes and locks of files",
}

// knownTexts lists prefixes of error texts that break our rules because people, runtimes and the tests of the
// reference plugins know them.
var knownTexts = []string{
	"failed to find plugin ",        // libcni
	"failed to allocate for range ", // host-local (pkg/pool), like the next one
	"failed to allocate all requested IPs: ",
}

func known(text string) bool {
	return slices.ContainsFunc(knownTexts, func(k string) bool { return strings.HasPrefix(text, k) })
}

// dependencies lists the modules that executables may contain, with the reasons.
var dependencies = map[string]string{
	"github.com/coreos/go-iptables":  "the programs iptables and ip6tables, for pkg/iptables",
	"github.com/godbus/dbus/v5":      "D-Bus for plugins/firewall",
	"github.com/google/go-cmp":       "comes with github.com/mdlayher/netlink",
	"github.com/google/nftables":     "nf_tables, for pkg/nft",
	"github.com/insomniacslk/dhcp":   "DHCPv4 messages, for plugins/dhcp",
	"github.com/mdlayher/netlink":    "the socket of github.com/google/nftables; large messages, for pkg/nl",
	"github.com/mdlayher/packet":     "packet sockets, for plugins/dhcp",
	"github.com/mdlayher/socket":     "comes with github.com/mdlayher/netlink and github.com/mdlayher/packet",
	"github.com/pierrec/lz4/v4":      "comes with github.com/u-root/uio",
	"github.com/u-root/uio":          "comes with github.com/insomniacslk/dhcp",
	"github.com/vishvananda/netlink": "rtnetlink and conntrack, for pkg/nl",
	"github.com/vishvananda/netns":   "network namespaces: open, enter, compare, close; for pkg/ns",
	"golang.org/x/crypto":            "the hash in pkg/types",
	"golang.org/x/net":               "comes with github.com/mdlayher/netlink; its bpf assembles filters for plugins/dhcp",
	"golang.org/x/sync":              "comes with github.com/mdlayher/socket",
	"golang.org/x/sys":               "system calls and their constants",
}

// startCost lists packages that no executable may contain, directly or through a module, and why. At the start of a
// process, each costs more time than everything else in the executable.
var startCost = map[string]string{
	"net/http":      "it initialises 60 packages more than net, and adds 2 MB",
	"crypto/tls":    "it is most of net/http: 47 packages more than net, and 1.2 MB",
	"text/template": "it calls methods by name, so that the linker keeps every exported method of every package",
	"html/template": "it contains text/template",
	"testing":       "it is for tests",
}

// mutable lists the package-level variables that are neither tables nor sentinel errors.
var mutable = map[string]string{
	"pkg/nl.enableExtAck": "a sync.Once, for a switch that the library has as a package variable",
	"pkg/version.linked":  "set by the linker",

	"cmd/plumb/internal/genschema.files": "embedded files",
	"cmd/plumb/internal/schema.files":    "embedded files",
}

const (
	maxLines  = 60
	p95Lines  = 40
	maxParams = 4
)

// A source is one shipped Go file that is not a test.
type source struct {
	pkg  string // for example "pkg/nl" or "plugins/bridge"
	path string
	set  *token.FileSet
	file *ast.File
}

func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.path, s.set.Position(n.Pos()).Line)
}

// shipped parses all Go files under pkg/ and plugins/, except the datastores.
func shipped(t *testing.T) []source {
	t.Helper()
	return sources(t, "pkg/*/*.go", "plugins/*/*.go", "plugins/*/internal/*/*.go", "plugins/dhcp/daemon/*.go")
}

// sources parses the Go files that match the patterns, except tests.
func sources(t *testing.T, patterns ...string) []source {
	t.Helper()
	var all []source
	for _, pattern := range patterns {
		files, _ := filepath.Glob(filepath.Join("..", pattern))
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, parse(t, strings.TrimPrefix(f, "../"), string(text)))
		}
	}
	if len(all) == 0 {
		t.Fatal("found no source")
	}
	return all
}

func parse(t *testing.T, name, text string) source {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return source{pkg: path.Dir(name), path: name, set: set, file: f}
}

// checks contains the checks of single files.
var checks = map[string]func(source) []string{
	"layers":            checkLayers,
	"restricted":        checkRestricted,
	"proc/sys":          checkProcSys,
	"no init":           checkInit,
	"package variables": checkVars,
	"functions":         checkFuncs,
	"errors":            checkErrors,
	"main":              checkMain,
}

// TestDatastores checks the packages of cluster-local, which are mostly datastores. The rules about imports do not apply to them, because they are
// not plugins, and link net/http or grpc.
func TestDatastores(t *testing.T) {
	for _, s := range sources(t, "plugins/cluster-local/*/*.go", "plugins/cluster-local/datastore/*/*.go") {
		for _, violation := range slices.Concat(checkInit(s), checkVars(s), checkFuncs(s)) {
			t.Error(violation)
		}
	}
}

// TestTool checks the operator's tool. It is not a plugin and may import every library, but no plugin may import one
// of its packages.
func TestTool(t *testing.T) {
	for _, s := range sources(t, "cmd/*/*.go", "cmd/*/*/*/*.go") {
		for _, violation := range slices.Concat(checkInit(s), checkVars(s), checkFuncs(s)) {
			t.Error(violation)
		}
	}
}

func TestArchitecture(t *testing.T) {
	all := shipped(t)
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			for _, s := range all {
				for _, violation := range check(s) {
					t.Error(violation)
				}
			}
		})
	}
}

// TestLayersAreThoseOfThePage compares the imports of each package with docs/explanation/architecture.md.
func TestLayersAreThoseOfThePage(t *testing.T) {
	found := map[string]map[string]bool{}
	for _, s := range sources(t, "pkg/*/*.go", "plugins/cluster-local/*.go", "plugins/cluster-local/*/*.go", "plugins/cluster-local/datastore/*/*.go",
		"plugins/dhcp/*.go", "plugins/dhcp/*/*.go", "plugins/dhcp/internal/*/*.go") {
		name := strings.Split(s.pkg, "/")[1]
		if found[name] == nil {
			found[name] = map[string]bool{}
		}
		for _, p := range imports(s) {
			if local, ours := strings.CutPrefix(p, module+"pkg/"); ours {
				found[name][local] = true
			}
		}
	}
	names, want := layers()
	for _, name := range names {
		if found[name] == nil {
			t.Errorf("docs/explanation/architecture.md: there is no package %s", name)
		} else if got := strings.Join(slices.Sorted(maps.Keys(found[name])), ", "); got != want[name] {
			t.Errorf("docs/explanation/architecture.md: imports of %s: want %q as on the page, got %q", name, want[name], got)
		}
	}
}

// imports maps the local names of a file's imports to their paths.
func imports(s source) map[string]string {
	names := map[string]string{}
	for _, spec := range s.file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(p)
		if strings.HasPrefix(name, "v") && len(name) == 2 {
			name = path.Base(path.Dir(p))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	return names
}

func checkLayers(s source) (bad []string) {
	layers, _ := layers()
	own := slices.Index(layers, strings.TrimPrefix(s.pkg, "pkg/"))
	plugin := strings.Join(strings.SplitN(s.pkg, "/", 3)[:2], "/")
	if strings.HasPrefix(s.pkg, "pkg/") && own < 0 {
		return []string{s.path + ": the package is not in the layers of docs/explanation/architecture.md"}
	}
	for _, p := range imports(s) {
		local, ours := strings.CutPrefix(p, module)
		layer := slices.Index(layers, strings.TrimPrefix(local, "pkg/"))
		switch {
		case ours && layer < 0 && !strings.HasPrefix(local, plugin+"/"):
			bad = append(bad, fmt.Sprintf("%s imports %s, which is neither under pkg/ nor below the plugin", s.path, local))
		case ours && own >= 0 && layer >= own:
			bad = append(bad, fmt.Sprintf("%s imports %s, which is not in a lower layer", s.path, local))
		case !ours && own < 0 && !strings.Contains(s.pkg, "/internal/") && strings.Contains(p, ".") && exceptions[s.pkg+": "+p] == "":
			bad = append(bad, fmt.Sprintf("%s imports %s; plugins may import only pkg/ and the standard library", s.path, p))
		}
	}
	return bad
}

func checkRestricted(s source) (bad []string) {
	names := imports(s)
	use := func(what string, n ast.Node) {
		for name, allowed := range restricted {
			sub, isSub := strings.CutPrefix(what, name)
			if !isSub || sub != "" && sub[0] != '/' || slices.Contains(allowed, s.pkg) || exceptions[s.path+": "+name] != "" {
				continue
			}
			bad = append(bad, fmt.Sprintf("%s uses %s, which only %v may use", s.at(n), what, allowed))
		}
	}
	for _, spec := range s.file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		use(p, spec)
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && names[x.Name] != "" {
				use(names[x.Name]+"."+sel.Sel.Name, sel)
			}
		}
		return true
	})
	return bad
}

func checkProcSys(s source) (bad []string) {
	if s.pkg == "pkg/sysctl" {
		return nil
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if ok && lit.Kind == token.STRING && strings.Contains(lit.Value, "/proc/sys/") && exceptions[s.path+": /proc/sys"] == "" {
			bad = append(bad, s.at(lit)+" names /proc/sys, which only pkg/sysctl may use")
		}
		return true
	})
	return bad
}

func checkInit(s source) (bad []string) {
	for _, d := range s.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			bad = append(bad, s.at(f)+" is an init function")
		}
	}
	for _, spec := range s.file.Imports {
		if spec.Name != nil && (spec.Name.Name == "_" || spec.Name.Name == ".") {
			bad = append(bad, s.at(spec)+": want an import with a name, got _ or .")
		}
	}
	return bad
}

// checkVars reports package-level variables that are neither tables nor sentinel errors, and writes to them.
func checkVars(s source) (bad []string) {
	tables := map[string]bool{}
	for _, d := range s.file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.VAR {
			continue
		}
		for _, spec := range decl.Specs {
			v := spec.(*ast.ValueSpec)
			for i, name := range v.Names {
				tables[name.Name] = true
				constant := i < len(v.Values) && isTable(v.Values[i])
				if !constant && name.Name != "_" && mutable[s.pkg+"."+name.Name] == "" {
					bad = append(bad, fmt.Sprintf("%s: %s is a variable at package level, neither a table nor an error", s.at(name), name.Name))
				}
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		for _, target := range written(n) {
			id := root(target)
			if id != nil && tables[id.Name] && (id.Obj == nil || id.Obj.Pos() == 0 || isPackageLevel(s, id)) {
				bad = append(bad, fmt.Sprintf("%s writes to %s, a table at package level", s.at(n), id.Name))
			}
		}
		return true
	})
	return bad
}

// isTable reports whether the expression is a composite literal, a sentinel error, or a netip value.
func isTable(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return true
	case *ast.CallExpr:
		sel, ok := e.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		x, ok := sel.X.(*ast.Ident)
		return ok && (x.Name+"."+sel.Sel.Name == "errors.New" || x.Name == "netip" && strings.HasPrefix(sel.Sel.Name, "Must"))
	}
	return false
}

// written returns the operands that a statement assigns to, deletes from or takes the address of.
func written(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			return n.Lhs
		}
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			return []ast.Expr{n.X}
		}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "delete" || f.Name == "clear") && len(n.Args) > 0 {
			return n.Args[:1]
		}
	}
	return nil
}

func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

func isPackageLevel(s source, id *ast.Ident) bool {
	spec, ok := id.Obj.Decl.(*ast.ValueSpec)
	if !ok {
		return false
	}
	for _, d := range s.file.Decls {
		if decl, ok := d.(*ast.GenDecl); ok && slices.Contains(decl.Specs, ast.Spec(spec)) {
			return true
		}
	}
	return false
}

func checkFuncs(s source) (bad []string) {
	for _, d := range s.file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := lines(s, f); n > maxLines {
			bad = append(bad, fmt.Sprintf("%s: %s: want at most %d lines, got %d", s.at(f), f.Name.Name, maxLines, n))
		}
		params := 0
		for _, field := range f.Type.Params.List {
			params += max(1, len(field.Names))
			if id, ok := field.Type.(*ast.Ident); ok && id.Name == "bool" && f.Name.IsExported() {
				bad = append(bad, fmt.Sprintf("%s: %s takes a bool, whose meaning a call does not show", s.at(f), f.Name.Name))
			}
		}
		if params > maxParams {
			bad = append(bad, fmt.Sprintf("%s: %s: want at most %d parameters, got %d", s.at(f), f.Name.Name, maxParams, params))
		}
	}
	return bad
}

func lines(s source, n ast.Node) int {
	return s.set.Position(n.End()).Line - s.set.Position(n.Pos()).Line + 1
}

func TestFunctionsAreParagraphs(t *testing.T) {
	type fn struct {
		name string
		n    int
	}
	var all []fn
	for _, s := range shipped(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				all = append(all, fn{s.at(f) + " " + f.Name.Name, lines(s, f)})
			}
		}
	}
	slices.SortFunc(all, func(a, b fn) int { return cmp.Compare(a.n, b.n) })
	p95 := all[len(all)*95/100]
	t.Logf("%d functions, median %d lines, p95 %d, longest %d: %s", len(all), all[len(all)/2].n, p95.n, all[len(all)-1].n, all[len(all)-1].name)
	if p95.n > p95Lines {
		t.Errorf("95th percentile of function lengths: want at most %d lines, got %d (%s)", p95Lines, p95.n, p95.name)
	}
}

// checkErrors reports errors that do not wrap their cause, or whose text does not name an operation first.
func checkErrors(s source) (bad []string) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		format, args := errorFormat(call)
		if format == "" || known(format) {
			return true
		}
		lower := strings.ToLower(format)
		if strings.HasPrefix(lower, "failed to") || strings.HasPrefix(lower, "could not") || strings.HasPrefix(lower, "unable to") {
			bad = append(bad, fmt.Sprintf("%s: %q: want the verb and the object", s.at(call), format))
		}
		if r := []rune(format); len(r) > 1 && unicode.IsUpper(r[0]) && unicode.IsLower(r[1]) {
			bad = append(bad, fmt.Sprintf("%s: %q begins with a capital letter", s.at(call), format))
		}
		for i, verb := range verbs(format) {
			if i < len(args) && (verb == 'v' || verb == 's') && isError(args[i]) {
				bad = append(bad, fmt.Sprintf("%s: %q hides an error from errors.Is; use %%w", s.at(call), format))
			}
		}
		return true
	})
	return bad
}

// errorFormat returns the format and the arguments of a call of fmt.Errorf, errors.New or types.Errorf.
func errorFormat(call *ast.CallExpr) (string, []ast.Expr) {
	name, pos := "", 0
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		name = f.Sel.Name
		if x, ok := f.X.(*ast.Ident); ok && x.Name == "types" {
			pos = 1
		} else if ok && x.Name == "errors" && name == "New" {
			name = "Errorf"
		}
	case *ast.Ident: // within pkg/types
		name, pos = f.Name, 1
	}
	if name != "Errorf" || len(call.Args) <= pos {
		return "", nil
	}
	lit, ok := call.Args[pos].(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", nil
	}
	text, _ := strconv.Unquote(lit.Value)
	return text, call.Args[pos+1:]
}

// verbs returns the verbs of a format, one per argument.
func verbs(format string) []rune {
	var all []rune
	inside := false
	for _, r := range format {
		switch {
		case r == '%':
			inside = !inside
		case inside && unicode.IsLetter(r):
			all = append(all, r)
			inside = false
		}
	}
	return all
}

// isError guesses whether an expression is an error. It looks for names that end in "err", and for calls of Error.
func isError(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return strings.HasSuffix(strings.ToLower(e.Name), "err")
	case *ast.CallExpr:
		sel, ok := e.Fun.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Error" && len(e.Args) == 0
	}
	return false
}

// checkMain reports a function main that is not one line in main.go.
func checkMain(s source) (bad []string) {
	for _, d := range s.file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != "main" || f.Recv != nil {
			continue
		}
		if path.Base(s.path) != "main.go" || lines(s, f) != 1 || len(f.Body.List) != 1 {
			bad = append(bad, s.at(f)+": main is one line, in main.go: func main() { skel.Main(plugin()) }")
		}
	}
	return bad
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	doc := map[string]string{}
	for _, s := range shipped(t) {
		doc[s.pkg] += s.file.Doc.Text()
	}
	for pkg, text := range doc {
		name := path.Base(pkg)
		if !strings.HasPrefix(text, "Package "+name+" ") && (strings.HasPrefix(pkg, "pkg/") || !strings.HasPrefix(text, name+" ")) {
			t.Errorf("%s: want a package comment that begins with its name, got %q", pkg, text)
		}
	}
}

// TestExecutablesConsistOf checks that all modules in executables, including indirect ones, are in dependencies.
func TestExecutablesConsistOf(t *testing.T) {
	out, err := goList(append([]string{"-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}"}, inPlugins(t)...)...)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		pkg, mod, _ := strings.Cut(strings.TrimSpace(line), " ")
		if mod != "" && mod+"/" != module && dependencies[mod] == "" {
			t.Errorf("%s of %s is linked in; add a reason to dependencies", pkg, mod)
		}
	}
}

// TestStartCost checks that no executable contains a package of startCost.
func TestStartCost(t *testing.T) {
	out, err := goList(append([]string{"-f", `{{.ImportPath}} {{join .Deps " "}}`}, inPlugins(t)...)...)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		deps := strings.Fields(line)
		pkg := strings.TrimPrefix(deps[0], module)
		for _, dep := range deps[1:] {
			if why := startCost[dep]; why != "" {
				t.Errorf("%s contains %s: %s", pkg, dep, why)
			}
		}
	}
}

// TestClusterLocalIsSmall checks that cluster-local, which starts at every ADD, contains neither the packages of
// interface plugins nor those with which a datastore reaches its store.
func TestClusterLocalIsSmall(t *testing.T) {
	out, err := goList("-deps", "./plugins/cluster-local")
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(out)
	for _, unwanted := range []string{"net", "github.com/vishvananda/netlink", module + "pkg/nl", "google.golang.org/grpc", "go.etcd.io/etcd/client/v3", "os/exec", "math/big"} {
		if slices.Contains(deps, unwanted) {
			t.Errorf("plugins/cluster-local contains %s", unwanted)
		}
	}
}

// inPlugins returns patterns for the packages that plugins may link, which are not the datastores.
func inPlugins(t *testing.T) []string {
	t.Helper()
	patterns := []string{"./pkg/...", "./plugins/cluster-local/datastore", "./plugins/cluster-local/owned"}
	for _, name := range plugins(t) {
		patterns = append(patterns, "./plugins/"+name)
	}
	return patterns
}

func goList(args ...string) (string, error) {
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w\n%s", err, errOut.String())
	}
	return string(out), nil
}

// TestChecksBite checks that each check finds a violation.
func TestChecksBite(t *testing.T) {
	for _, c := range []struct{ check, name, text, want string }{
		{"layers", "pkg/ns/x.go", `import "github.com/plumb-cni/plumb/v2/pkg/nl"`, "not in a lower layer"},
		{"layers", "pkg/ns/x.go", `import "github.com/plumb-cni/plumb/v2/pkg/ns"`, "not in a lower layer"},
		{"layers", "pkg/ns/x.go", `import "github.com/plumb-cni/plumb/v2/pkg/trace"`, ""},
		{"layers", "pkg/util/x.go", ``, "not in the layers"},
		{"layers", "plugins/a/x.go", `import "github.com/plumb-cni/plumb/v2/plugins/b"`, "neither under pkg/"},
		{"layers", "plugins/a/x.go", `import "github.com/plumb-cni/plumb/v2/plugins/b/internal/c"`, "neither under pkg/"},
		{"layers", "plugins/a/x.go", `import "github.com/plumb-cni/plumb/v2/plugins/a/internal/c"`, ""},
		{"layers", "plugins/a/d/x.go", `import "github.com/plumb-cni/plumb/v2/plugins/a/internal/c"`, ""},
		{"layers", "plugins/a/d/x.go", `import "github.com/plumb-cni/plumb/v2/plugins/ab/c"`, "neither under pkg/"},
		{"layers", "plugins/a/x.go", `import "golang.org/x/sys/unix"`, "plugins may import only"},
		{"restricted", "pkg/attach/x.go", `import "github.com/vishvananda/netlink/nl"`, "only [pkg/nl] may use"},
		{"restricted", "pkg/nl/x.go", `import "github.com/vishvananda/netlink/nl"`, ""},
		{"restricted", "pkg/masq/x.go", `import "github.com/google/nftables/expr"`, "only [pkg/nft] may use"},
		{"restricted", "pkg/nft/x.go", `import "github.com/google/nftables/expr"`, ""},
		{"restricted", "plugins/a/x.go", `import "github.com/godbus/dbus/v5"`, "only [plugins/firewall/internal/firewalld] may use"},
		{"restricted", "plugins/firewall/internal/firewalld/x.go", `import "github.com/godbus/dbus/v5"`, ""},
		{"restricted", "plugins/a/x.go", `import "os/exec"`, "may use"},
		{"restricted", "plugins/a/x.go", "import \"os\"\nfunc f() { os.Exit(1) }", "os.Exit"},
		{"restricted", "plugins/a/x.go", "import \"os\"\nfunc f() { os.Remove(\"a\") }", ""},
		{"restricted", "pkg/nl/x.go", "import \"golang.org/x/sys/unix\"\nfunc f() { unix.Setns(0, 0) }", "only [] may use"},
		{"restricted", "pkg/nl/x.go", `import "github.com/vishvananda/netns"`, "only [pkg/ns] may use"},
		{"restricted", "pkg/ns/x.go", `import "github.com/vishvananda/netns"`, ""},
		{"restricted", "pkg/nl/x.go", "import \"fmt\"\nfunc f() { fmt.Println() }", "fmt.Println"},
		{"restricted", "pkg/nl/x.go", "import \"fmt\"\nfunc f() { fmt.Sprint() }", ""},
		{"restricted", "pkg/nl/x.go", "import q \"os\"\nvar x = q.Getenv(\"A\")", "os.Getenv"},
		{"proc/sys", "pkg/nl/x.go", "const f = \"/proc/sys/net\"", "pkg/sysctl"},
		{"proc/sys", "pkg/sysctl/x.go", "const f = \"/proc/sys/net\"", ""},
		{"no init", "pkg/nl/x.go", "func init() {}", "init function"},
		{"no init", "pkg/nl/x.go", "import _ \"embed\"", "import with a name"},
		{"package variables", "pkg/nl/x.go", "var x int", "x is a variable"},
		{"package variables", "pkg/nl/x.go", "var x = f()", "x is a variable"},
		{"package variables", "pkg/nl/x.go", "var x = map[int]int{1: 2}\nvar e = errors.New(\"a\")", ""},
		{"package variables", "pkg/nl/x.go", "var x = map[int]int{1: 2}\nfunc f() { x[2] = 3 }", "writes to x"},
		{"package variables", "pkg/nl/x.go", "var x = []int{1}\nfunc f() { x := 1; x = 2 }", ""},
		{"package variables", "pkg/nl/x.go", "var x = map[int]int{}\nfunc f() { delete(x, 1) }", "writes to x"},
		{"functions", "pkg/nl/x.go", "func f(a, b, c, d, e int) {}", "got 5"},
		{"functions", "pkg/nl/x.go", "func F(a bool) {}", "takes a bool"},
		{"functions", "pkg/nl/x.go", "func f() {" + strings.Repeat("\n", 60) + "}", "got 61"},
		{"functions", "pkg/nl/x.go", "func f() {" + strings.Repeat("\n", 59) + "}", ""},
		{"errors", "pkg/nl/x.go", "func f() { fmt.Errorf(\"read %s: %v\", name, err) }", "errors.Is"},
		{"errors", "pkg/nl/x.go", "func f() { types.Errorf(7, \"read: %s\", err.Error()) }", "errors.Is"},
		{"errors", "pkg/nl/x.go", "func f() { fmt.Errorf(\"read %v: %w\", name, err) }", ""},
		{"errors", "pkg/nl/x.go", "func f() { errors.New(\"failed to read\") }", "want the verb"},
		{"errors", "pkg/nl/x.go", "func f() { fmt.Errorf(\"Read it\") }", "capital"},
		{"errors", "pkg/nl/x.go", "func f() { fmt.Errorf(\"CNI_NETNS is\") }", ""},
		{"main", "plugins/a/main.go", "func main() { skel.Main(plugin()) }", ""},
		{"main", "plugins/a/main.go", "func main() {\n}", "one line"},
	} {
		s := parse(t, c.name, "package x\n"+c.text)
		got := strings.Join(checks[c.check](s), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s of %q in %s: want %q, got %q", c.check, c.text, c.name, c.want, got)
		}
	}
}

// TestNoBuiltExecutables finds executables in the tree, which "git add" would take for sources.
func TestNoBuiltExecutables(t *testing.T) {
	ignored := []string{".git", "bin", "release", ".patched"} // see .gitignore
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && slices.Contains(ignored, d.Name()) {
			return cmp.Or(err, filepath.SkipDir)
		}
		if !d.Type().IsRegular() || strings.HasSuffix(path, ".test") {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		start := make([]byte, 4)
		if n, _ := f.Read(start); string(start[:n]) == "\x7fELF" {
			t.Errorf("%s is a built executable; build into bin/", path)
		}
		return f.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}
