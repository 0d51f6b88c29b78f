package main

import (
	"cmp"
	"errors"

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
	IfName          string `json:"ifName"`
	VLANID          *int   `json:"vlanId"`
	Protocol        string `json:"protocol"`
	MTU             int    `json:"mtu"`
	attach.DADKeys
	attach.MACKeys
}

// config is the checked configuration.
type config struct {
	master   attach.Master
	inChain  bool   // the master is the interface CNI_IFNAME of the container
	name     string // the name of the VLAN interface
	id       int    // 0 to nl.MaxVLAN
	protocol string // see nl.IsVLANProtocol
	mtu      int    // in bytes; if it is 0, the kernel uses the MTU of the master
	mac      types.MAC
	dad      attach.DADMode
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
		master:   attach.Master{Name: raw.Master, InContainer: raw.LinkInContainer},
		inChain:  raw.isInChain(),
		name:     raw.linkName(r),
		protocol: cmp.Or(raw.Protocol, "802.1Q"),
		mtu:      raw.MTU,
		mac:      mac,
		dad:      raw.DADKeys.Mode(),
	}
	if conf.inChain {
		conf.master.Name = r.IfName
	}
	errs := []error{macErr, raw.validateChain(r), conf.master.Validate(), attach.CheckMTU(raw.MTU)}
	reportIf := types.ProblemsInto(&errs)
	reportIf(raw.VLANID == nil, `vlanId is missing; set it to the ID of the VLAN, from 0 to %d`, nl.MaxVLAN)
	if raw.VLANID != nil {
		conf.id = *raw.VLANID
		reportIf(conf.id < 0 || conf.id > nl.MaxVLAN, "vlanId: invalid VLAN ID %d (must be between 0 and %d)", conf.id, nl.MaxVLAN)
	}
	reportIf(!nl.IsVLANProtocol(conf.protocol), "protocol %q must be 802.1Q or 802.1ad", raw.Protocol)
	errs = append(errs, ipam.CheckLayer2(r))
	return conf, types.Coded(types.CodeConfig, errors.Join(errs...))
}
