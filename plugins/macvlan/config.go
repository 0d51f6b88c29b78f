package main

import (
	"cmp"
	"errors"
	"math"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// rawConfig is the configuration as a person writes it. README.md explains each key.
type rawConfig struct {
	Master          string `json:"master"`
	Mode            string `json:"mode"`
	MTU             int    `json:"mtu"`
	MAC             string `json:"mac"`
	LinkInContainer bool   `json:"linkInContainer"`
	BCQueueLen      int64  `json:"bcqueuelen"`
	OptimisticDAD   bool   `json:"optimisticDAD"`
	RuntimeConfig   struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
}

// config is the checked configuration, with all defaults set that do not depend on the
// node.
type config struct {
	master      string    // empty: the device of the first default route
	inContainer bool      // the master is in the container
	mode        string    // see nl.IsMacvlanMode
	mtu         int       // bytes; zero: the master's
	mac         types.MAC // zero: the kernel's choice
	queueLen    uint32    // packets; zero: the kernel's default
	dad         attach.DADMode
}

const maxQueueLen = int64(math.MaxUint32)

func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	args, err := r.Args()
	if err != nil {
		return nil, err
	}
	conf, err := raw.config(r, args)
	return conf, types.Coded(types.CodeConfig, err)
}

// config checks the configuration and returns all problems in one error.
func (raw *rawConfig) config(r *skel.Request, args types.Args) (*config, error) {
	mac, macErr := types.FirstMAC(raw.RuntimeConfig.MAC, raw.Args.CNI.MAC, args[types.ArgMAC], raw.MAC)
	conf := &config{
		master:      raw.Master,
		inContainer: raw.LinkInContainer,
		mode:        cmp.Or(raw.Mode, "bridge"),
		mtu:         raw.MTU,
		mac:         mac,
		queueLen:    uint32(raw.BCQueueLen),
		dad:         attach.DADOn,
	}
	if raw.OptimisticDAD {
		conf.dad = attach.DADOptimistic
	}
	errs := []error{macErr}
	refuseIf := types.ProblemsInto(&errs)
	refuseIf(!nl.IsMacvlanMode(conf.mode), "unknown macvlan mode: %q; want bridge, private, vepa or passthru", raw.Mode)
	refuseIf(len(raw.Master) > types.MaxIfName, "master %q is not an interface name: it has more than %d bytes", raw.Master, types.MaxIfName)
	refuseIf(raw.Master == "lo", "master lo is the loopback interface, which has no segment")
	refuseIf(raw.MTU != 0 && raw.MTU < attach.MinMTU, "mtu %d is below %d; 0 takes the master's", raw.MTU, attach.MinMTU)
	refuseIf(raw.BCQueueLen < 0 || raw.BCQueueLen > maxQueueLen, "bcqueuelen %d is not between 0 and %d", raw.BCQueueLen, maxQueueLen)
	refuseIf(r.Conf.IPAM.Type == "" && r.Version < types.V030, "%w", types.ErrNoAddress)
	return conf, errors.Join(errs...)
}
