package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key.
type rawConfig struct {
	HostAddresses []string `json:"hostAddresses"`
}

// config is the checked configuration.
type config struct {
	addrs []netip.Addr // what the container reaches on the host; if it is nil, the addresses of the interface's parent
}

// parse reads and checks the configuration. The error joins all problems.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	conf := &config{}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(raw.HostAddresses != nil && len(raw.HostAddresses) == 0, "hostAddresses must not be an empty list; remove it, or list addresses of the host")
	for i, text := range raw.HostAddresses {
		a, err := parseAddr(text)
		reportIf(err != nil, "hostAddresses[%d] %q %w", i, text, err)
		reportIf(err == nil && slices.Contains(conf.addrs, a), "hostAddresses[%d] %q is listed twice; remove one of them", i, text)
		conf.addrs = append(conf.addrs, a)
	}
	return conf, types.Coded(types.CodeConfig, errors.Join(errs...))
}

// parseAddr returns the address in an entry of hostAddresses.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is4In6() || a.Zone() != "" {
		return netip.Addr{}, errors.New("must be an IP address of the host, such as 10.0.0.1")
	}
	if !a.IsGlobalUnicast() {
		return netip.Addr{}, errors.New("must not be a loopback, link-local, multicast, broadcast or unspecified address, with which the container cannot reach the host")
	}
	return a, nil
}

// requireLocal returns an error with types.CodeConfig if a listed address is not in local, the addresses of the host,
// because the container would no longer reach the host that has it.
func (conf *config) requireLocal(local []netip.Addr) error {
	var errs []error
	for i, a := range conf.addrs {
		if !slices.Contains(local, a) {
			errs = append(errs, fmt.Errorf("hostAddresses[%d] %s is not an address of the host; list addresses of the host", i, a))
		}
	}
	return types.Coded(types.CodeConfig, errors.Join(errs...))
}
