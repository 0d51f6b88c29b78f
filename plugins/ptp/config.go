package main

import (
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// rawConfig is the configuration as a person writes it. README.md explains each key.
type rawConfig struct {
	IPMasq        bool   `json:"ipMasq"`
	IPMasqBackend string `json:"ipMasqBackend"`
	MTU           int    `json:"mtu"`
}

// config is what ADD and CHECK work with: everything checked.
type config struct {
	masquerade  bool
	masqBackend masq.Backend
	mtu         int // bytes; zero: the kernel's default
}

const (
	minMTU   = 68 // RFC 791
	minMTUv6 = 1280
	maxMTU   = 65535
)

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

// validate says what cannot work, whatever the node looks like.
func (c *config) validate(ipamType string) error {
	var errs []error
	if ipamType == "" {
		errs = append(errs, errors.New(`ptp needs addresses: set "ipam" with a "type" (host-local, static, …); for a plain layer 2 use bridge`))
	}
	if c.mtu != 0 && (c.mtu < minMTU || c.mtu > maxMTU) {
		errs = append(errs, fmt.Errorf("mtu %d is not between %d and %d", c.mtu, minMTU, maxMTU))
	}
	return errors.Join(errs...)
}

// masq is the masquerade of the attachment that the call is for.
func (c *config) masq(r *skel.Request) masq.Masq {
	return masq.Masq{Node: r.Node, Owner: r.Attachment(), Backend: c.masqBackend, Warn: r.Warn}
}
