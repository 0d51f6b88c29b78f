package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// rawConfig is the configuration as the user writes it. README.md explains each key. The lists contain values
// and no pointers, so that a null in a list is an empty item.
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
	// Version has no meaning since 0.3.0, but configurations still contain it.
	Version json.RawMessage `json:"version"`
}

// config is the checked configuration.
type config struct {
	ips            []types.IP // without duplicate addresses
	routes         []types.Route
	dns            types.DNS
	unusedGateways []netip.Addr // gateways of CNI_ARGS that no address can use
}

// parse reads and checks the configuration and CNI_ARGS. The code of errors for invalid values is
// types.CodeConfig.
func parse(r *skel.Request) (*config, error) {
	var raw rawConfig
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	args, err := r.Args()
	if err != nil {
		return nil, err
	}
	conf, err := raw.toConfig(args, r.Version)
	return conf, types.Coded(types.CodeConfig, err)
}

// toConfig checks the configuration and returns all problems in one error.
func (raw *rawConfig) toConfig(args types.Args, v types.Version) (*config, error) {
	if raw.IPAM == nil {
		return nil, types.ErrNoIPAM
	}
	routes, routesErr := types.ParseRoutes("ipam.routes", raw.IPAM.Routes)
	conf := &config{dns: raw.IPAM.DNS, routes: routes}
	return conf, errors.Join(conf.addAddresses(raw, args), conf.checkFamilies(v), routesErr)
}

// addAddresses adds the addresses of the first source that contains any, and ignores the other sources. The
// sources are runtimeConfig, then args, then the configuration together with CNI_ARGS.
func (c *config) addAddresses(raw *rawConfig, args types.Args) error {
	const problem = "an entry in the 'ips' field is NOT in CIDR notation"
	switch {
	case len(raw.RuntimeConfig.IPs) > 0:
		return c.addAll(raw.RuntimeConfig.IPs, "runtimeConfig.ips", problem)
	case len(raw.Args.CNI.IPs) > 0:
		return c.addAll(raw.Args.CNI.IPs, "args.cni.ips", problem)
	}
	var errs []error
	for i, a := range raw.IPAM.Addresses {
		errs = append(errs, c.addConfigured(fmt.Sprintf("ipam.addresses[%d]", i), a))
	}
	configured := len(c.ips)
	for _, ip := range splitList(args[types.ArgIP]) {
		err := c.addOne("CNI_ARGS: IP", ip, "the 'ip' field is expected to be in CIDR notation")
		if addr, noLength := netip.ParseAddr(strings.TrimSpace(ip)); noLength == nil {
			err = fmt.Errorf("%w; IP in CNI_ARGS needs a prefix length, for example %s/%d", err, addr, examplePrefix(addr))
		}
		errs = append(errs, err)
	}
	for _, s := range splitList(args[types.ArgGateway]) {
		errs = append(errs, c.addGateway(s, configured))
	}
	return errors.Join(errs...)
}

// examplePrefix returns a usual prefix length for the address.
func examplePrefix(a netip.Addr) int {
	if a.Is4() {
		return 24
	}
	return 64
}

// splitList returns the items of a comma-separated list.
func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// addConfigured adds the item of the key addresses at this path.
func (c *config) addConfigured(at string, raw rawAddress) error {
	address, err := parseAddress(at+".address", raw.Address, "the 'address' field is expected to be in CIDR notation")
	gateway, gwErr := parseGateway(at+".gateway", raw.Gateway)
	if err != nil || gwErr != nil {
		return errors.Join(err, gwErr)
	}
	// A gateway outside the subnet is valid, because ptp reaches it over the link.
	if gateway.IsValid() && gateway.Is4() != address.Addr().Is4() {
		return fmt.Errorf("%s.gateway %s must be of the same family as address %s", at, gateway, address)
	}
	c.add(types.IP{Interface: types.NoInterface, Address: address, Gateway: gateway})
	return nil
}

// addAll adds the addresses of a key, without a gateway. problem is the error for a string that is not an address.
func (c *config) addAll(ips []string, key, problem string) error {
	var errs []error
	for i, s := range ips {
		errs = append(errs, c.addOne(fmt.Sprintf("%s[%d]", key, i), s, problem))
	}
	return errors.Join(errs...)
}

// addOne adds the address of a key, without a gateway.
func (c *config) addOne(key, s, problem string) error {
	address, err := parseAddress(key, s, problem)
	if err == nil {
		c.add(types.IP{Interface: types.NoInterface, Address: address})
	}
	return err
}

// add adds an IP, unless its address was already added, because an address can be assigned to an interface only once.
func (c *config) add(ip types.IP) {
	if !slices.ContainsFunc(c.ips, func(o types.IP) bool { return o.Address == ip.Address }) {
		c.ips = append(c.ips, ip)
	}
}

// addGateway sets a gateway of CNI_ARGS for the addresses whose subnet contains it. The first addresses of c.ips come
// from the configuration, and configured is their number. addGateway keeps the gateways of these addresses.
func (c *config) addGateway(s string, configured int) error {
	gateway, err := parseGateway("CNI_ARGS: GATEWAY", strings.TrimSpace(s))
	if err != nil || !gateway.IsValid() {
		return err
	}
	used := false
	for i := range c.ips {
		hasOwn := i < configured && c.ips[i].Gateway.IsValid()
		if !hasOwn && c.ips[i].Address.Contains(gateway) {
			c.ips[i].Gateway, used = gateway, true
		}
	}
	if !used {
		c.unusedGateways = append(c.unusedGateways, gateway)
	}
	return nil
}

// parseAddress parses an address with its prefix length, the value of a key. It returns an error if no interface can have the
// address. problem is the error for a string that is not an address.
func parseAddress(key, s, problem string) (netip.Prefix, error) {
	p, err := types.ParseCIDR(strings.TrimSpace(s))
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%s: %s, got: '%s'", key, problem, s)
	case p.Addr().IsUnspecified(), p.Addr().IsMulticast():
		return netip.Prefix{}, fmt.Errorf("%s: an interface cannot have a multicast or unspecified address, as in %s", key, p)
	}
	return p, nil
}

// parseGateway parses a gateway, the value of a key. It returns the zero Addr for an empty string.
func parseGateway(key, s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	ip, err := types.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s: invalid gateway address: %s", key, s)
	}
	return ip, nil
}

// checkFamilies returns an error if the result of this version cannot contain the addresses. Before 0.3.0 it
// can contain one address per family.
func (c *config) checkFamilies(v types.Version) error {
	perFamily := map[bool]int{}
	for _, ip := range c.ips {
		perFamily[ip.Address.Addr().Is4()]++
	}
	if v < types.V030 && max(perFamily[true], perFamily[false]) > 1 {
		return fmt.Errorf("cniVersion: CNI version %s does not support more than 1 address per family", v)
	}
	return nil
}
