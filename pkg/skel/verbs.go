package skel

import (
	"strings"
	"unicode"

	"github.com/plumb-cni/plumb/pkg/types"
)

const cmdVersion = "VERSION"

// A verb is a row of the specification's table: what it needs of the environment,
// since which version it exists, how it uses the container's namespace.
type verb struct {
	needs []string
	since types.Version
	netns netnsUse
	call  func(*Request) error
}

type netnsUse int

const (
	netnsNone     netnsUse = iota // the verb is about the node
	netnsOptional                 // DEL: a missing one is normal
	netnsRequired
)

var verbs = map[string]verb{
	"ADD": {
		needs: []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"},
		since: types.V010, netns: netnsRequired, call: add,
	},
	"CHECK": {
		needs: []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"},
		since: types.V040, netns: netnsRequired,
		call: quiet(func(p Plugin) func(*Request) error { return p.Check }),
	},
	"DEL": {
		needs: []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"},
		since: types.V010, netns: netnsOptional,
		call: quiet(func(p Plugin) func(*Request) error { return p.Del }),
	},
	"GC": {
		needs: []string{"CNI_PATH"},
		since: types.V110,
		call:  gc,
	},
	"STATUS": {
		needs: []string{"CNI_PATH"},
		since: types.V110,
		call:  quiet(func(p Plugin) func(*Request) error { return p.Status }),
	},
	cmdVersion: {},
}

// CalledForIPAM is in the environment of what is called as an IPAM plugin, and says of
// which kind the caller is. An interface plugin that took such a call would call its
// own "ipam.type" in turn, without end where that is itself.
const CalledForIPAM = "PLUMB_CALLED_FOR_IPAM_BY"

// checkEnvironment reports every missing variable at once, and a malformed one
// where the verb needs it.
func (r *Request) checkEnvironment(v verb) error {
	if caller := r.getenv(CalledForIPAM); caller != "" && !r.plugin.IPAM && r.Command != cmdVersion {
		return types.Errorf(types.CodeConfig, "%s is no IPAM plugin, but \"ipam.type\" in a configuration for %s names it", r.plugin.Name, caller)
	}
	var missing []string
	for _, key := range v.needs {
		value := r.getenv(key)
		switch {
		case value == "":
			missing = append(missing, key)
		case key == "CNI_CONTAINERID" && !validID(value):
			return &types.Error{Code: types.CodeEnvironment, Msg: "invalid characters in containerID", Details: value}
		case key == "CNI_IFNAME":
			if why := badIfName(value); why != "" {
				return &types.Error{Code: types.CodeEnvironment, Msg: "invalid interface name: " + why, Details: value}
			}
		}
	}
	if len(missing) > 0 {
		return types.Errorf(types.CodeEnvironment, "required env variables [%s] missing", strings.Join(missing, ","))
	}
	return nil
}

// validID is the specification's rule for container IDs and network names: a
// letter or digit, then letters, digits, '_', '.' and '-'. With it no path that is
// formed of them leaves its folder.
func validID(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return s != ""
}

// badIfName says what the kernel would dislike of an interface name.
func badIfName(s string) string {
	switch {
	case len(s) > 15:
		return "longer than 15 bytes"
	case s == "." || s == "..":
		return "a dot is no name"
	case s == "all" || s == "default": // net.ipv4.conf.all (net/core/dev.c, dev_valid_name; net/ipv4/devinet.c)
		return "the kernel's settings for all interfaces have that name"
	case strings.ContainsAny(s, "/:%"): // the kernel would put a number in place of %d
		return "'/', ':' and '%' are not allowed"
	case strings.ContainsFunc(s, unicode.IsSpace):
		return "white space is not allowed"
	}
	return ""
}
