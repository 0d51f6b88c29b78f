package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// rawConfig is the configuration as a person writes it. README.md explains each key.
// Lists hold values, not pointers: a null in them is an empty entry.
type rawConfig struct {
	IPAM          *rawIPAM `json:"ipam"`
	RuntimeConfig struct {
		IPs []string `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

type rawIPAM struct {
	Type      string            `json:"type"`
	Addresses []rawAddress      `json:"addresses"`
	Routes    []types.RouteText `json:"routes"`
	DNS       types.DNS         `json:"dns"`
}

type rawAddress struct {
	Address string `json:"address"`
	Gateway string `json:"gateway"`
	// Version has said nothing since 0.3.0, and is still written.
	Version json.RawMessage `json:"version"`
}

// A config is a checked configuration.
type config struct {
	ips    []types.IP // each address once
	routes []types.Route
	dns    types.DNS
	unused []netip.Addr // gateways of CNI_ARGS that no address took
}

func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	args, err := r.Args()
	if err != nil {
		return nil, err
	}
	conf, err := raw.config(args, r.Version)
	return conf, types.Coded(types.CodeConfig, err)
}

// config checks everything and reports all problems at once.
func (raw *rawConfig) config(args types.Args, v types.Version) (*config, error) {
	if raw.IPAM == nil {
		return nil, errors.New("IPAM config missing 'ipam' key")
	}
	conf := &config{dns: raw.IPAM.DNS}
	return conf, errors.Join(conf.addresses(raw, args), conf.checkFamilies(v), conf.parseRoutes(raw.IPAM.Routes))
}

// addresses takes those of the strongest source: the runtime's, those of args, or
// those of the configuration with those of CNI_ARGS behind them. The weaker ones are
// not looked at.
func (c *config) addresses(raw *rawConfig, args types.Args) error {
	for _, ips := range [][]string{raw.RuntimeConfig.IPs, raw.Args.CNI.IPs} {
		if len(ips) > 0 {
			return c.addAll(ips, "an entry in the 'ips' field is NOT in CIDR notation")
		}
	}
	var errs []error
	for _, a := range raw.IPAM.Addresses {
		errs = append(errs, c.addConfigured(a))
	}
	fixed := len(c.ips)
	errs = append(errs, c.addAll(list(args[types.ArgIP]), "the 'ip' field is expected to be in CIDR notation"))
	for _, s := range list(args[types.ArgGateway]) {
		errs = append(errs, c.addGateway(s, fixed))
	}
	return errors.Join(errs...)
}

// list is the items of a comma list.
func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func (c *config) addConfigured(raw rawAddress) error {
	address, err := parseAddress(raw.Address, "the 'address' field is expected to be in CIDR notation")
	gateway, gwErr := parseGateway(raw.Gateway)
	if err != nil || gwErr != nil {
		return errors.Join(err, gwErr)
	}
	// A gateway outside the subnet is legitimate: ptp reaches it over the link.
	if gateway.IsValid() && gateway.Is4() != address.Addr().Is4() {
		return fmt.Errorf("address %s has a gateway of the other family: %s", address, gateway)
	}
	c.add(types.IP{Interface: types.NoInterface, Address: address, Gateway: gateway})
	return nil
}

func (c *config) addAll(ips []string, complaint string) error {
	var errs []error
	for _, s := range ips {
		address, err := parseAddress(s, complaint)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.add(types.IP{Interface: types.NoInterface, Address: address})
	}
	return errors.Join(errs...)
}

// add takes an address that is asked for twice once: no interface can have it twice.
func (c *config) add(ip types.IP) {
	if !slices.ContainsFunc(c.ips, func(o types.IP) bool { return o.Address == ip.Address }) {
		c.ips = append(c.ips, ip)
	}
}

// addGateway gives a gateway of CNI_ARGS to the addresses whose subnet contains it:
// those of CNI_ARGS, and of the first fixed, which are the configuration's, those
// without one of their own.
func (c *config) addGateway(s string, fixed int) error {
	gateway, err := parseGateway(strings.TrimSpace(s))
	if err != nil || !gateway.IsValid() {
		return err
	}
	used := false
	for i := range c.ips {
		own := i < fixed && c.ips[i].Gateway.IsValid()
		if !own && c.ips[i].Address.Contains(gateway) {
			c.ips[i].Gateway, used = gateway, true
		}
	}
	if !used {
		c.unused = append(c.unused, gateway)
	}
	return nil
}

// parseAddress wants an address that a host can have.
func parseAddress(s, complaint string) (netip.Prefix, error) {
	p, err := types.ParseCIDR(strings.TrimSpace(s))
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%s, got: '%s'", complaint, s)
	case p.Addr().IsUnspecified(), p.Addr().IsMulticast():
		return netip.Prefix{}, fmt.Errorf("address %s is none that an interface can have", p)
	}
	return p, nil
}

// parseGateway reads a gateway; an empty text is none.
func parseGateway(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	ip, err := types.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("invalid gateway address: %s", s)
	}
	return ip, nil
}

// checkFamilies: before 0.3.0 a result has room for one address a family.
func (c *config) checkFamilies(v types.Version) error {
	var v4, v6 int
	for _, ip := range c.ips {
		if ip.Address.Addr().Is4() {
			v4++
		} else {
			v6++
		}
	}
	if v < types.V030 && max(v4, v6) > 1 {
		return fmt.Errorf("CNI version %s does not support more than 1 address per family", v)
	}
	return nil
}

func (c *config) parseRoutes(texts []types.RouteText) error {
	var errs []error
	for i, text := range texts {
		route, err := text.Route()
		if err != nil {
			errs = append(errs, fmt.Errorf("routes[%d]: %w", i, err))
			continue
		}
		c.routes = append(c.routes, route)
	}
	return errors.Join(errs...)
}
