package doctor

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/runtimes"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A file is a configuration file.
type file struct {
	path    string
	err     error                     // set if the file cannot be read or is not a JSON object
	top     *schema.Value             // the content; nil if err is set
	list    *libcni.NetworkConfigList // nil if libcni rejects it with listErr
	listErr error
	plugins []plugin // the list's plugins
	// explained means that a finding may explain what later checks would find.
	explained bool
	renamed   string // the path that a finding gives the file; empty if none does
	unused    bool   // a finding gives the file a name that libcni does not read
	// incomplete means that an executable is missing or cannot run.
	incomplete bool
}

// A plugin is one plugin of a list.
type plugin struct {
	*libcni.PluginConfig
	node.Keys
	file *file         // the file that contains the list
	at   *schema.Value // nil if the plugin is configured in another file
}

func (p plugin) where(key string) string { return p.file.where(p.at.Get(key)) }

func pluginsOf(files []*file) (all []plugin) {
	for _, f := range files {
		all = append(all, f.plugins...)
	}
	return all
}

func (f *file) name() string { return f.top.Get("name").Text() }

func (f *file) isList() bool { return f.top.Get("plugins") != nil }

// where returns the Where of a value.
func (f *file) where(v *schema.Value) string {
	if v == nil {
		return f.path
	}
	return fmt.Sprintf("%s:%d", f.path, v.Line)
}

// types returns the types of the plugins and IPAM plugins.
func (f *file) types() (all []string) {
	for _, p := range f.plugins {
		all = append(all, p.Type)
		if p.IPAMType != "" {
			all = append(all, p.IPAMType)
		}
	}
	return all
}

// readFiles reads o.Files or, if there are none, the files in ConfDirs that libcni reads and nerdctl's lists below it.
func (o Options) readFiles() (files []*file, err error) {
	paths := o.Files
	for _, dir := range o.ConfDirs {
		if len(o.Files) > 0 {
			break
		}
		found, err := libcni.ConfFiles(dir, configurationEndings())
		if err != nil {
			return nil, err
		}
		slices.Sort(found)
		paths = slices.Concat(paths, found, node.ListsBelow(dir))
	}
	for _, path := range paths {
		if strings.HasPrefix(path, "-") {
			path = "./" + path // a command must not read the path as a flag
		}
		f := &file{path: path}
		f.read()
		if errors.As(f.err, new(*fs.PathError)) && (len(o.Files) > 0 || errors.Is(f.err, fs.ErrPermission)) {
			return nil, f.err
		}
		files = append(files, f)
	}
	return files, nil
}

var errByteOrderMark = errors.New("the file begins with a byte order mark, which JSON does not allow")

func (f *file) read() {
	text, err := node.ReadFile(f.path)
	if err != nil {
		f.err = err
		return
	}
	if bytes.HasPrefix(text, []byte("\xef\xbb\xbf")) {
		f.err = &schema.SyntaxError{Line: 1, Err: errByteOrderMark}
		return
	}
	if f.top, f.err = schema.Parse(text); f.err == nil && !f.top.IsObject() {
		f.top, f.err = nil, &schema.SyntaxError{Line: 1, Err: errors.New("want an object")}
	}
	if f.err != nil {
		return
	}
	if f.list, f.listErr = node.ReadConfiguration(f.path); f.listErr != nil {
		return
	}
	for i, conf := range f.list.Plugins {
		p := plugin{conf, node.KeysOf(conf), f, f.top}
		if f.isList() {
			p.at = f.top.Find(fmt.Sprintf("plugins[%d]", i))
		}
		f.plugins = append(f.plugins, p)
	}
}

// usable returns the files without a finding that may explain others.
func usable(files []*file) []*file {
	return slices.DeleteFunc(slices.Clone(files), func(f *file) bool { return f.list == nil || f.explained || f.incomplete })
}

// parsed returns the files that are JSON objects.
func parsed(files []*file) []*file {
	return slices.DeleteFunc(slices.Clone(files), func(f *file) bool { return f.top == nil })
}

// findSyntax finds files that cannot be read or are not JSON objects.
func findSyntax(files []*file, add addFunc) {
	for _, f := range files {
		var unread *fs.PathError
		var syntax *schema.SyntaxError
		switch {
		case errors.As(f.err, &unread):
			link, fix := "", say("Remove it, or move it to another directory.")
			if target, err := os.Readlink(f.path); err == nil {
				link, fix = "link to "+target+": ", run("rm", f.path)
			}
			add(f.path, fix, "cannot be read: %s%v", link, unread.Err)
		case errors.As(f.err, &syntax) && errors.Is(syntax.Err, errByteOrderMark):
			add(f.path+":1", run("sed", "-i", `1s/^\xef\xbb\xbf//`, f.path), "not valid JSON: %v", syntax.Err)
		case errors.As(f.err, &syntax):
			lines := fmt.Sprintf("line %d", syntax.Line)
			if syntax.Before > 0 {
				lines += fmt.Sprintf(", or the end of line %d", syntax.Before)
			}
			add(fmt.Sprintf("%s:%d", f.path, syntax.Line), f.edit("correct %s, because no plugin of this file can be called", lines),
				"not valid JSON: %v", syntax.Err)
		}
	}
}

// configurationEndings returns the extensions of the files that libcni reads.
func configurationEndings() []string { return []string{".conflist", ".conf", ".json"} }

// findFileKind finds files whose extension does not fit their content, and directories with the extension of a configuration.
func (o Options) findFileKind(files []*file, add addFunc) {
	for _, dir := range o.ConfDirs {
		entries, _ := os.ReadDir(dir) // readFiles has returned the error
		for _, entry := range entries {
			if entry.IsDir() && len(o.Files) == 0 && slices.Contains(configurationEndings(), filepath.Ext(entry.Name())) {
				add(filepath.Join(dir, entry.Name()), say("Move the configurations in it to %s, or give the directory another name.", dir),
					"is a directory, and libcni does not read the configurations in it")
			}
		}
	}
	for _, f := range parsed(files) {
		what, want := "", ""
		switch ext := filepath.Ext(f.path); {
		case f.isList() && ext != ".conflist":
			what, want = "the file contains a list of plugins, and libcni reads lists only from files *.conflist", ".conflist"
		case !f.isList() && f.top.Get("type") != nil && ext == ".conflist":
			what, want = "the file contains the configuration of one plugin, and libcni expects a list in a file *.conflist", ".conf"
		default:
			continue
		}
		same := func(other *file) bool { return other != f && o.isOfNetwork(other, f) && other.isReadable() }
		if i := slices.IndexFunc(files, same); i >= 0 {
			f.disable(files, add, "%s; another file configures the network %q: %s", what, f.name(), files[i].path)
			continue
		}
		to := strings.TrimSuffix(f.path, filepath.Ext(f.path)) + want
		f.rename(freeName(files, func(i int) string { return withNumber(to, i) }), add, "%s", what)
	}
}

// isOfNetwork reports whether a file configures the network of f. nerdctl's namespaces may contain networks with the same name.
func (o Options) isOfNetwork(other, f *file) bool {
	return other.top != nil && f.name() != "" && other.name() == f.name() && (len(o.Files) > 0 || filepath.Dir(other.path) == filepath.Dir(f.path))
}

// isReadable reports whether libcni reads the file, or will read it under the name that a finding gives it.
func (f *file) isReadable() bool {
	hasKind := f.isList() == (filepath.Ext(f.path) == ".conflist")
	return !f.unused && (f.renamed != "" || hasKind && f.list != nil)
}

// rename adds the finding for a file that needs another name. No file may have the name, because mv -n would then do nothing.
func (f *file) rename(to string, add addFunc, format string, args ...any) {
	f.explained, f.renamed = true, to
	add(f.path, run("mv", "-n", f.path, to), format, args...)
}

// disable adds the finding for a file that needs a name that libcni does not read.
func (f *file) disable(files []*file, add addFunc, format string, args ...any) {
	f.unused = true
	f.rename(freeName(files, suffixes(f.path+".unused")), add, format, args...)
}

// freeName returns the first of the names that no file has, and that no finding gives to a file.
func freeName(files []*file, name func(i int) string) string {
	for i := 0; ; i++ {
		to := name(i)
		_, err := os.Lstat(to)
		if err != nil && !slices.ContainsFunc(files, func(f *file) bool { return f.renamed == to }) {
			return to
		}
	}
}

// suffixes returns the function for the names path, path2, path3, ….
func suffixes(path string) func(i int) string {
	return func(i int) string {
		if i == 0 {
			return path
		}
		return path + strconv.Itoa(i+1)
	}
}

// withNumber returns the path with a number at the beginning of the file name that is higher by i, or else with a number at its
// end, so that the file does not come before the one that has the name.
func withNumber(path string, i int) string {
	dir, name := filepath.Split(path)
	n := leadingNumber(name)
	number, err := strconv.Atoi(n)
	switch {
	case i == 0:
		return path
	case err != nil:
		return strings.TrimSuffix(path, filepath.Ext(path)) + "_" + strconv.Itoa(i+1) + filepath.Ext(path)
	}
	return filepath.Join(dir, fmt.Sprintf("%0*d%s", len(n), number+i, name[len(n):]))
}

func leadingNumber(name string) string {
	return name[:len(name)-len(strings.TrimLeft(name, "0123456789"))]
}

// findOrder finds that the first two files of the first directory begin with the same number. It considers the names that other
// findings give to files.
func (o Options) findOrder(files []*file, add addFunc) {
	next := func(f *file) string { return cmp.Or(f.renamed, f.path) }
	read := slices.DeleteFunc(slices.Clone(files), func(f *file) bool { return f.unused || filepath.Dir(f.path) != filepath.Dir(files[0].path) })
	slices.SortStableFunc(read, func(a, b *file) int { return cmp.Compare(next(a), next(b)) })
	if len(o.Files) > 0 || len(read) < 2 || read[1].explained || o.tellsNetworks(read[0]) { // read[1].explained means that read[1] gets another name anyway
		return
	}
	first, second := filepath.Base(next(read[0])), filepath.Base(read[1].path)
	n := leadingNumber(first)
	if n == "" || n != leadingNumber(second) {
		return
	}
	to := freeName(files, func(i int) string { return withNumber(read[1].path, i+1) })
	add(read[1].path, run("mv", "-n", read[1].path, to), "begins with %s, like %s. A Kubernetes runtime uses only the first file "+
		"of the directory, and the rest of the names decides which file is first", n, first)
}

// tellsNetworks reports whether a runtime that reads the file says which networks it uses.
func (o Options) tellsNetworks(f *file) bool {
	return slices.ContainsFunc(o.Runtimes, func(r runtimes.Runtime) bool {
		return r.Networks != nil && filepath.Clean(r.ConfDir) == filepath.Dir(f.path)
	})
}

// findDuplicates finds networks with more than one file. It keeps the first file that libcni can read.
func (o Options) findDuplicates(files []*file, add addFunc) {
	for _, f := range parsed(files) {
		if f.unused {
			continue
		}
		same := slices.DeleteFunc(slices.Clone(files), func(other *file) bool { return other.unused || !o.isOfNetwork(other, f) })
		if len(same) < 2 {
			continue
		}
		if kept := same[max(0, slices.IndexFunc(same, (*file).isReadable))]; kept != f {
			f.disable(files, add, "another file configures the network %q: %s", f.name(), kept.path)
		}
	}
}

// findKeys finds lists that libcni rejects, keys that occur twice, and capabilities that the plugin does not support. A
// plugin cannot see these problems in its own configuration.
func findKeys(files []*file, add addFunc) {
	for _, f := range parsed(files) {
		if f.listErr != nil && !f.explained {
			fix := withAdvice(f.edit("correct the list"), "An editor can check the file with the schema that plumb schema prints.")
			for _, v := range f.top.Members() {
				if likely := types.Nearest(v.Key, []string{"cniVersion", "name", "plugins"}); likely != "" && likely != v.Key {
					fix = f.edit("write %s in place of %s", likely, v.Path)
				}
			}
			add(f.path, fix, "libcni rejects it: %v", f.listErr)
		}
		for _, v := range f.top.Repeated() {
			add(f.where(v), f.edit("delete one of the two keys %s", v.Path), "%s: the key occurs twice, and the last one is used", v.Path)
		}
		for _, p := range f.plugins {
			known := schema.Capabilities(p.Type)
			for _, v := range p.at.Get("capabilities").Members() {
				if known == nil || slices.Contains(known, v.Key) {
					continue
				}
				fix := f.edit("replace %s with one of these, or delete it: %s", v.Path, strings.Join(known, ", "))
				if likely := types.Nearest(v.Key, known); likely != "" {
					fix = f.edit("write %s in place of %s", likely, v.Path)
				}
				add(f.where(v), withAdvice(fix, replaceContainers), "%s: %s does not support this capability, so the runtime passes it nothing", v.Path, p.Type)
			}
		}
	}
}
