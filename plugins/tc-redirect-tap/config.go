package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. It has no keys, because awslabs/tc-redirect-tap reads its settings
// from CNI_ARGS.
type rawConfig struct{}

// config is the checked configuration.
type config struct {
	name         string // name of the tap; if it is empty, the tap gets the first free name of tap0, tap1, …
	owner, group uint32
}

// parse reads and checks the configuration. The error joins all problems.
func parse(r *skel.Request) (*config, error) {
	args, err := r.DecodeWithArgs(&rawConfig{})
	if err != nil {
		return nil, err
	}
	owner, ownerErr := parseID(args, types.ArgTapOwner, os.Geteuid())
	group, groupErr := parseID(args, types.ArgTapGroup, os.Getegid())
	conf := &config{name: args[types.ArgTapName], owner: owner, group: group}
	return conf, types.Coded(types.CodeConfig, errors.Join(conf.checkName(r.IfName), ownerErr, groupErr))
}

// parseID parses the ID of a user or group. If the key is missing or empty, it returns own.
func parseID(args types.Args, key string, own int) (uint32, error) {
	text := args[key]
	if text == "" {
		return uint32(own), nil
	}
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || id == math.MaxUint32 { // the kernel's INVALID_UID and INVALID_GID
		return 0, fmt.Errorf("CNI_ARGS: %s must be a number between 0 and %d, got %q", key, uint32(math.MaxUint32-1), text)
	}
	return uint32(id), nil
}

// checkName returns an error if no tap beside the container's interface can have the name. The name may be empty.
func (conf *config) checkName(ifName string) error {
	if conf.name == "" {
		return nil
	}
	err := types.CheckIfName(conf.name)
	if err == nil && (conf.name == ifName || conf.name == "lo") {
		err = errors.New("another interface of the container has that name")
	}
	if err != nil {
		return fmt.Errorf("CNI_ARGS: %s %q cannot be the name of the tap: %w", types.ArgTapName, conf.name, err)
	}
	return nil
}
