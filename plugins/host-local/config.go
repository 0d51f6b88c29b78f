package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

const (
	defaultDataDir = "/var/lib/cni/networks"
	maxNetworkName = 255 // bytes: the name is that of a folder (NAME_MAX, linux/limits.h)
)

// A config is a valid configuration.
type config struct {
	storeConf
	// sets has the range sets. ADD allocates one address from each, and returns the addresses in
	// this order. The index of a set is the N of its file last_reserved_ip.N.
	sets       []rangeSet
	requested  []netip.Addr // addresses that ADD must allocate, without duplicates
	routes     []types.Route
	resolvConf string // path; empty: the result has no dns

	failStatusWhenFull bool // STATUS fails if a range set is exhausted
}

// A storeConf is the part of a configuration that DEL and GC need. They ignore errors in all
// other parts.
type storeConf struct {
	dataDir  string
	cooldown time.Duration
}

// rawConf is the configuration before it is checked. Elements of lists are pointers, so that null can
// be detected and reported.
type rawConf struct {
	IPAM          *rawIPAM   `json:"ipam"`
	RuntimeConfig rawRuntime `json:"runtimeConfig"`
	Args          rawArgs    `json:"args"`
}

type rawIPAM struct {
	Type       string        `json:"type"`
	Subnet     string        `json:"subnet"`
	RangeStart string        `json:"rangeStart"`
	RangeEnd   string        `json:"rangeEnd"`
	Gateway    string        `json:"gateway"`
	Ranges     [][]*rawRange `json:"ranges"`
	Routes     []*rawRoute   `json:"routes"`
	DataDir    string        `json:"dataDir"`
	ResolvConf string        `json:"resolvConf"`
	Exclude    []*string     `json:"exclude"`
	Cooldown   int64         `json:"cooldown"`
	StatusFull bool          `json:"failStatusWhenFull"`
}

type rawRange struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart"`
	RangeEnd   string `json:"rangeEnd"`
	Gateway    string `json:"gateway"`
}

// rawRoute is types.Route with the addresses as text. An invalid address is then no error of the JSON
// decoder, and one error can report all problems of the configuration.
type rawRoute struct {
	Dst      string `json:"dst"`
	GW       string `json:"gw"`
	MTU      int    `json:"mtu"`
	AdvMSS   int    `json:"advmss"`
	Priority int    `json:"priority"`
	Table    int    `json:"table"`
	Scope    int    `json:"scope"`
}

type rawRuntime struct {
	IPs      []*string     `json:"ips"`
	IPRanges [][]*rawRange `json:"ipRanges"`
}

type rawArgs struct {
	CNI struct {
		IPs []*string `json:"ips"`
	} `json:"cni"`
}

// An input has everything that determines a config.
type input struct {
	raw     rawConf
	argIP   string // IP in CNI_ARGS; empty: none is requested
	version types.Version
	command string
}

// parse returns the configuration of an ADD, CHECK or STATUS. The error reports all problems of the
// values in ipam, runtimeConfig and args.
func parse(r *skel.Request) (*config, error) {
	in := input{version: r.Version, command: r.Command}
	if err := r.Decode(&in.raw); err != nil {
		return nil, err
	}
	args, err := r.Args()
	if err != nil {
		return nil, err
	}
	if len(r.Conf.Name) > maxNetworkName {
		return nil, types.Errorf(types.CodeConfig, "the network's name is longer than %d bytes, and no folder can have it", maxNetworkName)
	}
	in.argIP = args[types.ArgIP]
	conf, err := in.config()
	if err == nil && r.Conf.Strict && r.Command == "ADD" {
		conf.warnOutsideGateways(r)
	}
	return conf, err
}

// warnOutsideGateways warns of each gateway outside of its subnet. Such a gateway can be correct: if the
// interface plugin adds a route to the gateway (ptp), or if the subnet is a part of a larger one that
// has the router.
func (c *config) warnOutsideGateways(r *skel.Request) {
	for _, set := range c.sets {
		for _, ipr := range set {
			if !ipr.subnet.Contains(ipr.gateway) && !ipr.gateway.IsLinkLocalUnicast() {
				r.Warn("gateway %s is outside of the subnet %s", ipr.gateway, ipr.subnet)
			}
		}
	}
}

// parseStoreConf returns the part of the configuration that DEL and GC need. If the cooldown is invalid,
// there is none.
func parseStoreConf(r *skel.Request) (storeConf, error) {
	var raw struct {
		IPAM struct {
			DataDir  string          `json:"dataDir"`
			Cooldown json.RawMessage `json:"cooldown"`
		} `json:"ipam"`
	}
	if err := types.Decode(r.Stdin, &raw); err != nil {
		return storeConf{}, err
	}
	var seconds int64
	if json.Unmarshal(raw.IPAM.Cooldown, &seconds) != nil {
		seconds = 0
	}
	c, err := newStoreConf(raw.IPAM.DataDir, max(seconds, 0))
	return c, types.Coded(types.CodeConfig, err)
}

// maxCooldown is one year in seconds. This is far below the value that overflows a time.Duration.
const maxCooldown = 365 * 24 * 60 * 60

// newStoreConf returns a storeConf with the default for an empty dataDir. cooldown is in seconds; a larger
// one than maxCooldown counts as maxCooldown.
func newStoreConf(dataDir string, cooldown int64) (storeConf, error) {
	if dataDir == "" {
		dataDir = defaultDataDir
	}
	c := storeConf{dataDir: filepath.Clean(dataDir), cooldown: time.Duration(min(cooldown, maxCooldown)) * time.Second}
	if !filepath.IsAbs(dataDir) {
		return c, fmt.Errorf("dataDir %q is not an absolute path", dataDir)
	}
	return c, nil
}

// config checks the input and returns the configuration. The error reports all problems.
func (in *input) config() (*config, error) {
	raw := in.raw.IPAM
	if raw == nil {
		return nil, types.Errorf(types.CodeConfig, "IPAM config missing 'ipam' key")
	}
	var errs problems
	forStore, err := newStoreConf(raw.DataDir, raw.Cooldown)
	errs.add(err)
	conf := &config{storeConf: forStore, resolvConf: raw.ResolvConf, failStatusWhenFull: raw.StatusFull}
	if raw.Cooldown < 0 || raw.Cooldown > maxCooldown {
		errs.addf("cooldown %d is not between 0 and %d seconds", raw.Cooldown, maxCooldown)
	}
	conf.sets = in.rangeSets(&errs)
	excluded := parseExclude(raw.Exclude, &errs)
	for _, set := range conf.sets {
		for i := range set {
			set[i].exclude(excluded)
		}
	}
	conf.routes = parseRoutes(raw.Routes, &errs)
	conf.requested = in.requestedAddrs(&errs)
	if len(errs) > 0 {
		return nil, types.Errorf(types.CodeConfig, "%w", errors.Join(errs...))
	}
	return conf, nil
}

// problems has the problems that were found in a configuration.
type problems []error

func (p *problems) addf(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

func (p *problems) add(err error) {
	if err != nil {
		*p = append(*p, err)
	}
}

// addrOr returns the address in s, the value of an optional key. If s is empty, it returns the default.
// If s is invalid, it adds a problem.
func (p *problems) addrOr(key, s string, defaultAddr netip.Addr) netip.Addr {
	if s == "" {
		return defaultAddr
	}
	ip, err := parseAddr(s)
	if err != nil {
		p.addf("%s: %w", key, err)
	}
	return ip
}

// rangeSets returns the range sets of the configuration: those of the runtime's ipRanges, then the one
// of the keys directly in ipam, then those of ranges. The reference plugin numbers its
// last_reserved_ip files in the same order.
func (in *input) rangeSets(errs *problems) []rangeSet {
	raw := in.raw.IPAM
	all := slices.Clone(in.raw.RuntimeConfig.IPRanges)
	if raw.Subnet != "" {
		all = append(all, []*rawRange{{raw.Subnet, raw.RangeStart, raw.RangeEnd, raw.Gateway}})
	}
	all = append(all, raw.Ranges...)
	// The runtime does not pass ipRanges to STATUS.
	if len(all) == 0 && in.command != "STATUS" {
		errs.addf("no IP ranges specified")
	}
	sets := make([]rangeSet, len(all))
	for i, rawSet := range all {
		var setErrs problems
		sets[i] = parseRangeSet(rawSet, &setErrs)
		for _, err := range setErrs {
			errs.addf("invalid %s: %w", setName(i, rawSubnets(rawSet)), err)
		}
	}
	for i, set := range sets {
		for j, later := range sets[i+1:] {
			if set.overlaps(later) {
				errs.addf("%s overlaps with %d (%s)", set.name(i), i+j+2, strings.Join(later.subnets(), ", "))
			}
		}
	}
	in.checkFamilies(sets, errs)
	return sets
}

// setName returns the name of a range set for messages. The index counts from 0, the name from 1.
func setName(index int, subnets []string) string {
	if len(subnets) == 0 {
		return fmt.Sprintf("range set %d", index+1)
	}
	return fmt.Sprintf("range set %d (%s)", index+1, strings.Join(subnets, ", "))
}

// name is setName for a valid range set.
func (s rangeSet) name(index int) string { return setName(index, s.subnets()) }

// subnets returns the subnets of the set as text.
func (s rangeSet) subnets() []string {
	var texts []string
	for _, r := range s {
		texts = append(texts, r.subnet.String())
	}
	return texts
}

// rawSubnets returns the subnets of a set as they are written in the configuration.
func rawSubnets(set []*rawRange) []string {
	var texts []string
	for _, r := range set {
		if r != nil && r.Subnet != "" {
			texts = append(texts, r.Subnet)
		}
	}
	return texts
}

// checkFamilies adds a problem if the result would have several addresses of one family and the CNI
// version is below 0.3.0, whose results have at most one address per family.
func (in *input) checkFamilies(sets []rangeSet, errs *problems) {
	var count [2]int
	for _, set := range sets {
		if len(set) > 0 && set[0].from.Is4() {
			count[0]++
		} else if len(set) > 0 {
			count[1]++
		}
	}
	if in.version < types.V030 && max(count[0], count[1]) > 1 {
		errs.addf("CNI version %s does not support more than 1 address per family", in.version)
	}
}

// overlaps reports whether both sets contain an address.
func (s rangeSet) overlaps(o rangeSet) bool {
	return slices.ContainsFunc(s, func(a ipRange) bool {
		return slices.ContainsFunc(o, func(b ipRange) bool { return a.interval.overlaps(b.interval) })
	})
}

// parseRangeSet returns the valid ranges of a set, and adds a problem for each invalid one.
func parseRangeSet(rawSet []*rawRange, errs *problems) rangeSet {
	if len(rawSet) == 0 {
		errs.addf("empty range set")
	}
	var set rangeSet
	for i, raw := range rawSet {
		if raw == nil {
			errs.addf("range %d is null", i+1)
			continue
		}
		r, ok := raw.parse(errs)
		if !ok {
			continue
		}
		if len(set) > 0 && set[0].from.Is4() != r.from.Is4() {
			errs.addf("mixed address families")
			continue
		}
		for _, other := range set {
			if other.interval.overlaps(r.interval) {
				errs.addf("subnets %s and %s overlap", other.interval, r.interval)
			}
		}
		set = append(set, r)
	}
	return set
}

// parse returns the range with the defaults of the missing keys. It adds the problems of the range to
// errs, and ok is false if there are any. The default of the gateway and of the start is the address
// after the network address. The default of the end is the last address, or for IPv4 the one before the
// broadcast address.
func (raw rawRange) parse(errs *problems) (r ipRange, ok bool) {
	subnet, err := parseSubnet(raw.Subnet)
	if err != nil {
		errs.addf("%w", err)
		return ipRange{}, false
	}
	before := len(*errs)
	all := intervalOf(subnet)
	first, last := all.from.Next(), all.to
	if subnet.Addr().Is4() {
		last = last.Prev()
	}
	r = ipRange{subnet: subnet, interval: interval{
		from: errs.addrOr("rangeStart", raw.RangeStart, first),
		to:   errs.addrOr("rangeEnd", raw.RangeEnd, last),
	}}
	r.gateway = errs.addrOr("gateway", raw.Gateway, first)
	if len(*errs) > before {
		return r, false
	}
	switch {
	case !subnet.Contains(r.from):
		errs.addf("RangeStart %s not in network %s", r.from, subnet)
	case subnet.Contains(r.to) && r.to.Less(r.from):
		errs.addf("rangeStart %s is above rangeEnd %s", r.from, r.to)
	}
	if !subnet.Contains(r.to) {
		errs.addf("RangeEnd %s not in network %s", r.to, subnet)
	}
	if !isUnicast(r.from) || !isUnicast(r.to) {
		errs.addf("range %s: a multicast or unspecified address cannot be an interface's", r.interval)
	}
	checkGateway(r, errs)
	return r, len(*errs) == before
}

// checkGateway adds a problem if the gateway cannot be a router for the subnet. The gateway may be
// outside of the subnet: the reference plugin allows that, and configurations rely on it (see
// warnOutsideGateways).
func checkGateway(r ipRange, errs *problems) {
	switch {
	case r.gateway.Is4() != r.subnet.Addr().Is4():
		errs.addf("gateway %s is not of the family of %s", r.gateway, r.subnet)
	case !isUnicast(r.gateway):
		errs.addf("gateway %s: a multicast or unspecified address cannot be a router's", r.gateway)
	}
}

// isUnicast reports whether ip can be the address of an interface. A multicast address cannot: the
// kernel drops packets from an IPv4 one as martian (net/ipv4/route.c, ip_route_input_slow), and does not
// accept an IPv6 one for an interface. The unspecified address cannot: the kernel treats 0.0.0.0 as no
// address. Other addresses of 0.0.0.0/8 work since Linux 5.3.
func isUnicast(ip netip.Addr) bool { return !ip.IsMulticast() && !ip.IsUnspecified() }

// parseSubnet returns the subnet in s. It returns an error if s has host bits set, or if the subnet is too
// small for a gateway and another address.
func parseSubnet(s string) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, errors.New("a range without a subnet")
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("invalid CIDR address: %s (subnet)", s)
	}
	if p = unmapPrefix(p); p.Masked() != p {
		//lint:ignore ST1005 the text of the reference plugin, which tests of other projects compare
		return p, fmt.Errorf("Network has host bits set. For a subnet mask of length %d the network address is %s", p.Bits(), p.Masked().Addr())
	}
	if p.Addr().BitLen()-p.Bits() < 2 {
		//lint:ignore ST1005 as above
		return p, fmt.Errorf("Network %s too small to allocate from", p)
	}
	return p, nil
}

// unmapPrefix returns the IPv4 prefix for an IPv4-mapped IPv6 prefix, and other prefixes unchanged.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// parseAddr returns the address in s. It returns an IPv4-mapped IPv6 address as an IPv4 address, and an
// error for an address with a zone.
func parseAddr(s string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(s)
	if err != nil || ip.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("invalid IP address: %s", s)
	}
	return ip.Unmap(), nil
}

// parseRequestedAddr returns the requested address in s. It ignores a prefix length, because the prefix
// length of the result is that of the range.
func parseRequestedAddr(s string) (netip.Addr, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Addr().Unmap(), nil
	}
	return parseAddr(s)
}

// parseExclude returns the intervals of the addresses and prefixes in raw, and adds a problem for each
// invalid one.
func parseExclude(raw []*string, errs *problems) []interval {
	var all []interval
	for i, s := range raw {
		if s == nil {
			errs.addf("exclude[%d] is null", i)
			continue
		}
		if p, err := netip.ParsePrefix(*s); err == nil {
			all = append(all, intervalOf(unmapPrefix(p)))
			continue
		}
		ip, err := parseAddr(*s)
		if err != nil {
			errs.addf("exclude[%d]: %q is neither an address nor a prefix", i, *s)
			continue
		}
		all = append(all, interval{ip, ip})
	}
	return all
}

// parseRoutes returns the valid routes in raw, and adds a problem for each invalid one.
func parseRoutes(raw []*rawRoute, errs *problems) []types.Route {
	var routes []types.Route
	for i, r := range raw {
		if r == nil {
			errs.addf("routes[%d] is null", i)
			continue
		}
		dst, err := netip.ParsePrefix(r.Dst)
		if err != nil {
			errs.addf("routes[%d]: invalid CIDR address: %q (dst)", i, r.Dst)
			continue
		}
		gw := errs.addrOr(fmt.Sprintf("routes[%d]: gw", i), r.GW, netip.Addr{})
		route := types.Route{Dst: dst, GW: gw, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Table: r.Table, Scope: r.Scope}
		if err := route.Normalize(); err != nil {
			errs.addf("routes[%d]: %w", i, err)
			continue
		}
		routes = append(routes, route)
	}
	return routes
}

// requestedAddrs returns the addresses that CNI_ARGS, args and runtimeConfig request, without
// duplicates. It adds a problem for each invalid one.
func (in *input) requestedAddrs(errs *problems) []netip.Addr {
	var all []netip.Addr
	add := func(key, s string) {
		ip, err := parseRequestedAddr(s)
		if err != nil {
			errs.addf("%s: %w", key, err)
		} else if !slices.Contains(all, ip) {
			all = append(all, ip)
		}
	}
	if in.argIP != "" {
		add("CNI_ARGS: IP", in.argIP)
	}
	for _, list := range []struct {
		key string
		ips []*string
	}{{"args.cni.ips", in.raw.Args.CNI.IPs}, {"runtimeConfig.ips", in.raw.RuntimeConfig.IPs}} {
		for i, s := range list.ips {
			if s == nil {
				errs.addf("%s[%d] is null", list.key, i)
				continue
			}
			add(fmt.Sprintf("%s[%d]", list.key, i), *s)
		}
	}
	return all
}
