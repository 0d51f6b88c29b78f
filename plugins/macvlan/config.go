package main

import (
	"cmp"
	"errors"
	"math"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	Master          string `json:"master"`
	LinkInContainer bool   `json:"linkInContainer"`
	Mode            string `json:"mode"`
	MTU             int    `json:"mtu"`
	BCQueueLen      int64  `json:"bcqueuelen"`
	attach.DADKeys
	attach.MACKeys
	attach.QueueKeys
}

// config is the checked configuration.
type config struct {
	master   attach.Master
	mode     string    // see nl.IsMacvlanMode
	mtu      int       // in bytes; if it is 0, the kernel uses the MTU of the master
	mac      types.MAC // if it is empty, the kernel chooses the MAC
	queueLen uint32    // in packets; if it is 0, the kernel uses its default
	dad      attach.DADMode
	queues   attach.QueueKeys
}

const maxQueueLen = int64(math.MaxUint32)

// parse reads and checks the configuration. The error joins all problems.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	args, err := r.DecodeWithArgs(&raw)
	if err != nil {
		return nil, err
	}
	mac, macErr := raw.MACKeys.Parse(args)
	conf := &config{
		master:   attach.Master{Name: raw.Master, InContainer: raw.LinkInContainer},
		mode:     cmp.Or(raw.Mode, "bridge"),
		mtu:      raw.MTU,
		mac:      mac,
		queueLen: uint32(raw.BCQueueLen),
		dad:      raw.DADKeys.Mode(),
		queues:   raw.QueueKeys,
	}
	errs := []error{macErr, conf.master.Validate(), attach.CheckMTU(raw.MTU), raw.QueueKeys.Check()}
	reportIf := types.ProblemsInto(&errs)
	reportIf(!nl.IsMacvlanMode(conf.mode), "mode: unknown macvlan mode: %q; want bridge, private, vepa or passthru", raw.Mode)
	reportIf(raw.BCQueueLen < 0 || raw.BCQueueLen > maxQueueLen, "bcqueuelen %d must be between 0 and %d", raw.BCQueueLen, maxQueueLen)
	errs = append(errs, ipam.CheckLayer2(r))
	return conf, types.Coded(types.CodeConfig, errors.Join(errs...))
}
