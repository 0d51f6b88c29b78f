package skel

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/plumb-cni/plumb/pkg/types"
)

const cmdVersion = "VERSION"

// A verb is a value of CNI_COMMAND.
type verb struct {
	needs []string             // the environment variables that must be set
	since types.Version        // the version of the specification that added the verb
	netns netnsUse             // the use of the container's namespace
	call  func(*Request) error // calls the handler
}

// A netnsUse says whether a verb uses the container's namespace.
type netnsUse int

const (
	netnsNone     netnsUse = iota // the verb does not use it
	netnsOptional                 // DEL: the namespace may be gone
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
		call: func(r *Request) error { return r.handle(r.plugin.Check) },
	},
	"DEL": {
		needs: []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"},
		since: types.V010, netns: netnsOptional,
		call: del,
	},
	"GC": {
		needs: []string{"CNI_PATH"},
		since: types.V110,
		call:  gc,
	},
	"STATUS": {
		needs: []string{"CNI_PATH"},
		since: types.V110,
		call:  func(r *Request) error { return r.handle(r.plugin.Status) },
	},
	cmdVersion: {},
}

// CalledForIPAM is the environment variable in which pkg/invoke passes the name of the calling
// plugin to the IPAM plugin. A plugin that is no IPAM plugin returns an error if the variable is
// set. Otherwise an interface plugin whose "ipam.type" names itself would call itself for ever.
const CalledForIPAM = "PLUMB_CALLED_FOR_IPAM_BY"

// checkEnvironment returns an error that names all missing variables, or one for a malformed
// variable. It checks only what the verb needs.
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
			if why := IfNameProblem(value); why != "" {
				return &types.Error{Code: types.CodeEnvironment, Msg: "invalid interface name: " + why, Details: value}
			}
		}
	}
	if len(missing) > 0 {
		return types.Errorf(types.CodeEnvironment, "required env variables [%s] missing", strings.Join(missing, ","))
	}
	return nil
}

// validID reports whether s is a valid container ID or network name: a letter or digit, then
// letters, digits, '_', '.' and '-' (SPEC 1.1.0). So it can be used as the name of a file.
func validID(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return s != ""
}

// IfNameProblem returns why s cannot be the name of an interface, or "" if it can.
func IfNameProblem(s string) string {
	switch {
	case len(s) > types.MaxIfName:
		return fmt.Sprintf("longer than %d bytes", types.MaxIfName)
	case s == "." || s == "..":
		return "'.' and '..' are not allowed"
	case s == "all" || s == "default": // net.ipv4.conf.all (net/core/dev.c, dev_valid_name; net/ipv4/devinet.c)
		return "the kernel's settings for all interfaces have that name"
	case strings.ContainsAny(s, "/:%"): // the kernel replaces %d by a number
		return "'/', ':' and '%' are not allowed"
	case strings.ContainsFunc(s, unicode.IsSpace):
		return "white space is not allowed"
	}
	return ""
}
