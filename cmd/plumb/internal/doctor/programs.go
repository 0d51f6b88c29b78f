package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// findExecutables finds plugins without an executable that can run.
func (k asker) findExecutables(files []*file, add addFunc) {
	for _, f := range files {
		for _, name := range f.types() {
			k.caller.Find(k.ctx, name) // all executables must be found before findMixed calls UsualVersion
		}
	}
	if dir := missingDirectory(k.caller.Path); dir != "" && k.findNoDirectory(dir, files, add) {
		return // all executables are missing for the same reason
	}
	for _, p := range pluginsOf(files) {
		k.examine(p.file, p.at.Get("type"), add)
		k.examine(p.file, p.at.Get("ipam").Get("type"), add)
		if k.lacksDatastore(p) {
			k.examine(p.file, p.datastore(), add)
		}
	}
}

func (p plugin) datastore() *schema.Value { return p.at.Get("ipam").Get("datastore").Get("type") }

// lacksDatastore reports whether the executable of cluster-local's datastore is missing. It need not answer VERSION.
func (k asker) lacksDatastore(p plugin) bool {
	name := p.datastore().Text()
	return name != "" && k.caller.Find(k.ctx, name).Path == ""
}

// missingDirectory returns the first of the directories if none of them exists, and otherwise "".
func missingDirectory(dirs []string) string {
	if dir := firstExisting(dirs); dir != "" && !exists(dir) {
		return dir
	}
	return ""
}

// firstExisting returns the first of the directories that exists, the first one if none exists, or "" if there are none.
func firstExisting(dirs []string) string {
	if len(dirs) == 0 {
		return ""
	}
	return dirs[max(0, slices.IndexFunc(dirs, exists))]
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// findNoDirectory adds one finding for all plugins of the files, because their directory does not exist. It reports whether it did,
// which it does not if the files name no plugin.
func (k asker) findNoDirectory(dir string, files []*file, add addFunc) bool {
	var own, foreign []string // the names of plumb's plugins, and of others
	for _, f := range files {
		for _, name := range f.types() {
			f.incomplete = true
			if slices.Contains(schema.Names(), name) {
				own = append(own, name)
			} else if !strings.Contains(name, "/") {
				foreign = append(foreign, name)
			}
		}
	}
	for _, r := range k.Runtimes {
		if lacksLoopback(r) && slices.Contains(r.PluginDirs, dir) {
			own = append(own, loopback)
		}
	}
	own, foreign = slices.Compact(slices.Sorted(slices.Values(own))), slices.Compact(slices.Sorted(slices.Values(foreign)))
	if len(own)+len(foreign) > 0 {
		add(onHost, k.installAll(own, foreign, dir), "the directory of the plugins does not exist: %s; these plugins are missing: %s",
			strings.Join(k.caller.Path, ", "), strings.Join(slices.Concat(own, foreign), ", "))
	}
	return len(own)+len(foreign) > 0
}

// installAll returns how to create the directory with plumb's plugins own and the plugins foreign of other projects.
func (k asker) installAll(own, foreign []string, dir string) plugins.Solution {
	others := strings.Join(foreign, ", ")
	if len(own) == 0 {
		return say("Create the directory, and install %s in it.", others)
	}
	to := dir
	if target, err := os.Readlink(dir); err == nil { // plumb install cannot create the directory in place of a link
		if to = target; !filepath.IsAbs(target) {
			to = filepath.Join(filepath.Dir(dir), target)
		}
	}
	command := func(from string) plugins.Solution {
		return run("plumb", "install", "--from", from, "--to", to, "--only", strings.Join(own, ","), "--create")
	}
	for _, from := range k.Spare {
		if !k.isPlumbs(from, own) {
			continue
		}
		if others == "" {
			return command(from)
		}
		return withAdvice(command(from), "Then install %s in %s.", others, to)
	}
	if others != "" {
		return say("Run this, where DIR contains the plugins of plumb, and then install %s: %s", others, command("DIR").Fix)
	}
	return say("Run this, where DIR contains the plugins of plumb: %s", command("DIR").Fix)
}

// examine adds the finding for the executable that the key type names, if there is one.
func (k asker) examine(f *file, typ *schema.Value, add addFunc) {
	if typ.Text() == "" {
		return
	}
	x := k.caller.Find(k.ctx, typ.Text())
	what, fix := "", say("Name the directory of the plugins with --cni-path.")
	switch {
	case strings.Contains(x.Name, "/"):
		what, fix = "want a name without /", f.edit("write the name of an executable in CNI_PATH in place of %q", x.Name)
	case x.Problem != nil:
		what, fix = fmt.Sprintf("%s: %v", x.Path, x.Problem), k.install(x.Name, x.Path)
		if errors.Is(x.Problem, plugins.ErrNotExecutable) {
			fix = run("chmod", "0755", x.Path)
		}
		if dir := filepath.Dir(x.Path); isNoExec(dir) {
			what, fix = dir+" is on a file system that is mounted with noexec", plugins.Solution{Fix: `mount -o remount,exec "$(findmnt -n -o TARGET -T ` + types.Command(dir) + `)"`}
		}
	case x.Path != "":
		return
	case len(k.caller.Path) == 0:
		what = "CNI_PATH is empty"
	default:
		path := filepath.Join(firstExisting(k.caller.Path), x.Name)
		what, fix = "no executable in "+strings.Join(k.caller.Path, ":"), k.install(x.Name, path)
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			what = path + " is a directory"
			fix.Fix = strings.TrimSuffix(types.Command("mv", "-n", path, freeName(nil, suffixes(path+".directory")))+" && "+fix.Fix, " && ")
		} else if likely := types.Nearest(x.Name, schema.Names()); likely != "" && likely != x.Name {
			what += "; " + likely + " was probably meant"
			fix = f.edit("write %q in place of %q", likely, x.Name)
		}
	}
	f.incomplete = true
	add(f.where(typ), fix, "%s %q: %s", typ.Path, x.Name, what)
}

// isNoExec reports whether the kernel executes no files in the directory, because its file system is mounted with noexec.
func isNoExec(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_NOEXEC != 0
}

// install returns how to install an executable at a path. This is a command if a spare directory contains the
// plugin in the version of plumb's other plugins. An executable of another project may support fewer versions of the
// specification, and other keys.
func (k asker) install(name, path string) plugins.Solution {
	version, create := k.caller.UsualVersion(), []string{}
	if !exists(filepath.Dir(path)) {
		create = []string{"-D"}
	}
	for _, dir := range k.Spare {
		from := filepath.Join(dir, name)
		if v := k.caller.VersionOf(k.ctx, from); from != path && v != "" && (v == version || version == "") {
			return run(slices.Concat([]string{"install"}, create, []string{"-m", "0755", from, path})...)
		}
	}
	if !slices.Contains(schema.Names(), name) {
		return say("Install the plugin %s as %s.", name, path)
	}
	words := []string{"plumb", "install", "--from", "DIR", "--to", filepath.Dir(path), "--only", name}
	if len(create) > 0 {
		words = append(words, "--create")
	}
	return say("Run this, where DIR contains the plugins of %s: %s", strings.TrimSpace("plumb "+version), types.Command(words...))
}

// findVersions finds networks with a cniVersion that at least one of their plugins does not support. It advises the highest
// version that the plugins and the runtimes support.
func (k asker) findVersions(files []*file, add addFunc) {
	for _, f := range usable(files) {
		version := f.list.CNIVersion
		if version == "" {
			version = "0.1.0" // as libcni assumes
		}
		var unsupported []string
		common := types.VersionsSince(types.V010)
		for _, name := range f.types() {
			serves := k.caller.Find(k.ctx, name).Serves
			if !slices.Contains(serves, version) {
				unsupported = append(unsupported, fmt.Sprintf("%s (%s)", name, strings.Join(serves, ", ")))
			}
			common = slices.DeleteFunc(common, func(v string) bool { return !slices.Contains(serves, v) })
		}
		if len(unsupported) == 0 {
			continue
		}
		for _, r := range k.Runtimes {
			common = slices.DeleteFunc(common, func(v string) bool { return isNewer(v, r) })
		}
		f.explained = true
		fix := say("Install newer plugins, because these have no version in common.")
		if len(common) > 0 {
			fix = f.edit("write \"cniVersion\": %q", common[len(common)-1])
		}
		add(f.where(f.top.Get("cniVersion")), fix, "cniVersion %q: not supported by %s", version, strings.Join(unsupported, ", "))
	}
}

// findMixed finds plumb's executables whose version differs from the most frequent version.
func (k asker) findMixed(_ []*file, add addFunc) {
	usual := k.caller.UsualVersion()
	for _, x := range k.caller.Executables() {
		if x.Version != "" && x.Version != usual {
			add(x.Path, k.install(x.Name, x.Path), "version %s differs from %s, the version of most plumb plugins", x.Version, usual)
		}
	}
}
