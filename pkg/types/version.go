package types

import "fmt"

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

// ParseVersion parses the cniVersion of a configuration. An empty text is 0.1.0, which had no
// such key. All other texts must be the exact name of a released version: "1.0" is an error.
func ParseVersion(s string) (Version, error) {
	if s == "" {
		return V010, nil
	}
	for v := V010; v <= Newest; v++ {
		if v.String() == s {
			return v, nil
		}
	}
	return 0, fmt.Errorf("unknown CNI version %q", s)
}

func (v Version) String() string {
	switch v {
	case V010:
		return "0.1.0"
	case V020:
		return "0.2.0"
	case V030:
		return "0.3.0"
	case V031:
		return "0.3.1"
	case V040:
		return "0.4.0"
	case V100:
		return "1.0.0"
	case V110:
		return "1.1.0"
	}
	return fmt.Sprintf("Version(%d)", int(v))
}

// VersionsSince returns v and all later versions, the oldest first.
func VersionsSince(v Version) []string {
	var all []string
	for ; v <= Newest; v++ {
		all = append(all, v.String())
	}
	return all
}
