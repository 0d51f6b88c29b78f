package main

import (
	"cmp"
	"errors"
	"path/filepath"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	Master          string `json:"master"`
	LinkInContainer bool   `json:"linkInContainer"`
	Mode            string `json:"mode"`
	Flag            string `json:"flag"`
	MTU             int    `json:"mtu"`
	DataDir         string `json:"dataDir"`
	attach.DADKeys
	attach.QueueKeys
}

// config is the checked configuration.
type config struct {
	master  attach.Master
	mode    nl.IPVlanMode
	mtu     int // in bytes; if it is 0, the kernel uses the MTU of the master
	dad     attach.DADMode
	queues  attach.QueueKeys
	dataDir string // empty if nothing is recorded
}

// defaultDataDir is in /run, because records are useless after a reboot, when the interfaces are gone.
const defaultDataDir = "/run/cni/ipvlan"

// parse reads and checks the configuration. The error joins all problems.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	args, err := r.DecodeWithArgs(&raw)
	if err != nil {
		return nil, err
	}
	if args[types.ArgMAC] != "" && r.Command == "ADD" {
		r.Warn("MAC in CNI_ARGS is ignored: an ipvlan has the MAC of its master")
	}
	conf := &config{
		master:  attach.Master{Name: raw.Master, InContainer: raw.LinkInContainer},
		mode:    nl.IPVlanMode{Mode: cmp.Or(raw.Mode, "l2"), Flag: cmp.Or(raw.Flag, "bridge")},
		mtu:     raw.MTU,
		dad:     raw.DADKeys.Mode(),
		queues:  raw.QueueKeys,
		dataDir: r.StateDir(raw.DataDir, defaultDataDir),
	}
	errs := []error{conf.master.Validate(), attach.CheckMTU(raw.MTU), raw.QueueKeys.Check()}
	reportIf := types.ProblemsInto(&errs)
	reportIf(!conf.mode.HasKnownMode(), "mode: unknown ipvlan mode: %q; want l2, l3 or l3s", raw.Mode)
	reportIf(!conf.mode.HasKnownFlag(), "flag %q must be bridge, private or vepa", raw.Flag)
	reportIf(conf.dataDir != "" && !filepath.IsAbs(conf.dataDir), "dataDir %q is not an absolute path", conf.dataDir)
	// Before version 0.3.0, a result must contain an IP address.
	noAddress := r.Conf.IPAM.Type == "" && len(r.Conf.PrevResult) == 0 && r.Version < types.V030
	reportIf(noAddress, "ipam: %w", types.ErrNoAddress)
	return conf, types.Coded(types.CodeConfig, errors.Join(errs...))
}
