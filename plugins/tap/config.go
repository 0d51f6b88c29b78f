package main

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	MultiQueue     bool    `json:"multiQueue"`
	MTU            int     `json:"mtu"`
	Owner          *uint32 `json:"owner"`
	Group          *uint32 `json:"group"`
	SELinuxContext string  `json:"selinuxContext"`
	Bridge         string  `json:"bridge"`
	attach.MACKeys
}

// config is the checked configuration.
type config struct {
	tap     nl.Tap
	mtu     int       // in bytes, or 0 for the kernel's default
	mac     types.MAC // empty for a random one
	context string    // SELinux context of the device, or empty for the plugin's
	bridge  string    // name of a bridge in the container, or empty for none
}

func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	args, err := r.DecodeWithArgs(&raw)
	if err != nil {
		return nil, err
	}
	conf, err := raw.toConfig(r, args)
	return conf, types.Coded(types.CodeConfig, err)
}

// toConfig converts raw to a config and checks it. The error joins all problems.
func (raw *rawConfig) toConfig(r *skel.Request, args types.Args) (*config, error) {
	mac, macErr := raw.MACKeys.Parse(args)
	conf := &config{
		tap: nl.Tap{Name: r.IfName, MultiQueue: raw.MultiQueue, Owner: raw.Owner, Group: raw.Group},
		mtu: raw.MTU, mac: mac, context: raw.SELinuxContext, bridge: raw.Bridge,
	}
	errs := []error{macErr, checkBridge(raw.Bridge)}
	refuseIf := types.ProblemsInto(&errs)
	refuseIf(raw.MTU != 0 && (raw.MTU < attach.MinMTU || raw.MTU > nl.MaxTapMTU), "mtu %d must be between %d and %d", raw.MTU, attach.MinMTU, nl.MaxTapMTU)
	refuseIf(isNoID(raw.Owner), "owner %d is not a user ID", uint32(math.MaxUint32))
	refuseIf(isNoID(raw.Group), "group %d is not a group ID", uint32(math.MaxUint32))
	refuseIf(strings.ContainsAny(raw.SELinuxContext, "\x00\n"), "selinuxContext %q contains a line feed or a NUL", raw.SELinuxContext)
	refuseIf(ipam.NeedsLink(r), "a tap cannot reach a DHCP server during ADD, because no program is attached to it yet; use another IPAM plugin than %s", r.Conf.IPAM.Type)
	errs = append(errs, ipam.CheckLayer2(r))
	return conf, errors.Join(errs...)
}

// checkBridge returns an error if no bridge can have the name. The name may be empty.
func checkBridge(name string) error {
	if name == "" {
		return nil
	}
	if err := types.CheckIfName(name); err != nil {
		return fmt.Errorf("bridge %q is not an interface name: %w", name, err)
	}
	return nil
}

// isNoID reports whether id is the number that stands for no user or group in the kernel (INVALID_UID).
func isNoID(id *uint32) bool { return id != nil && *id == math.MaxUint32 }
