package types

import (
	"fmt"
	"slices"
)

// A Version is a version of the CNI specification. Later versions are greater.
type Version int

// The released versions of the specification.
const (
	V010 Version = iota + 1
	V020
	V030
	V031
	V040
	V100
	V110
	Newest = V110
)

// versionNames contains the text of each version. The zero Version has none.
var versionNames = [...]string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// ParseVersion parses the cniVersion of a configuration. An empty text is 0.1.0, which had no such key. All other texts must
// be the exact name of a released version, so that "1.0" is an error.
func ParseVersion(s string) (Version, error) {
	v := Version(max(slices.Index(versionNames[:], s), int(V010)))
	if s != "" && v.String() != s {
		return 0, fmt.Errorf("unknown CNI version %q", s)
	}
	return v, nil
}

func (v Version) String() string {
	if v < V010 || v > Newest {
		return fmt.Sprintf("Version(%d)", int(v))
	}
	return versionNames[v]
}

// VersionsSince returns v and all later versions, the oldest first.
func VersionsSince(v Version) []string { return slices.Clone(versionNames[v:]) }
