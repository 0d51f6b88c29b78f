package main

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	masq.Keys
	MTU int `json:"mtu"`
}

// config is the checked configuration.
type config struct {
	masquerade masq.Settings
	mtu        int // in bytes; if it is 0, the kernel uses its default
}

// parse reads the configuration of the request and checks it. The error joins all problems.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	masquerade, masqErr := raw.Keys.Parse()
	errs := []error{masqErr, attach.CheckMTU(raw.MTU)}
	reportIf := types.ProblemsInto(&errs)
	reportIf(r.Conf.IPAM.Type == "", `ipam: ptp needs addresses; set "ipam" with a "type" (host-local, static, …), or use bridge for layer 2 without addresses`)
	errs = append(errs, ipam.CheckNotDHCP(r, "ptp connects the container only to the host, and not to a DHCP server"))
	conf := &config{masquerade: masquerade, mtu: raw.MTU}
	return conf, types.Coded(types.CodeConfig, errors.Join(errs...))
}

// masq returns the masquerade of the attachment.
func (c *config) masq(r *skel.Request) masq.Masq {
	return masq.Masq{HostNS: r.HostNS, Owner: r.Attachment(), Backend: c.masquerade.Backend, Except: c.masquerade.Except, OnlyFree: r.IsRepair(), Warn: r.Warn}
}
