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
	maxName        = 255 // bytes (NAME_MAX, linux/limits.h)
)

// A config is a checked configuration.
type config struct {
	storeConf
	// sets give one address each. Their order is that of the result, and the index
	// of a set is the N of its last_reserved_ip.N.
	sets       []rangeSet
	requested  []netip.Addr // addresses that must be given, each once
	routes     []types.Route
	resolvConf string // path; empty: no dns in the result

	failStatusWhenFull bool // STATUS fails if a range set is exhausted
}

// A storeConf is the part of a configuration that DEL and GC need. They ignore errors in all
// other parts.
type storeConf struct {
	dataDir  string
	cooldown time.Duration
}

// rawConf is the configuration as written. Elements of lists are pointers, so that
// a null is seen and refused.
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

// rawRoute is types.Route with its addresses as text, so that all that is wrong
// with a configuration can be said at once.
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

// An input is all that a config is made of.
type input struct {
	raw     rawConf
	argIP   string // IP of CNI_ARGS; empty: none is asked for
	version types.Version
	command string
}

// parse reads the configuration of an ADD, CHECK or STATUS. All that is wrong with
// it is in the error.
func parse(r *skel.Request) (*config, error) {
	in := input{version: r.Version, command: r.Command}
	if err := r.Decode(&in.raw); err != nil {
		return nil, err
	}
	args, err := r.Args()
	if err != nil {
		return nil, err
	}
	if len(r.Conf.Name) > maxName {
		return nil, types.Errorf(types.CodeConfig, "the network's name is longer than %d bytes, and no folder can have it", maxName)
	}
	in.argIP = args[types.ArgIP]
	conf, err := in.config()
	if err == nil && r.Conf.Strict && r.Command == "ADD" {
		conf.warnOfGateways(r)
	}
	return conf, err
}

// warnOfGateways names the gateways outside of their subnets. They are legitimate where
// the interface plugin adds a route to them (ptp), or where the subnet is a part of a
// larger one, in which the router is.
func (c *config) warnOfGateways(r *skel.Request) {
	for _, set := range c.sets {
		for _, one := range set {
			if !one.subnet.Contains(one.gateway) && !one.gateway.IsLinkLocalUnicast() {
				r.Warn("gateway %s is outside of the subnet %s", one.gateway, one.subnet)
			}
		}
	}
}

// parseStoreConf reads what DEL and GC need. A cooldown that makes no sense is none.
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
	p, err := newStoreConf(raw.IPAM.DataDir, max(seconds, 0))
	return p, types.Coded(types.CodeConfig, err)
}

// maxCooldown, a year in seconds, is far below what overflows a time.Duration.
const maxCooldown = 365 * 24 * 60 * 60

func newStoreConf(dataDir string, cooldown int64) (storeConf, error) {
	if dataDir == "" {
		dataDir = defaultDataDir
	}
	p := storeConf{dataDir: filepath.Clean(dataDir), cooldown: time.Duration(min(cooldown, maxCooldown)) * time.Second}
	if !filepath.IsAbs(dataDir) {
		return p, fmt.Errorf("dataDir %q is not an absolute path", dataDir)
	}
	return p, nil
}

// config checks everything and reports every problem at once.
func (in *input) config() (*config, error) {
	raw := in.raw.IPAM
	if raw == nil {
		return nil, types.Errorf(types.CodeConfig, "IPAM config missing 'ipam' key")
	}
	var errs problems
	where, err := newStoreConf(raw.DataDir, raw.Cooldown)
	errs.add(err)
	conf := &config{storeConf: where, resolvConf: raw.ResolvConf, failStatusWhenFull: raw.StatusFull}
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
	conf.requested = in.requests(&errs)
	if len(errs) > 0 {
		return nil, types.Errorf(types.CodeConfig, "%w", errors.Join(errs...))
	}
	return conf, nil
}

// problems are what is wrong with a configuration.
type problems []error

func (p *problems) addf(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

func (p *problems) add(err error) {
	if err != nil {
		*p = append(*p, err)
	}
}

// addr reads the address of an optional key; an empty text is the default.
func (p *problems) addr(key, s string, empty netip.Addr) netip.Addr {
	if s == "" {
		return empty
	}
	ip, err := parseAddr(s)
	if err != nil {
		p.addf("%s: %w", key, err)
	}
	return ip
}

// rangeSets are ipRanges, then the single form, then ranges: the order that the
// numbers of last_reserved_ip files stand for.
func (in *input) rangeSets(errs *problems) []rangeSet {
	raw := in.raw.IPAM
	all := slices.Clone(in.raw.RuntimeConfig.IPRanges)
	if raw.Subnet != "" {
		all = append(all, []*rawRange{{raw.Subnet, raw.RangeStart, raw.RangeEnd, raw.Gateway}})
	}
	all = append(all, raw.Ranges...)
	// STATUS is not told the runtime's ipRanges.
	if len(all) == 0 && in.command != "STATUS" {
		errs.addf("no IP ranges specified")
	}
	sets := make([]rangeSet, len(all))
	for i, one := range all {
		var bad problems
		sets[i] = parseRangeSet(one, &bad)
		for _, err := range bad {
			errs.addf("invalid %s: %w", setName(i, rawSubnets(one)), err)
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

// setName is how messages name the range set with an index: people count from 1.
func setName(index int, subnets []string) string {
	if len(subnets) == 0 {
		return fmt.Sprintf("range set %d", index+1)
	}
	return fmt.Sprintf("range set %d (%s)", index+1, strings.Join(subnets, ", "))
}

func (s rangeSet) name(index int) string { return setName(index, s.subnets()) }

func (s rangeSet) subnets() []string {
	var texts []string
	for _, r := range s {
		texts = append(texts, r.subnet.String())
	}
	return texts
}

// rawSubnets are the subnets of a set as they are written.
func rawSubnets(set []*rawRange) []string {
	var texts []string
	for _, r := range set {
		if r != nil && r.Subnet != "" {
			texts = append(texts, r.Subnet)
		}
	}
	return texts
}

// checkFamilies: before 0.3.0 a result has room for one address a family.
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

func (s rangeSet) overlaps(o rangeSet) bool {
	return slices.ContainsFunc(s, func(a ipRange) bool {
		return slices.ContainsFunc(o, func(b ipRange) bool { return a.interval.overlaps(b.interval) })
	})
}

// parseRangeSet gives the ranges that are right.
func parseRangeSet(raw []*rawRange, errs *problems) rangeSet {
	if len(raw) == 0 {
		errs.addf("empty range set")
	}
	var set rangeSet
	for i, one := range raw {
		if one == nil {
			errs.addf("range %d is null", i+1)
			continue
		}
		r, ok := one.parse(errs)
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

// parse checks one range and fills in its defaults: the gateway and the start are
// the first address after the network's, the end is the last but the broadcast
// address of IPv4.
func (raw rawRange) parse(errs *problems) (ipRange, bool) {
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
	r := ipRange{subnet: subnet, interval: interval{
		from: errs.addr("rangeStart", raw.RangeStart, first),
		to:   errs.addr("rangeEnd", raw.RangeEnd, last),
	}}
	r.gateway = errs.addr("gateway", raw.Gateway, first)
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
	if !unicast(r.from) || !unicast(r.to) {
		errs.addf("range %s: a multicast or unspecified address cannot be an interface's", r.interval)
	}
	checkGateway(r, errs)
	return r, len(*errs) == before
}

// checkGateway does not look for the gateway in the subnet: the reference plugin does not,
// and configurations rely on it (see warnOfGateways).
func checkGateway(r ipRange, errs *problems) {
	switch {
	case r.gateway.Is4() != r.subnet.Addr().Is4():
		errs.addf("gateway %s is not of the family of %s", r.gateway, r.subnet)
	case !unicast(r.gateway):
		errs.addf("gateway %s: a multicast or unspecified address cannot be a router's", r.gateway)
	}
}

// unicast: the kernel drops what comes from an IPv4 multicast address as martian
// (net/ipv4/route.c, ip_route_input_slow), refuses one of IPv6, and takes 0.0.0.0 for
// no address at all. The rest of 0.0.0.0/8 works since kernel 5.3.
func unicast(ip netip.Addr) bool { return !ip.IsMulticast() && !ip.IsUnspecified() }

// parseSubnet wants a network address, and room for a gateway and another address.
func parseSubnet(s string) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, errors.New("a range without a subnet")
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("invalid CIDR address: %s (subnet)", s)
	}
	if p = unmap(p); p.Masked() != p {
		//lint:ignore ST1005 the reference's text, which tests of the field look for
		return p, fmt.Errorf("Network has host bits set. For a subnet mask of length %d the network address is %s", p.Bits(), p.Masked().Addr())
	}
	if p.Addr().BitLen()-p.Bits() < 2 {
		//lint:ignore ST1005 as above
		return p, fmt.Errorf("Network %s too small to allocate from", p)
	}
	return p, nil
}

// unmap turns an IPv4-mapped IPv6 prefix into the IPv4 one.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

func parseAddr(s string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(s)
	if err != nil || ip.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("invalid IP address: %s", s)
	}
	return ip.Unmap(), nil
}

// parseRequest reads an address, with or without a prefix length, which says
// nothing that the range does not say.
func parseRequest(s string) (netip.Addr, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Addr().Unmap(), nil
	}
	return parseAddr(s)
}

// parseExclude reads addresses and prefixes.
func parseExclude(raw []*string, errs *problems) []interval {
	var all []interval
	for i, one := range raw {
		if one == nil {
			errs.addf("exclude[%d] is null", i)
			continue
		}
		if p, err := netip.ParsePrefix(*one); err == nil {
			all = append(all, intervalOf(unmap(p)))
			continue
		}
		ip, err := parseAddr(*one)
		if err != nil {
			errs.addf("exclude[%d]: %q is neither an address nor a prefix", i, *one)
			continue
		}
		all = append(all, interval{ip, ip})
	}
	return all
}

func parseRoutes(raw []*rawRoute, errs *problems) []types.Route {
	var routes []types.Route
	for i, one := range raw {
		if one == nil {
			errs.addf("routes[%d] is null", i)
			continue
		}
		dst, err := netip.ParsePrefix(one.Dst)
		if err != nil {
			errs.addf("routes[%d]: invalid CIDR address: %q (dst)", i, one.Dst)
			continue
		}
		gw := errs.addr(fmt.Sprintf("routes[%d]: gw", i), one.GW, netip.Addr{})
		route := types.Route{Dst: dst, GW: gw, MTU: one.MTU, AdvMSS: one.AdvMSS, Priority: one.Priority, Table: one.Table, Scope: one.Scope}
		if err := route.Normalize(); err != nil {
			errs.addf("routes[%d]: %w", i, err)
			continue
		}
		routes = append(routes, route)
	}
	return routes
}

// requests are the addresses asked for by CNI_ARGS, args and runtimeConfig.
func (in *input) requests(errs *problems) []netip.Addr {
	var all []netip.Addr
	add := func(where, s string) {
		ip, err := parseRequest(s)
		if err != nil {
			errs.addf("%s: %w", where, err)
		} else if !slices.Contains(all, ip) {
			all = append(all, ip)
		}
	}
	if in.argIP != "" {
		add("CNI_ARGS: IP", in.argIP)
	}
	for _, list := range []struct {
		where string
		ips   []*string
	}{{"args.cni.ips", in.raw.Args.CNI.IPs}, {"runtimeConfig.ips", in.raw.RuntimeConfig.IPs}} {
		for i, s := range list.ips {
			if s == nil {
				errs.addf("%s[%d] is null", list.where, i)
				continue
			}
			add(fmt.Sprintf("%s[%d]", list.where, i), *s)
		}
	}
	return all
}
