package main

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
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
	mtu     int       // in bytes; if it is 0, the kernel uses its default
	mac     types.MAC // if it is empty, the kernel chooses a random MAC
	context string    // SELinux context of the device; if it is empty, the device gets the plugin's context
	bridge  string    // name of a bridge in the container; if it is empty, the device is no port
}

// parse reads and checks the configuration. The error joins all problems.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	args, err := r.DecodeWithArgs(&raw)
	if err != nil {
		return nil, err
	}
	mac, macErr := raw.MACKeys.Parse(args)
	conf := &config{
		tap: nl.Tap{Name: r.IfName, MultiQueue: raw.MultiQueue, Owner: raw.Owner, Group: raw.Group},
		mtu: raw.MTU, mac: mac, context: raw.SELinuxContext, bridge: raw.Bridge,
	}
	errs := []error{macErr, checkBridge(raw.Bridge)}
	reportIf := types.ProblemsInto(&errs)
	reportIf(raw.MTU != 0 && (raw.MTU < attach.MinMTU || raw.MTU > nl.MaxTapMTU), "mtu %d must be between %d and %d", raw.MTU, attach.MinMTU, nl.MaxTapMTU)
	reportIf(isNoID(raw.Owner), "owner %d is not a user ID", uint32(math.MaxUint32))
	reportIf(isNoID(raw.Group), "group %d is not a group ID", uint32(math.MaxUint32))
	reportIf(strings.ContainsAny(raw.SELinuxContext, "\x00\n"), "selinuxContext %q contains a line feed or a NUL", raw.SELinuxContext)
	errs = append(errs, ipam.CheckLayer2(r), ipam.CheckNotDHCP(r, "a tap cannot reach a DHCP server during ADD, because no program is attached to it yet"))
	return conf, types.Coded(types.CodeConfig, errors.Join(errs...))
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
