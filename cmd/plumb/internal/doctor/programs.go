package doctor

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/pkg/types"
)

// An executable is the executable of a plugin.
type executable struct {
	name    string
	path    string // empty: the folders do not have it
	problem string // why it cannot run; empty: it can
	version string // of plumb's plugins
	// serves has the versions of the specification that it supports.
	serves []string
}

// findPrograms finds the executables of the plugins that the configurations name.
func (e *examination) findPrograms() {
	e.executables = map[string]*executable{}
	for _, f := range e.parsed() {
		for _, name := range f.types() {
			e.executable(name)
		}
	}
}

// executable returns the executable of a plugin. It looks for it once.
func (e *examination) executable(name string) *executable {
	if e.executables[name] == nil {
		e.executables[name] = e.look(name)
	}
	return e.executables[name]
}

// look looks for the executable of a plugin as libcni does: the first regular file counts.
func (e *examination) look(name string) *executable {
	x := &executable{name: name}
	path, err := invoke.FindInPath(name, e.PluginPath)
	if err != nil {
		return x
	}
	x.path = path
	e.report.Executables = append(e.report.Executables, path)
	if x.problem = whyNotRunnable(path); x.problem == "" {
		x.read(e.ctx, e.caller())
	}
	return x
}

// whyNotRunnable returns why the kernel cannot run a file, or "".
func whyNotRunnable(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	if info.Mode()&0o111 == 0 {
		return fmt.Sprintf("not executable (mode %04o)", info.Mode().Perm())
	}
	own, err := elf.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer func() { _ = own.Close() }()
	other, err := elf.Open(path)
	if err != nil {
		return "" // such as a script
	}
	defer func() { _ = other.Close() }()
	if other.Machine != own.Machine && (runtime.GOARCH != "amd64" || other.Machine != elf.EM_386) {
		return fmt.Sprintf("for another processor (%v)", other.Machine)
	}
	return ""
}

// read asks the executable for its versions.
func (x *executable) read(ctx context.Context, c *caller) {
	info, err := invoke.GetVersionInfo(ctx, x.path, c)
	if err != nil {
		x.problem = "does not answer VERSION: " + err.Error()
		return
	}
	x.serves = info.SupportedVersions()
	if isPlumbs(x.path) {
		x.version = c.banner(ctx, x.path)
	}
}

// caller returns what calls plugins.
func (e *examination) caller() *caller { return &caller{limit: e.Timeout} }

// banner returns the version that a plugin of plumb prints if it is called without CNI variables:
// "CNI bridge plugin v2.0.0".
func (c *caller) banner(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	var out bytes.Buffer
	cmd := c.command(ctx, path, []string{"PATH=/usr/bin:/bin"})
	cmd.Stderr = &out
	_ = cmd.Run() // without a first line there is no version
	line, _, _ := strings.Cut(out.String(), "\n")
	words := strings.Fields(line)
	if len(words) < 4 {
		return ""
	}
	return words[3]
}

// install returns how to install an executable at a path: by a copy, if a folder has the plugin of plumb's wanted version;
// empty: of any. An executable of another project may support fewer versions of the specification, and other keys.
func (e *examination) install(name, where, version string) string {
	for _, dir := range e.Spare {
		from := filepath.Join(dir, name)
		if _, err := os.Stat(from); err != nil || from == where || whyNotRunnable(from) != "" || !isPlumbs(from) {
			continue
		}
		if have := e.caller().banner(e.ctx, from); have != "" && (have == version || version == "") {
			return fmt.Sprintf("install -m 0755 %s %s", node.Quote(from), node.Quote(where))
		}
	}
	if !slices.Contains(schema.Names(), name) {
		return fmt.Sprintf("%sinstall the plugin %s as %s", edit, name, where)
	}
	return fmt.Sprintf("%splumb install --from DIR --to %s --only %s, where DIR has the plugins of %s", edit,
		node.Quote(filepath.Dir(where)), name, strings.TrimSpace("plumb "+version))
}

// isPlumbs reports whether an executable is a plugin of plumb.
func isPlumbs(path string) bool {
	built, err := buildinfo.ReadFile(path)
	return err == nil && strings.HasPrefix(built.Path, "github.com/plumb-cni/plumb/plugins/")
}

// usualVersion returns the version that most executables of plumb have; empty: there are none.
func (e *examination) usualVersion() (usual string) {
	count := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(e.executables)) {
		version := e.executables[name].version
		if version == "" {
			continue
		}
		if count[version]++; count[version] > count[usual] {
			usual = version
		}
	}
	return usual
}

// findExecutables finds plugins without an executable that can run.
func findExecutables(e *examination) (found []Finding) {
	for _, f := range e.parsed() {
		for _, p := range f.plugins {
			found = append(found, e.checkProgram(f, p.Get("type"), p.Path)...)
			found = append(found, e.checkProgram(f, p.ipam.Get("type"), strings.TrimPrefix(p.Path+".ipam", "."))...)
		}
	}
	return found
}

// checkProgram returns the finding for the executable that a key type names, if there is something wrong.
func (e *examination) checkProgram(f *file, typ *schema.Value, at string) []Finding {
	if typ.Text() == "" {
		return nil
	}
	if strings.Contains(typ.Text(), "/") {
		return e.pathForName(f, typ, at)
	}
	x := e.executables[typ.Text()]
	what := strings.TrimPrefix(at+".type", ".") + fmt.Sprintf(" %q: ", x.name)
	switch {
	case x.path == "" && len(e.PluginPath) == 0:
		what += "there is no folder of plugins"
	case x.path == "" && e.folderNamed(x.name) != "":
		what += e.folderNamed(x.name) + " is a folder"
	case x.path == "":
		what += "no executable in " + strings.Join(e.PluginPath, ":")
		if likely := types.Nearest(x.name, schema.Names()); likely != "" && e.look(likely).path != "" {
			e.broken[f] = true
			return []Finding{{Where: f.at(typ), What: what + "; " + likely + " was probably meant",
				Mend: f.replace(typ.Line, typ.Key, fmt.Sprintf("%q", x.name), fmt.Sprintf("%q", likely))}}
		}
	case x.problem != "":
		what += x.path + ": " + x.problem
	default:
		return nil
	}
	e.broken[f] = true
	return []Finding{{Where: f.at(typ), What: what, Mend: e.mendProgram(x)}}
}

// pathForName returns the finding for a type that is a path.
func (e *examination) pathForName(f *file, typ *schema.Value, at string) []Finding {
	e.broken[f] = true
	what := strings.TrimPrefix(at+".type", ".") + fmt.Sprintf(" %q: want a name without /", typ.Text())
	likely := filepath.Base(typ.Text())
	if !slices.Contains(schema.Names(), likely) || e.look(likely).path == "" {
		return []Finding{{Where: f.at(typ), What: what, Mend: edit + "write the name of a plugin, which is that of its executable in CNI_PATH"}}
	}
	return []Finding{{Where: f.at(typ), What: what + "; " + likely + " was probably meant",
		Mend: f.replace(typ.Line, typ.Key, typ.Literal(), fmt.Sprintf("%q", likely))}}
}

// folderNamed returns the first folder in CNI_PATH with the name of a plugin, or "".
func (e *examination) folderNamed(plugin string) string {
	for _, dir := range e.PluginPath {
		path := filepath.Join(dir, plugin)
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return path
		}
	}
	return ""
}

// mendProgram returns how to mend the executable of a plugin.
func (e *examination) mendProgram(x *executable) string {
	path, before := x.path, ""
	switch {
	case strings.HasPrefix(x.problem, "not executable"):
		return "chmod 0755 " + node.Quote(path)
	case path != "":
	case e.folderNamed(x.name) != "":
		path = e.folderNamed(x.name)
		before = "mv -nT " + node.Quote(path) + " " + node.Quote(path+".folder") // without -T into the folder of that name, if there is one
	case len(e.PluginPath) > 0:
		path = filepath.Join(e.PluginPath[0], x.name)
	default:
		return edit + "name the folder of the plugins with --cni-path"
	}
	mend := e.install(x.name, path, e.usualVersion())
	switch {
	case before == "":
		return mend
	case strings.HasPrefix(mend, edit):
		return before // what is missing then is a finding of its own
	}
	return before + " && " + mend
}

// findVersions finds networks with a version that one of their plugins does not support.
func findVersions(e *examination) (found []Finding) {
	for _, f := range e.good() {
		version := f.version()
		if version == "" && f.top.Get("cniVersions") != nil {
			continue // the runtime chooses one
		}
		if version == "" {
			version = "0.1.0" // as libcni
		}
		var cannot []string
		common := types.VersionsSince(types.V010)
		for _, name := range f.types() {
			serves := e.executables[name].serves
			if !slices.Contains(serves, version) {
				cannot = append(cannot, fmt.Sprintf("%s (%s)", name, strings.Join(serves, ", ")))
			}
			common = slices.DeleteFunc(common, func(v string) bool { return !slices.Contains(serves, v) })
		}
		if len(cannot) == 0 {
			continue
		}
		e.broken[f] = true
		what := fmt.Sprintf("cniVersion %q: not supported by %s", version, strings.Join(cannot, ", "))
		found = append(found, Finding{Where: f.at(f.top.Get("cniVersion")), What: what, Mend: f.mendVersion(version, common)})
	}
	return found
}

// mendVersion returns how to set the newest version that all plugins support.
func (f *file) mendVersion(have string, common []string) string {
	v := f.top.Get("cniVersion")
	switch {
	case len(common) == 0:
		return edit + "install newer plugins: they have no version in common"
	case v.Text() == "":
		return fmt.Sprintf("%sadd \"cniVersion\": %q to %s", edit, common[len(common)-1], f.path)
	}
	return f.replace(v.Line, v.Key, fmt.Sprintf("%q", have), fmt.Sprintf("%q", common[len(common)-1]))
}

// findMixed finds executables of plumb that are not of the version that most of them have.
func findMixed(e *examination) (found []Finding) {
	usual := e.usualVersion()
	for _, name := range slices.Sorted(maps.Keys(e.executables)) {
		if x := e.executables[name]; x.version != "" && x.version != usual {
			found = append(found, Finding{
				Where: x.path, What: fmt.Sprintf("has version %s, and most plugins of plumb have %s", x.version, usual),
				Mend: e.install(x.name, x.path, usual),
			})
		}
	}
	return found
}
