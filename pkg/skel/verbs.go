package skel

import (
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

const cmdVersion = "VERSION"

// A verb is a value of CNI_COMMAND.
type verb struct {
	needs []string             // the environment variables that must be set
	since types.Version        // the version of the specification that added the verb
	netns netnsUse             // the use of the container's namespace
	marks bool                 // whether the verb writes the attachment's mark (see writeMark)
	call  func(*Request) error // calls the handler
}

// A netnsUse describes whether a verb uses the container's namespace.
type netnsUse int

const (
	netnsNone     netnsUse = iota
	netnsOptional          // the namespace may be gone (DEL)
	netnsRequired
)

var verbs = map[string]verb{
	"ADD": {
		needs: []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"},
		since: types.V010, netns: netnsRequired, marks: true, call: add,
	},
	"CHECK": {
		needs: []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"},
		since: types.V040, netns: netnsRequired,
		call: check,
	},
	"DEL": {
		needs: []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"},
		since: types.V010, netns: netnsOptional, marks: true,
		call: del,
	},
	CommandRepair: {
		needs: []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"},
		since: types.V040, netns: netnsRequired,
		call: repair,
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
// plugin to the IPAM plugin. Any plugin except an IPAM plugin returns an error if the variable is
// set. Otherwise an interface plugin whose "ipam.type" is its own name would call itself forever.
const CalledForIPAM = "PLUMB_CALLED_FOR_IPAM_BY"

// checkEnvironment returns an error that names all missing variables, or an error for the first
// malformed variable. It checks only the variables that the verb needs. The error contains the names of the variables (SPEC
// 1.1.0, section 5, code 4).
func (r *Request) checkEnvironment(v verb) error {
	if caller := r.getenv(CalledForIPAM); caller != "" && !r.plugin.IPAM && r.Command != cmdVersion {
		return types.Errorf(types.CodeConfig, "%s is not an IPAM plugin, but \"ipam.type\" in a configuration for %s names it", r.plugin.Name, caller)
	}
	var missing []string
	for _, key := range v.needs {
		value := r.getenv(key)
		switch {
		case value == "":
			missing = append(missing, key)
		case key == "CNI_CONTAINERID" && !types.IsID(value):
			return &types.Error{Code: types.CodeEnvironment, Msg: "invalid characters in containerID", Details: key + "=" + value + types.IDRule}
		case key == "CNI_IFNAME":
			if err := types.CheckIfName(value); err != nil {
				return &types.Error{Code: types.CodeEnvironment, Msg: "invalid interface name: " + err.Error(), Details: key + "=" + value}
			}
		}
	}
	if len(missing) > 0 {
		return types.Errorf(types.CodeEnvironment, "required env variables [%s] missing", strings.Join(missing, ","))
	}
	return nil
}
