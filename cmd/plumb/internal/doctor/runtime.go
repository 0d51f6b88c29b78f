package doctor

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/runtimes"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
)

// UsualDirectories returns the directories in which packages and operators install plugins.
func UsualDirectories() []string {
	return []string{"/usr/lib/plumb/cni", "/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}
}

// readBy returns the files that the runtime reads, in its order, and how many of them it uses. With o.Files, these are all
// files, because the operator may copy them to the runtime's directory.
func (o Options) readBy(r runtimes.Runtime, files []*file) (read []*file, used int) {
	for _, f := range files {
		if len(o.Files) > 0 || filepath.Dir(f.path) == filepath.Clean(r.ConfDir) {
			read = append(read, f)
		}
	}
	if used = len(read); r.MaxConfNum > 0 && len(o.Files) == 0 {
		used = min(used, r.MaxConfNum)
	}
	return read, used
}

// findRuntimeVersions finds lists whose cniVersion is higher than the versions that the runtime's libcni supports. Such a libcni
// calls the plugins with this version, and cannot decode their results.
func (o Options) findRuntimeVersions(files []*file, add addFunc) {
	for _, r := range o.Runtimes {
		read, used := o.readBy(r, files)
		for _, f := range read[:used] {
			if f.list == nil || f.explained { // findVersions has named a version
				continue
			}
			if isNewer(f.list.CNIVersion, r) {
				add(f.where(f.top.Get("cniVersion")), f.edit("write \"cniVersion\": %q", r.CNIVersion),
					"cniVersion %q: %s supports at most %s, and cannot attach containers", f.list.CNIVersion, r, r.CNIVersion)
			}
		}
	}
}

// isNewer reports whether the runtime's libcni does not know the cniVersion, because it is too new. It returns false if the
// runtime does not say which versions it knows.
func isNewer(cniVersion string, r runtimes.Runtime) bool {
	newer, err := version.GreaterThan(cniVersion, r.CNIVersion)
	return r.CNIVersion != "" && err == nil && newer
}

// findRuntimePlugins finds runtimes that execute other plugins than the examined ones, or that do not execute plumb's plugins
// although these are installed in another directory.
func (k asker) findRuntimePlugins(files []*file, add addFunc) {
	for _, r := range k.Runtimes {
		caller := plugins.NewCaller(r.PluginDirs, k.Timeout)
		other := map[string][]string{} // the names of plugins that the runtime does not execute, by their directory

		// findNoDirectory has reported loopback
		reported := slices.Equal(r.PluginDirs, k.caller.Path) && missingDirectory(r.PluginDirs) != "" && len(pluginsOf(files)) > 0
		if lacksLoopback(r) && !reported {
			add(onHost, k.install(loopback, filepath.Join(firstExisting(r.PluginDirs), loopback)),
				"%s cannot attach containers, because it needs the plugin loopback for each of them, and %s lacks it", r, strings.Join(r.PluginDirs, ", "))
		}
		read, used := k.readBy(r, files)
		for _, f := range read[:used] {
			for _, name := range f.types() {
				dir := k.unusedDirectory(name, caller)
				if dir != "" && !slices.Contains(other[dir], name) {
					other[dir] = append(other[dir], name)
				}
			}
		}
		for _, dir := range slices.Sorted(maps.Keys(other)) {
			to := r.PluginDirs[0]
			fix := say("Put %s first in the plugin directories of %s, and restart it.", dir, r.Name)
			if k.isPlumbs(dir, other[dir]) {
				fix = withAdvice(run("plumb", "install", "--from", dir, "--to", to, "--only", strings.Join(other[dir], ","), "--create", "--backup", filepath.Join(filepath.Dir(to), "before-plumb")),
					"Or put %s first in the plugin directories of %s, and restart it.", dir, r.Name)
			}
			add(onHost, fix, "%s executes plugins from %s, and does not execute those in %s: %s",
				r, strings.Join(r.PluginDirs, ", "), dir, strings.Join(other[dir], ", "))
		}
	}
}

// loopback is the plugin that containerd calls for lo of each pod, without a file, unless use_internal_loopback is set.
const loopback = "loopback"

// lacksLoopback reports whether containerd can attach no containers and the plugin loopback is missing.
func lacksLoopback(r runtimes.Runtime) bool {
	_, err := invoke.FindInPath(loopback, r.PluginDirs)
	return r.Name == "containerd" && r.NotReady != "" && err != nil
}

// isPlumbs reports whether the plugins with these names in the directory are plumb's.
func (k asker) isPlumbs(dir string, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return k.caller.VersionOf(k.ctx, filepath.Join(dir, name)) == "" })
}

// unusedDirectory returns the directory of the plugin that plumb examined, or in which plumb's plugin is installed, if the
// runtime executes another one. It returns "" if the runtime executes the same plugin, or plumb's in the same version.
func (k asker) unusedDirectory(name string, runtime *plugins.Caller) string {
	examined, executed := k.caller.Find(k.ctx, name), runtime.Find(k.ctx, name)
	switch {
	case examined.Path != "" && !node.SameFile(examined.Path, executed.Path) && (examined.Version == "" || examined.Version != executed.Version):
		return filepath.Dir(examined.Path)
	case executed.Version != "" || !slices.Contains(schema.Names(), name):
		return ""
	}
	for _, dir := range UsualDirectories() {
		if path := filepath.Join(dir, name); k.caller.VersionOf(k.ctx, path) != "" && !node.SameFile(path, executed.Path) {
			return dir
		}
	}
	return ""
}

// findRuntimeNetworks finds runtimes without a network, with another network than their files say, and files that a runtime
// does not use.
func (s *state) findRuntimeNetworks(files []*file, add addFunc) {
	for _, r := range s.Runtimes {
		read, used := s.readBy(r, files)
		if slices.ContainsFunc(read[:used], func(f *file) bool { return f.list == nil || f.explained }) {
			continue // the finding for the file is the reason
		}
		unusable := func(f *file) bool { return f.incomplete || isNewer(f.list.CNIVersion, r) } // another finding says why
		restart := run("systemctl", "restart", unitOf(r))
		switch {
		case r.NotReady != "" && len(read) == 0:
			add(r.ConfDir, say("Write a file *.conflist into the directory."), "%s cannot attach containers: %s", r, r.NotReady)
		case r.NotReady != "" && (slices.ContainsFunc(read[:used], unusable) || lacksLoopback(r)):
		case r.NotReady != "":
			add(r.ConfDir, restart, "%s cannot attach containers, although it can read %s: %s", r, read[0].path, r.NotReady)
		case r.Networks != nil:
			for _, f := range read[:used] {
				if !slices.Contains(r.Networks, f.name()) {
					add(f.path, restart, "%s has not loaded network %q, and uses %s", r, f.name(), strings.Join(r.Networks, ", "))
				}
			}
			s.findUnused(r, read, add)
		}
	}
}

// findUnused finds files that the runtime does not use because of max_conf_num. It ignores files that another program
// uses, and copies of the used files, which findDuplicates reports.
func (s *state) findUnused(r runtimes.Runtime, read []*file, add addFunc) {
	_, used := s.readBy(r, read)
	if slices.ContainsFunc(read[:used], func(f *file) bool {
		return slices.ContainsFunc(f.types(), func(name string) bool { return strings.HasPrefix(name, "multus") })
	}) {
		return // multus reads other files of the directory
	}
	for _, f := range read[used:] {
		if slices.ContainsFunc(read[:used], func(o *file) bool { return o.name() == f.name() }) {
			continue
		}
		attached, own := 0, 0
		for _, a := range s.inventory.Attachments {
			if a.Network != f.name() {
				continue
			}
			attached++
			if a.IfName == "eth0" && s.list.IDs[a.ContainerID] {
				own++ // the runtime attached it, not another program such as multus or nerdctl
			}
		}
		if own > 0 {
			add(read[0].path, say("If new containers belong to network %q, remove %s, or give it a name that sorts last.", f.name(), read[0].path),
				"%s attaches new containers to network %q, and not to %q, in which %d of its containers are", r, read[0].name(), f.name(), own)
		}
		if f.list == nil || f.explained || attached > 0 || f.isOfOther() {
			continue
		}
		add(f.path, say("If containers need this network, give the file a name that sorts first. Otherwise, move it to another directory."),
			"%s does not use network %q, because it uses only the first %d of the directory: %s", r, f.name(), used, filepath.Base(read[used-1].path))
	}
}

// isOfOther reports whether the file is podman's or nerdctl's, or configures only loopback, which containerd does itself.
func (f *file) isOfOther() bool {
	return f.name() == "podman" || f.top.Find("args.podman_labels") != nil || f.top.Get("nerdctlID") != nil ||
		!slices.ContainsFunc(f.types(), func(name string) bool { return name != "loopback" })
}

// unitOf returns the systemd unit of a runtime.
func unitOf(r runtimes.Runtime) string {
	switch {
	case strings.Contains(r.Source, "/k3s/"):
		return "k3s"
	case r.Name == "cri-o":
		return "crio"
	}
	return r.Name
}
