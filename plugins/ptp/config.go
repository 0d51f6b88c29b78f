package main

import (
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	IPMasq        bool   `json:"ipMasq"`
	IPMasqBackend string `json:"ipMasqBackend"`
	MTU           int    `json:"mtu"`
}

// config is the checked configuration.
type config struct {
	masquerade  bool
	masqBackend masq.Backend
	mtu         int // bytes; zero: the kernel's default
}

func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	backend, err := masq.ParseBackend(raw.IPMasqBackend)
	if err != nil {
		err = fmt.Errorf("ipMasqBackend: %w", err)
	}
	conf := &config{masquerade: raw.IPMasq, masqBackend: backend, mtu: raw.MTU}
	return conf, types.Coded(types.CodeConfig, errors.Join(err, conf.validate(r.Conf.IPAM.Type)))
}

// validate returns an error for a configuration that can work on no node.
func (c *config) validate(ipamType string) error {
	errs := []error{attach.CheckMTU(c.mtu)}
	if ipamType == "" {
		errs = append(errs, errors.New(`ptp needs addresses: set "ipam" with a "type" (host-local, static, …); for layer 2 without addresses use bridge`))
	}
	return errors.Join(errs...)
}

// masq returns the masquerade of the attachment.
func (c *config) masq(r *skel.Request) masq.Masq {
	return masq.Masq{Node: r.Node, Owner: r.Attachment(), Backend: c.masqBackend, Warn: r.Warn}
}
