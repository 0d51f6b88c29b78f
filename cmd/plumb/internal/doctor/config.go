package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
)

// A file is a configuration file.
type file struct {
	path    string
	err     error         // the file cannot be read, or is no JSON
	top     *schema.Value // nil if err is set
	lines   []string
	plugins []plugin
}

// A plugin is one plugin of a configuration.
type plugin struct {
	*schema.Value
	typ  string
	ipam *schema.Value // nil: none
}

// name returns the name of the network.
func (f *file) name() string { return f.top.Get("name").Text() }

// isList reports whether the content is a list of configurations.
func (f *file) isList() bool { return f.top.Get("plugins") != nil }

// version returns the cniVersion of the network.
func (f *file) version() string { return f.top.Get("cniVersion").Text() }

// at returns the Where of a value.
func (f *file) at(v *schema.Value) string {
	if v == nil {
		return f.path
	}
	return fmt.Sprintf("%s:%d", f.path, v.Line)
}

// types returns the types of the plugins and IPAM plugins.
func (f *file) types() []string {
	var all []string
	for _, p := range f.plugins {
		all = append(all, p.typ)
		if p.ipam.Get("type").Text() != "" {
			all = append(all, p.ipam.Get("type").Text())
		}
	}
	return all
}

// readFiles reads the files of the options, or those that libcni reads in the folder.
func (e *examination) readFiles() error {
	paths := e.Files
	if len(paths) == 0 {
		found, err := libcni.ConfFiles(e.ConfDir, configurationEndings())
		if err != nil {
			return err
		}
		slices.Sort(found)
		paths = append(found, node.ListsBelow(e.ConfDir)...)
	}
	for _, path := range paths {
		if strings.HasPrefix(path, "-") {
			path = "./" + path // in a command, it is no flag then
		}
		f, err := readFile(path)
		switch {
		case err != nil && (len(e.Files) > 0 || errors.Is(err, fs.ErrPermission)):
			return err
		case err != nil: // for a finding
			f = &file{path: path, err: err}
		}
		e.files = append(e.files, f)
		e.report.Files = append(e.report.Files, path)
	}
	return nil
}

// readFile reads a file. It fails if that is not possible; wrong content is in file.err.
func readFile(path string) (*file, error) {
	text, err := node.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &file{path: path, lines: strings.Split(string(text), "\n")}
	if f.top, f.err = schema.Parse(text); f.err == nil && f.top.Kind() != "object" {
		f.err = errors.New("line 1: want an object")
	}
	if f.err != nil {
		return f, nil
	}
	f.add(f.top)
	for _, item := range f.top.Get("plugins").Items() {
		f.add(item)
	}
	return f, nil
}

// add adds a plugin, if the value is one.
func (f *file) add(v *schema.Value) {
	if typ := v.Get("type").Text(); typ != "" {
		p := plugin{Value: v, typ: typ}
		if v.Get("ipam").Get("type").Text() != "" {
			p.ipam = v.Get("ipam")
		}
		f.plugins = append(f.plugins, p)
	}
}

// good returns the files with a valid content in which no check found a reason for more findings.
func (e *examination) good() []*file {
	return slices.DeleteFunc(slices.Clone(e.files), func(f *file) bool { return f.err != nil || e.broken[f] })
}

// parsed returns the files that are JSON objects.
func (e *examination) parsed() []*file {
	return slices.DeleteFunc(slices.Clone(e.files), func(f *file) bool { return f.err != nil })
}

// unreadable returns the finding for a file that cannot be read.
func (f *file) unreadable(err error) Finding {
	what, mend := "cannot be read: ", edit+"remove it, or move it to another folder"
	if target, noLink := os.Readlink(f.path); noLink == nil {
		what += "it is a link to " + target + ": "
		mend = "rm " + node.Quote(f.path)
	}
	return Finding{Where: f.path, What: what + err.Error(), Mend: mend}
}

// findSyntax finds files that cannot be read, or are no JSON.
func findSyntax(e *examination) (found []Finding) {
	for _, f := range e.files {
		if f.err == nil {
			continue
		}
		if unread := (*fs.PathError)(nil); errors.As(f.err, &unread) {
			found = append(found, f.unreadable(unread.Err))
			continue
		}
		where, what := f.path, f.err.Error()
		if line, rest, ok := strings.Cut(strings.TrimPrefix(what, "line "), ": "); ok {
			where, what = f.path+":"+line, rest
		}
		found = append(found, Finding{Where: where, What: "no valid JSON: " + what, Mend: edit + "correct the text there; no plugin of this file can be called"})
	}
	return found
}

// configurationEndings returns the endings of the names of files that libcni reads.
func configurationEndings() []string { return []string{".conflist", ".conf", ".json"} }

// findFileKind finds files whose name does not say whether they are a list, and folders with the name of such a file.
func findFileKind(e *examination) (found []Finding) {
	if entries, err := os.ReadDir(e.ConfDir); err == nil && len(e.Options.Files) == 0 {
		for _, entry := range entries {
			if entry.IsDir() && slices.Contains(configurationEndings(), filepath.Ext(entry.Name())) {
				found = append(found, Finding{Where: filepath.Join(e.ConfDir, entry.Name()), What: "is a folder, in which libcni reads no configuration",
					Mend: edit + "move the configurations in it to " + e.ConfDir + ", or give the folder another name"})
			}
		}
	}
	for _, f := range e.parsed() {
		ext := filepath.Ext(f.path)
		base := strings.TrimSuffix(f.path, ext)
		switch {
		case f.isList() && ext != ".conflist":
			found = append(found, e.rename(f, base+".conflist", "the file is a list of plugins, and libcni reads a list from a file *.conflist only"))
		case !f.isList() && f.top.Get("type") != nil && ext == ".conflist":
			found = append(found, e.rename(f, base+".conf", "the file is the configuration of one plugin, and libcni expects a list in a file *.conflist"))
		}
	}
	return found
}

// rename returns the finding for a file that needs another name.
func (e *examination) rename(f *file, to, what string) Finding {
	e.broken[f] = true
	return Finding{Where: f.path, What: what, Mend: "mv -n " + node.Quote(f.path) + " " + node.Quote(to)}
}

// findNone finds a folder without a configuration.
func findNone(e *examination) []Finding {
	hasList := func(n *node.Network) bool { return n.List() != nil } // of libcni's cache: Nomad writes no file
	if len(e.files) > 0 || slices.ContainsFunc(e.inventory.Networks, hasList) {
		return nil
	}
	return []Finding{{
		Where: e.ConfDir, What: "no configuration of a network (*.conflist, *.conf, *.json)",
		Mend: edit + "write a file *.conflist into the folder, or name the runtime's folder with --conf-dir",
	}}
}

// findOrder finds that the order of the first two files depends on more than their number.
func findOrder(e *examination) []Finding {
	if len(e.Options.Files) > 0 || len(e.files) < 2 || e.broken[e.files[1]] { // a broken one gets another name anyway
		return nil
	}
	number := regexp.MustCompile(`^[0-9]+`)
	first, second := filepath.Base(e.files[0].path), filepath.Base(e.files[1].path)
	n := number.FindString(first)
	if filepath.Dir(e.files[0].path) != filepath.Dir(e.files[1].path) || n == "" || n != number.FindString(second) {
		return nil
	}
	next, _ := strconv.Atoi(n) // digits only
	to := filepath.Join(filepath.Dir(e.files[1].path), fmt.Sprintf("%0*d%s", len(n), next+1, second[len(n):]))
	return []Finding{{
		Where: e.files[1].path,
		What:  fmt.Sprintf("begins with %s, as %s does. A Kubernetes runtime uses the first file of the folder only, and which is first depends on the rest of the names", n, first),
		Mend:  "mv -n " + node.Quote(e.files[1].path) + " " + node.Quote(to),
	}}
}

// findDuplicates finds networks with more than one file.
func findDuplicates(e *examination) (found []Finding) {
	first := map[string]*file{}
	for _, f := range e.parsed() {
		name := f.name()
		key := filepath.Join(filepath.Dir(f.path), name) // the namespaces of nerdctl may have networks of the same name
		if len(e.Options.Files) > 0 {
			key = name
		}
		if first[key] == nil {
			first[key] = f
			continue
		}
		if name != "" && !e.broken[f] {
			found = append(found, e.rename(f, f.path+".unused", fmt.Sprintf("the network %q has a file already: %s", name, first[key].path)))
		}
	}
	return found
}

// findKeys finds keys that a plugin does not know, and values that it refuses.
func findKeys(e *examination) (found []Finding) {
	for _, f := range e.parsed() {
		name := schema.ConfList
		if !f.isList() && (filepath.Ext(f.path) != ".conflist" || f.top.Get("type") != nil) {
			name = f.top.Get("type").Text()
			if !slices.Contains(schema.Names(), name) {
				continue
			}
		}
		problems, err := schema.Check(name, f.top)
		e.unread(f.path, err)
		for _, p := range problems {
			if f.isForeign(p) || f.isLeftOut(p) {
				continue
			}
			if p.Kind != schema.UnknownKey && p.Kind != schema.RepeatedKey && p.Kind != schema.IgnoredValue {
				e.broken[f] = true
			}
			what := p.Text
			if p.Path != "" {
				what = p.Path + ": " + p.Text
			}
			found = append(found, Finding{Where: fmt.Sprintf("%s:%d", f.path, p.Line), What: what, Mend: f.mend(p)})
		}
		found = append(found, e.findValues(f)...)
		found = append(found, e.findSysctls(f)...)
		if name == schema.ConfList {
			found = append(found, e.findPlugins(f, problems)...)
		}
	}
	return found
}

// findPlugins finds a list without plugins, and items of the list that are null. problems are those of the keys.
func (e *examination) findPlugins(f *file, problems []schema.Problem) (found []Finding) {
	add := func(v *schema.Value, what, mend string) {
		e.broken[f] = true
		found = append(found, Finding{Where: f.at(v), What: what, Mend: edit + mend})
	}
	for _, item := range f.top.Get("plugins").Items() {
		if item.Kind() == "null" {
			add(item, item.Path+": want an object, have null", fmt.Sprintf("delete null in line %d of %s", item.Line, f.path))
		}
	}
	e.broken[f] = e.broken[f] || f.name() == "" || len(f.plugins) == 0
	isMeant := slices.ContainsFunc(problems, func(p schema.Problem) bool { return p.Want == `"plugins"` })
	if !f.isList() && !f.hasFolder() && !isMeant {
		add(f.top, `the key "plugins" is missing`, "add the list of plugins to "+f.path)
	}
	return found
}

// hasFolder reports whether there is a folder with the name of the network, from which libcni also reads plugins, and it
// has plugins or cannot be read.
func (f *file) hasFolder() bool {
	plugins, err := libcni.NetworkPluginConfsFromFiles(filepath.Dir(f.path), f.name())
	return err != nil || len(plugins) > 0
}

// isLeftOut reports whether a wrong value is no finding of this check: findVersions knows which versions the plugins
// support, and an empty list of plugins is right if a folder has the plugins.
func (f *file) isLeftOut(p schema.Problem) bool {
	return p.Kind == schema.WrongValue && (p.Path == "cniVersion" || p.Path == "plugins" && f.hasFolder())
}

// isForeign reports whether a problem is a key that another program has for itself: a key of the list, as nerdctl writes
// nerdctlID, or one with a dot, as com.example.key.
func (f *file) isForeign(p schema.Problem) bool {
	return p.Kind == schema.UnknownKey && p.Want == "" && (f.isList() && p.Path == p.Key || strings.Contains(p.Key, "."))
}

// mend returns how to mend a problem: by sed, if it is known what was meant.
func (f *file) mend(p schema.Problem) string {
	switch {
	case p.Want != "" && p.Kind == schema.UnknownKey && f.isUnique(p.Line, regexp.QuoteMeta(p.Have)+`\s*:`):
		return f.sed(p.Line, basic(p.Have)+`\([[:space:]]*:\)`, replacement(p.Want)+`\1`)
	case p.Want != "" && p.Kind == schema.UnknownKey:
		return fmt.Sprintf("%swrite %s for %s in line %d of %s, where it is %s", edit, p.Want, p.Have, p.Line, f.path, p.Path)
	case p.Want != "" && p.Key != "":
		return f.replace(p.Line, p.Key, p.Have, p.Want)
	case p.Kind == schema.UnknownKey, p.Kind == schema.RepeatedKey:
		return fmt.Sprintf("%sdelete the key %q in line %d of %s", edit, p.Key, p.Line, f.path)
	case p.Kind == schema.MissingKey:
		return fmt.Sprintf("%sadd the key to the object in line %d of %s", edit, p.Line, f.path)
	}
	return fmt.Sprintf("%scorrect the value in line %d of %s", edit, p.Line, f.path)
}

// replace returns the command that replaces the value of a key. Both values are JSON. If the line has this key with this
// value in another place, too, replace returns the advice to do it by hand.
func (f *file) replace(line int, key, have, want string) string {
	if !f.isUnique(line, `"`+regexp.QuoteMeta(key)+`"\s*:\s*`+regexp.QuoteMeta(have)) {
		return fmt.Sprintf("%sset %q to %s in line %d of %s", edit, key, want, line, f.path)
	}
	return f.sed(line, `\("`+basic(key)+`"[[:space:]]*:[[:space:]]*\)`+basic(have), `\1`+replacement(want))
}

// isUnique reports whether a line has exactly one match of a pattern.
func (f *file) isUnique(line int, pattern string) bool {
	return line <= len(f.lines) && len(regexp.MustCompile(pattern).FindAllString(f.lines[line-1], 2)) == 1
}

// sed returns the command that replaces the first match in a line of the file.
func (f *file) sed(line int, pattern, by string) string {
	return fmt.Sprintf("sed -i %s %s", node.Quote(fmt.Sprintf("%ds/%s/%s/", line, pattern, by)), node.Quote(f.path))
}

// basic returns the basic regular expression that matches a text.
func basic(text string) string {
	return regexp.MustCompile(`[\\/.*^$\[\]]`).ReplaceAllString(text, `\$0`)
}

// replacement returns the replacement of sed that is a text.
func replacement(text string) string {
	return regexp.MustCompile(`[\\/&]`).ReplaceAllString(text, `\$0`)
}
