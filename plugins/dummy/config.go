package main

import (
	"errors"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	MTU int `json:"mtu"`
	attach.MACKeys
}

// config is the checked configuration.
type config struct {
	mtu int       // bytes; zero: the kernel's default
	mac types.MAC // zero: random
}

// parse reads the configuration of the request and checks it.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	args, err := r.DecodeWithArgs(&raw)
	if err != nil {
		return nil, err
	}
	mac, macErr := raw.MACKeys.Parse(args)
	errs := []error{macErr, attach.CheckMTU(raw.MTU)}
	refuseIf := types.ProblemsInto(&errs)
	errs = append(errs, ipam.CheckLayer2(r))
	refuseIf(ipam.NeedsLink(r), "a dummy interface reaches no DHCP server: use another IPAM plugin than %s", r.Conf.IPAM.Type)
	return &config{mtu: raw.MTU, mac: mac}, types.Coded(types.CodeConfig, errors.Join(errs...))
}
