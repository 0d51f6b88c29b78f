package main

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	MTU int `json:"mtu"`
	attach.MACKeys
}

// config is the validated configuration.
type config struct {
	mtu int       // in bytes; if it is 0, the kernel uses its default
	mac types.MAC // if it is empty, the kernel chooses a random MAC
}

// parse reads and validates the configuration.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	args, err := r.DecodeWithArgs(&raw)
	if err != nil {
		return nil, err
	}
	mac, macErr := raw.MACKeys.Parse(args)
	err = errors.Join(macErr, attach.CheckMTU(raw.MTU), ipam.CheckLayer2(r), ipam.CheckNotDHCP(r, "a dummy interface cannot reach a DHCP server"))
	return &config{mtu: raw.MTU, mac: mac}, types.Coded(types.CodeConfig, err)
}
