package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
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
}

// config is the checked configuration.
type config struct {
	master  attach.Master
	mode    nl.IPVlanMode
	mtu     int // in bytes; if it is 0, the kernel uses the MTU of the master
	dad     attach.DADMode
	dataDir string
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
		dataDir: cmp.Or(raw.DataDir, defaultDataDir),
	}
	errs := []error{conf.master.Validate(), attach.CheckMTU(raw.MTU)}
	reportIf := types.ProblemsInto(&errs)
	reportIf(!conf.mode.HasKnownMode(), "unknown ipvlan mode: %q; want l2, l3 or l3s", raw.Mode)
	reportIf(!conf.mode.HasKnownFlag(), "unknown ipvlan flag: %q; want bridge, private or vepa", raw.Flag)
	reportIf(!filepath.IsAbs(conf.dataDir), "dataDir %q is not an absolute path", conf.dataDir)
	// Before version 0.3.0, a result must contain an IP address.
	noAddress := r.Conf.IPAM.Type == "" && len(r.Conf.PrevResult) == 0 && r.Version < types.V030
	reportIf(noAddress, "%w", types.ErrNoAddress)
	return conf, types.Coded(types.CodeConfig, errors.Join(errs...))
}

// usePrevResult completes the configuration in an ADD that follows another plugin. If "master" is not set,
// the master is the only interface of prevResult. If there is no "ipam", usePrevResult returns prevResult,
// whose addresses, routes and DNS apply to the new interface. Otherwise it returns nil.
func (c *config) usePrevResult(r *skel.Request) (*types.Result, error) {
	prev, err := r.Prev()
	if err != nil || prev == nil {
		return nil, err
	}
	if c.master.Name == "" {
		if len(prev.Interfaces) != 1 || prev.Interfaces[0].Name == "" {
			return nil, types.Errorf(types.CodeConfig, "chained master failure. PrevResult lacks a single named interface; name the master by the key \"master\"")
		}
		c.master.Name = prev.Interfaces[0].Name
		if err := c.master.Validate(); err != nil {
			return nil, types.Coded(types.CodeConfig, fmt.Errorf("prevResult: %w", err))
		}
	}
	if r.Conf.IPAM.Type != "" || len(prev.IPs) == 0 {
		return nil, nil
	}
	lease, err := types.ParseResult(r.Version, r.Conf.PrevResult) // accepts only what ADD can apply
	if err != nil {
		return nil, types.Errorf(types.CodeDecode, "prevResult: %w", err)
	}
	return lease, nil
}

// dataDir returns the directory of the records. It reads no other key, because DEL and GC must work
// with any configuration.
func dataDir(r *skel.Request) string {
	var raw struct {
		DataDir string `json:"dataDir"`
	}
	_ = types.Decode(r.Stdin, &raw)
	return cmp.Or(raw.DataDir, defaultDataDir)
}
