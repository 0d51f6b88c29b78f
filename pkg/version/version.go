// Package version knows the version of the running executable.
package version

import (
	"runtime/debug"
	"strings"
)

// linked is set by the linker: -X github.com/plumb-cni/plumb/v2/pkg/version.linked=v2.1.0. build_linux.sh does that, with the
// version that scripts/version.sh prints.
var linked string

// String returns the version of the running executable, such as "v2.1.0" or "v2.1.0+3.gabcdef0". It is the linker's or, after
// go install, the version of the module. Without both, it is "v2.0.0+dev", with the commit if go build has recorded it.
func String() string {
	if linked != "" {
		return linked
	}
	info, ok := debug.ReadBuildInfo()
	if ok && strings.HasPrefix(info.Main.Version, "v2.") {
		return ofModule(info.Main.Version)
	}
	v := "v2.0.0+dev"
	if ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 7 {
				v += ".g" + s.Value[:7]
			}
		}
	}
	return v
}

// ofModule returns the version that an executable prints for a version of its module. The pseudo-version of an untagged commit,
// such as v2.1.1-0.20261128153000-abcdef012345, names the next patch release and is a pre-release of it
// (https://go.dev/ref/mod#pseudo-versions). Nomad does not accept a pre-release as new enough, so that the time and the commit
// become build metadata.
func ofModule(v string) string {
	base, commit, _ := strings.Cut(v, "-")
	if parts := strings.Split(strings.TrimPrefix(commit, "0."), "-"); len(parts) == 2 && len(parts[0]) == len("20060102150405") {
		return base + "+" + parts[0] + "." + strings.ReplaceAll(parts[1], "+", ".")
	}
	return v
}
