package pool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// DefaultDataDir is the directory of the reservations if a configuration does not name another one.
const DefaultDataDir = "/var/lib/cni/networks"

// maxNetworkName is the largest length of a network's name in bytes. The name is also the name of a directory
// (NAME_MAX, linux/limits.h).
const maxNetworkName = 255

// An input contains the values from which pool builds a Pool.
type input struct {
	network string
	keys    *Keys // the keys in ipam, or nil if the configuration lacks ipam
	runtime RuntimeKeys
	args    types.Args // CNI_ARGS
	ifName  string
	version types.Version
	// rangesLater is true if the configuration needs no ranges, because the runtime may pass ipRanges to ADD, CHECK and DEL only.
	rangesLater bool
}

// NewPool returns the pool that the configuration of an ADD, CHECK or STATUS describes. ipam is nil if the
// configuration contains no key ipam. The error names all invalid values and has types.CodeConfig. If CNI_ARGS cannot be
// parsed, the error has another code.
func (m Machine) NewPool(r *skel.Request, ipam *Keys, runtime RuntimeKeys) (*Pool, error) {
	args, err := r.Args()
	if err != nil {
		return nil, err
	}
	if len(r.Conf.Name) > maxNetworkName {
		return nil, types.Errorf(types.CodeConfig, "name must be at most %d bytes long, the limit of directory names", maxNetworkName)
	}
	p, err := (&input{
		network: r.Conf.Name, keys: ipam, runtime: runtime, args: args, ifName: r.IfName, version: r.Version,
		rangesLater: r.Command == "GC" || r.Command == "STATUS" && runtime.Capabilities["ipRanges"],
	}).pool()
	if err != nil {
		return nil, types.Coded(types.CodeConfig, err)
	}
	p.machine, p.trace, p.warn = m, r.Trace, r.Warn
	if r.Command == "ADD" {
		p.warnWithoutPod(r)
	}
	if r.Conf.Strict && r.Command == "ADD" {
		p.warnOutsideGateways(r)
	}
	return p, nil
}

// warnOutsideGateways warns of each gateway outside of its subnet. Such a gateway can be correct if the interface plugin adds
// a route to the gateway (ptp), or if the subnet is part of a larger subnet that contains the router.
func (p *Pool) warnOutsideGateways(r *skel.Request) {
	for _, set := range p.sets {
		for _, ipr := range set {
			if !ipr.subnet.Contains(ipr.gateway) && !ipr.gateway.IsLinkLocalUnicast() {
				r.Warn("gateway %s is outside of the subnet %s", ipr.gateway, ipr.subnet)
			}
		}
	}
}

// NewStore returns the store of the request's network. It reads only dataDir, cooldown, sticky and stickyFor, and ignores
// invalid values of the last three. An error has types.CodeConfig or types.CodeDecode.
func (m Machine) NewStore(r *skel.Request) (Store, error) {
	var raw struct {
		IPAM struct {
			DataDir   string          `json:"dataDir"`
			Cooldown  json.RawMessage `json:"cooldown"`
			Sticky    json.RawMessage `json:"sticky"`
			StickyFor json.RawMessage `json:"stickyFor"`
		} `json:"ipam"`
	}
	if err := types.Decode(r.Stdin, &raw); err != nil {
		return Store{}, err
	}
	var seconds int64
	if json.Unmarshal(raw.IPAM.Cooldown, &seconds) != nil {
		seconds = 0
	}
	s, err := newStore(r.Conf.Name, raw.IPAM.DataDir, max(seconds, 0))
	s.machine, s.trace, s.warn = m, r.Trace, r.Warn
	s.sticky = parseStickiness(raw.IPAM.Sticky, raw.IPAM.StickyFor)
	return s, types.Coded(types.CodeConfig, err)
}

// maxCooldown is one year in seconds. This is far below the value that overflows a time.Duration.
const maxCooldown = 365 * 24 * 60 * 60

// newStore returns the store of a network, with the default for an empty dataDir. The caller sets machine and trace.
// cooldown is in seconds, and limited to maxCooldown.
func newStore(network, dataDir string, cooldown int64) (Store, error) {
	dataDir = cmp.Or(dataDir, DefaultDataDir)
	if !filepath.IsAbs(dataDir) {
		return Store{}, fmt.Errorf("ipam.dataDir %q is not an absolute path", dataDir)
	}
	return Store{
		dataDir: filepath.Clean(dataDir), dir: filepath.Join(dataDir, network), privateDir: filepath.Join(dataDir, ".plumb", network),
		cooldown: time.Duration(min(cooldown, maxCooldown)) * time.Second,
	}, nil
}

// pool checks the input and returns the pool, without machine and trace. The error names all problems.
func (in *input) pool() (*Pool, error) {
	raw := in.keys
	if raw == nil {
		return nil, types.ErrNoIPAM
	}
	var cooldownErr error
	if raw.Cooldown < 0 || raw.Cooldown > maxCooldown {
		cooldownErr = fmt.Errorf("ipam.cooldown %d must be between 0 and %d seconds", raw.Cooldown, maxCooldown)
	}
	store, storeErr := newStore(in.network, raw.DataDir, raw.Cooldown)
	sticky, stickyErr := in.stickiness()
	store.sticky = sticky
	sets, setKeys, setsErr := in.rangeSets()
	excluded, excludeErr := ParsePrefixes("ipam.exclude", raw.Exclude)
	for _, set := range sets {
		for i := range set {
			set[i].excluded = append(slices.Clip(excluded), netip.PrefixFrom(set[i].gateway, set[i].gateway.BitLen()))
		}
	}
	routes, routesErr := types.ParseRoutes("ipam.routes", raw.Routes)
	requested, requestedErr := in.requestedAddrs()
	return &Pool{
		Store: store, Requested: requested, FailStatusWhenFull: raw.StatusFull,
		sets: sets, setKeys: setKeys, routes: routes, resolvConf: raw.ResolvConf,
	}, errors.Join(storeErr, cooldownErr, stickyErr, setsErr, excludeErr, routesErr, requestedErr)
}

// rangeSets returns the range sets of the configuration and their keys: first the sets of the runtime's ipRanges,
// then the set of the keys directly in ipam, then the sets of ranges. The reference plugin numbers its
// last_reserved_ip files in the same order.
func (in *input) rangeSets() (sets []rangeSet, keys []string, err error) {
	raw := in.keys
	all := slices.Clone(in.runtime.RuntimeConfig.IPRanges)
	if raw.Subnet != "" {
		all = append(all, rawSet{raw.RangeKeys})
	}
	all = append(all, raw.Ranges...)
	var errs []error
	if len(all) == 0 && !in.rangesLater {
		errs = append(errs, errors.New("ipam: no IP ranges specified; set ranges"))
	}
	for i, rawSet := range all {
		key := in.keyOf(i)
		set, err := rawSet.parse(key)
		errs = append(errs, err)
		for j, other := range sets {
			if set.overlaps(other) {
				errs = append(errs, fmt.Errorf("%s overlaps with %s: %s and %s", key, keys[j], set, other))
			}
		}
		sets, keys = append(sets, set), append(keys, key)
	}
	return sets, keys, errors.Join(append(errs, checkFamilies(sets, in.version))...)
}

// keyOf returns the key of the range set with this index in rangeSets.
func (in *input) keyOf(index int) string {
	ofRuntime := len(in.runtime.RuntimeConfig.IPRanges)
	if index < ofRuntime {
		return fmt.Sprintf("runtimeConfig.ipRanges[%d]", index)
	}
	if index -= ofRuntime; in.keys.Subnet != "" {
		if index == 0 {
			return shorthand
		}
		index--
	}
	return fmt.Sprintf("ipam.ranges[%d]", index)
}

// shorthand is the key of the range set that consists of the keys directly in ipam.
const shorthand = "ipam.subnet"

// checkFamilies returns an error if the result would have several addresses of one family and the CNI
// version is below 0.3.0, whose results have at most one address per family.
func checkFamilies(sets []rangeSet, v types.Version) error {
	count := map[bool]int{} // the key is true for IPv4
	for _, set := range sets {
		if len(set) > 0 {
			count[set[0].First.Is4()]++
		}
	}
	if v < types.V030 && max(count[true], count[false]) > 1 {
		return fmt.Errorf("cniVersion: CNI version %s does not support more than 1 address per family", v)
	}
	return nil
}

func (s rangeSet) overlaps(o rangeSet) bool {
	return slices.ContainsFunc(s, func(a ipRange) bool {
		return slices.ContainsFunc(o, func(b ipRange) bool { return a.Overlaps(b.Range) })
	})
}

// parse returns the valid ranges of the set with this key, and an error for the invalid ones.
func (raw rawSet) parse(key string) (rangeSet, error) {
	var set rangeSet
	var errs []error
	if len(raw) == 0 {
		errs = append(errs, fmt.Errorf("%s: empty range set", key))
	}
	for i, keys := range raw {
		at := fmt.Sprintf("%s[%d]", key, i)
		if key == shorthand {
			at = "ipam"
		}
		r, err := keys.parse(at)
		switch {
		case err != nil:
			errs = append(errs, err)
			continue
		case len(set) > 0 && set[0].First.Is4() != r.First.Is4():
			errs = append(errs, fmt.Errorf("%s: mixed address families", at))
			continue
		}
		for _, other := range set {
			if other.Overlaps(r.Range) {
				errs = append(errs, fmt.Errorf("%s: subnets %s and %s overlap", at, other.Range, r.Range))
			}
		}
		set = append(set, r)
	}
	return set, errors.Join(errs...)
}

// parse returns the range at a path in the configuration, with the defaults of the missing keys. The default of the gateway and of the
// start is the address after the network address. The default of the end is the last address, or for
// IPv4 the address before the broadcast address.
func (raw RangeKeys) parse(at string) (ipRange, error) {
	subnet, err := parseSubnet(at+".subnet", raw.Subnet)
	if err != nil {
		return ipRange{}, err
	}
	all := prefixRange(subnet)
	first, last := all.First.Next(), all.Last
	if subnet.Addr().Is4() {
		last = last.Prev()
	}
	from, fromErr := addrOr(at+".rangeStart", raw.RangeStart, first)
	to, toErr := addrOr(at+".rangeEnd", raw.RangeEnd, last)
	gateway, gatewayErr := addrOr(at+".gateway", raw.Gateway, first)
	if err := errors.Join(fromErr, toErr, gatewayErr); err != nil {
		return ipRange{}, err
	}
	r := ipRange{subnet: subnet, Range: Range{from, to}, gateway: gateway}
	return r, r.check(at)
}

// addrOr returns the address in s, the value of an optional key, or the default if s is empty.
func addrOr(key, s string, defaultAddr netip.Addr) (netip.Addr, error) {
	if s == "" {
		return defaultAddr, nil
	}
	ip, err := types.ParseAddr(s)
	if err != nil {
		return ip, fmt.Errorf("%s: %w", key, err)
	}
	return ip, nil
}

// check returns an error if the range at a path in the configuration is not in its subnet, or if an address cannot be used. The gateway
// may be outside of the subnet, because the reference plugin allows that and configurations rely on it (see
// warnOutsideGateways).
func (r ipRange) check(at string) error {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(!r.subnet.Contains(r.First), "%s.rangeStart: RangeStart %s not in network %s", at, r.First, r.subnet)
	reportIf(!r.subnet.Contains(r.Last), "%s.rangeEnd: RangeEnd %s not in network %s", at, r.Last, r.subnet)
	reportIf(len(errs) == 0 && r.Last.Less(r.First), "%s.rangeStart %s is above rangeEnd %s", at, r.First, r.Last)
	reportIf(!isUnicast(r.First) || !isUnicast(r.Last), "%s: an interface cannot have a multicast or unspecified address, as in %s", at, r.Range)
	reportIf(r.gateway.Is4() != r.subnet.Addr().Is4(), "%s.gateway %s must be of the same family as subnet %s", at, r.gateway, r.subnet)
	reportIf(!isUnicast(r.gateway), "%s.gateway %s: a router cannot have a multicast or unspecified address", at, r.gateway)
	return errors.Join(errs...)
}

// isUnicast reports whether ip can be the address of an interface. The kernel drops packets from an IPv4 multicast address as
// martian (net/ipv4/route.c, ip_route_input_slow), rejects an IPv6 multicast address for an interface, and treats 0.0.0.0 as
// no address. Other addresses of 0.0.0.0/8 work since Linux 5.3.
func isUnicast(ip netip.Addr) bool { return !ip.IsMulticast() && !ip.IsUnspecified() }

// parseSubnet returns the subnet in s, the value of a key. It returns an error if s has host bits set, or if the subnet is too
// small for a gateway and another address.
func parseSubnet(key, s string) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, fmt.Errorf("%s is missing", key)
	}
	p, err := types.ParseCIDR(s)
	if err != nil {
		return p, fmt.Errorf("%s: %w", key, err)
	}
	if p.Masked() != p {
		return p, fmt.Errorf("%s: Network has host bits set. For a subnet mask of length %d the network address is %s", key, p.Bits(), p.Masked().Addr())
	}
	if p.Addr().BitLen()-p.Bits() < 2 {
		return p, fmt.Errorf("%s: Network %s too small to allocate from", key, p)
	}
	return p, nil
}

// ParsePrefixes returns the addresses and prefixes in raw, the value of a key. It converts an address to a prefix of
// one address, and clears the host bits of a prefix. The error names all problems.
func ParsePrefixes(key string, raw []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	var errs []error
	for i, s := range raw {
		ip, ipErr := types.ParseAddr(s)
		p, cidrErr := types.ParseCIDR(s)
		switch {
		case ipErr == nil:
			all = append(all, netip.PrefixFrom(ip, ip.BitLen()))
		case cidrErr == nil:
			all = append(all, p.Masked())
		default:
			errs = append(errs, fmt.Errorf("%s[%d]: %q is neither an address nor a prefix", key, i, s))
		}
	}
	return all, errors.Join(errs...)
}

// requestedAddrs returns the addresses that CNI_ARGS, args and runtimeConfig request, without
// duplicates. It ignores a prefix length, because the result contains the prefix length of the range.
func (in *input) requestedAddrs() ([]netip.Addr, error) {
	var all []netip.Addr
	var errs []error
	add := func(key, s string) {
		p, err := types.ParseCIDR(s)
		ip := p.Addr()
		if err != nil {
			ip, err = types.ParseAddr(s)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		} else if !slices.Contains(all, ip) {
			all = append(all, ip)
		}
	}
	if ip := in.args[types.ArgIP]; ip != "" { // it is empty if the runtime requests no address
		add("CNI_ARGS: IP", ip)
	}
	for i, s := range in.runtime.Args.CNI.IPs {
		add(fmt.Sprintf("args.cni.ips[%d]", i), s)
	}
	for i, s := range in.runtime.RuntimeConfig.IPs {
		add(fmt.Sprintf("runtimeConfig.ips[%d]", i), s)
	}
	return all, errors.Join(errs...)
}
