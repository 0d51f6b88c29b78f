// Package types contains the values of the CNI protocol, which are results, errors, versions, and the configuration keys that
// all plugins share (SPEC 1.1.0, sections 1, 2 and 5).
//
// Plugins use one Result, in the form of the newest version. It is converted when JSON is read or printed. wire020.go
// and wire030.go each contain the structs of some versions, and the conversions from and to Result. The parts of a
// prevResult that a plugin does not change are printed unchanged (see prev.go).
package types

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// NoInterface is the value of IP.Interface for an IP that names no interface.
const NoInterface = -1

// A Result is the result of ADD.
type Result struct {
	Interfaces []Interface
	IPs        []IP
	Routes     []Route
	DNS        DNS

	prev []byte // the JSON text of the prevResult from which the result was decoded, or nil if it was not decoded from one
}

// An Interface is a network interface on the host, or in a container if Sandbox is set. MTU is in bytes, and zero if unknown.
type Interface struct {
	Name       string `json:"name"`
	MAC        string `json:"mac,omitempty"` // any text, because aws-cni writes a VLAN ID here; ParseMAC decodes an address
	MTU        int    `json:"mtu,omitempty"`
	Sandbox    string `json:"sandbox,omitempty"` // path of the container's namespace, or "" for an interface on the host
	SocketPath string `json:"socketPath,omitempty"`
	PciID      string `json:"pciID,omitempty"`
}

// An IP is an address with its prefix length. Gateway is zero if there is none. Interface is an index into Result.Interfaces,
// or NoInterface.
type IP struct {
	Interface int
	Address   netip.Prefix
	Gateway   netip.Addr
}

// HasGateway reports whether the IP has a gateway. An unspecified address (0.0.0.0, ::) is not a gateway.
func (ip IP) HasGateway() bool { return ip.Gateway.IsValid() && !ip.Gateway.IsUnspecified() }

// A Route is a route in the container. If GW is zero, the route uses the gateway of the first IP of its family. MTU and AdvMSS
// are in bytes. A number that is zero is not set. Scope is a number of rtnetlink (0 global, 253 link, 254 host).
//
// GWs contains the gateways of a multipath route, of which GW is the first, and is nil if there are not at least two. It is
// proposed for the specification (containernetworking/cni#1190). libcni drops it from results, and keeps GW.
type Route struct {
	Dst      netip.Prefix `json:"dst"`
	GW       netip.Addr   `json:"gw,omitzero"`
	GWs      []netip.Addr `json:"gws,omitempty"`
	MTU      int          `json:"mtu,omitempty"`
	AdvMSS   int          `json:"advmss,omitempty"`
	Priority int          `json:"priority,omitempty"`
	Table    int          `json:"table,omitempty"`
	Scope    int          `json:"scope,omitempty"`
}

// DNS is a resolver configuration, which the runtime may use. Each field is as in resolv.conf(5).
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// IsZero reports whether no field is set. An empty list is set, because it replaces the list of the IPAM plugin.
func (d DNS) IsZero() bool {
	return d.Nameservers == nil && d.Domain == "" && d.Search == nil && d.Options == nil
}

// ContainerInterface returns the index of the container's interface with the name.
func (r *Result) ContainerInterface(ifName string) (index int, found bool) {
	for i, in := range r.Interfaces {
		if in.Name == ifName && in.Sandbox != "" {
			return i, true
		}
	}
	return NoInterface, false
}

// Of returns the IPs of the interface with the index, and the IPs that name no interface.
func (r *Result) Of(index int) []IP {
	var ips []IP
	for _, ip := range r.IPs {
		if ip.Interface == index || ip.Interface == NoInterface {
			ips = append(ips, ip)
		}
	}
	return ips
}

// A MAC is a hardware address as a string of bytes, so that MACs can be compared with ==. The zero MAC is not an address. In
// JSON, a MAC is text in lower case.
type MAC string

// ParseMAC parses 6, 8 or 20 bytes in hexadecimal, with a colon or a hyphen between bytes, a dot between pairs of bytes, or no
// separator. It accepts the same texts as net.ParseMAC, which would link package net into each executable.
func ParseMAC(s string) (MAC, error) {
	group, separator := len(s), ":"
	switch { // group is the number of digits between separators
	case strings.Contains(s, ":"):
		group = 2
	case strings.Contains(s, "-"):
		group, separator = 2, "-"
	case strings.Contains(s, "."):
		group, separator = 4, "."
	}
	var m []byte
	for part := range strings.SplitSeq(s, separator) {
		b, err := hex.DecodeString(part)
		if err != nil || len(part) != group {
			return "", fmt.Errorf("invalid MAC address %q", s)
		}
		m = append(m, b...)
	}
	if len(m) != 6 && len(m) != 8 && len(m) != 20 {
		return "", fmt.Errorf("invalid MAC address %q", s)
	}
	return MAC(m), nil
}

// String returns the address in lower case with colons, or "" for the zero MAC.
func (m MAC) String() string { return strings.ReplaceAll(fmt.Sprintf("% x", string(m)), " ", ":") }

// Bytes returns the address as the kernel encodes it.
func (m MAC) Bytes() []byte { return []byte(m) }

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. An empty text is the zero MAC.
func (m *MAC) UnmarshalText(text []byte) (err error) {
	if *m = ""; len(text) > 0 {
		*m, err = ParseMAC(string(text))
	}
	return err
}

// Marshal returns the result as JSON in the form of version v, indented, with a newline at its end. It returns ErrNoAddress if
// the version cannot express a result without addresses (0.1.0 and 0.2.0).
func (r *Result) Marshal(v Version) ([]byte, error) {
	plain := *r
	if v < V110 {
		plain.Routes = withoutAttributes(r.Routes)
	}
	text, err := plain.MarshalLease(v)
	if err != nil || r.prev == nil {
		return text, err
	}
	return r.mergeIntoPrev(v, text)
}

// MarshalLease encodes the result of an IPAM plugin. Unlike Marshal, it includes gws, mtu, advmss, priority, table and
// scope of the routes in all versions from 0.3.0 on, because the interface plugin sets these attributes and has no other way
// to get them.
func (r *Result) MarshalLease(v Version) ([]byte, error) {
	if v > V020 {
		return encode(to030(r, v))
	}
	wire, err := to020(r, v)
	if err != nil {
		return nil, err
	}
	return encode(wire)
}

func encode(wire any) ([]byte, error) {
	b, err := json.MarshalIndent(wire, "", "    ")
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return append(b, '\n'), nil
}

// ParseResult decodes a result in the form of its cniVersion, or of v if it has none. It ignores fields that the specification
// does not define.
func ParseResult(v Version, data []byte) (*Result, error) {
	r, _, err := parse(v, data, (*Result).check)
	return r, err
}

// parse decodes a result, which check then normalizes, and returns the result's version.
func parse(v Version, data []byte, check func(*Result) error) (*Result, Version, error) {
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, v, fmt.Errorf("decode result: %w", explain(err, data, &head, ""))
	}
	if head.CNIVersion != "" {
		own, err := ParseVersion(head.CNIVersion)
		if err != nil {
			return nil, v, fmt.Errorf("decode result: %w", err)
		}
		v = own
	}
	r, err := decode(data, from030)
	if v <= V020 {
		r, err = decode(data, from020)
	}
	if err == nil {
		err = check(r)
	}
	if err != nil {
		return nil, v, fmt.Errorf("decode result of version %s: %w", v, err)
	}
	return r, v, nil
}

// decode decodes the form of one group of versions, and converts it to a Result.
func decode[Wire any](data []byte, from func(*Wire) *Result) (*Result, error) {
	var wire Wire
	if err := json.Unmarshal(data, &wire); err != nil {
		return nil, explain(err, data, &wire, "")
	}
	return from(&wire), nil
}

// check normalizes the IPs and routes. It returns an error for the first invalid IP or route.
func (r *Result) check() error {
	for i := range r.IPs {
		ip := &r.IPs[i]
		if err := ip.normalize(); err != nil {
			return err
		}
		switch n := len(r.Interfaces); {
		case n == 0: // the result of an IPAM plugin
			ip.Interface = NoInterface
		case ip.Interface < NoInterface || ip.Interface >= n:
			return fmt.Errorf("IP %s has interface index %d, but the result has %d interfaces", ip.Address, ip.Interface, n)
		}
	}
	for i := range r.Routes {
		if err := r.Routes[i].Normalize(); err != nil {
			return fmt.Errorf("routes[%d].%w", i, err)
		}
	}
	return nil
}

// normalize checks an IP of a decoded result, and converts IPv4-mapped IPv6 to IPv4. netip decodes an empty text as the zero
// prefix, which is an error here.
func (ip *IP) normalize() error {
	ip.Address, ip.Gateway = unmap(ip.Address), ip.Gateway.Unmap()
	switch {
	case !ip.Address.IsValid():
		return errors.New("an IP without an address")
	case ip.Address.Addr().Is4In6():
		return fmt.Errorf("IP %s is an IPv4-mapped IPv6 address with a prefix length below 96", ip.Address)
	case ip.Gateway.Zone() != "":
		return fmt.Errorf("IP %s has a gateway with a zone: %s", ip.Address, ip.Gateway)
	}
	return nil
}

// Normalize checks a route, masks its destination, converts IPv4-mapped IPv6 to IPv4, and sets GW to the first of GWs. It
// returns an error, which begins with the key, if a gateway is of another family than the destination, GWs is contradictory, or a number is out of range.
func (r *Route) Normalize() error {
	if r.Dst = unmap(r.Dst).Masked(); !r.Dst.IsValid() {
		return errors.New("dst is missing")
	}
	if r.GW.Zone() != "" {
		return fmt.Errorf("gw %s must not have a zone", r.GW)
	}
	if r.GW = r.GW.Unmap(); r.GW.IsValid() && r.GW.Is4() != r.Dst.Addr().Is4() {
		return fmt.Errorf("gw %s must be of the same family as dst %s", r.GW, r.Dst)
	}
	if err := r.normalizeGWs(); err != nil {
		return err
	}
	for key, n := range map[string]int{"mtu": r.MTU, "advmss": r.AdvMSS, "priority": r.Priority, "table": r.Table} {
		if n < 0 || int64(n) > math.MaxUint32 {
			return fmt.Errorf("%s %d must be between 0 and %d", key, n, int64(math.MaxUint32))
		}
	}
	if r.Scope < 0 || r.Scope > 255 {
		return fmt.Errorf("scope %d must be between 0 and 255", r.Scope)
	}
	return nil
}

// normalizeGWs does what Normalize does for GWs.
func (r *Route) normalizeGWs() error {
	var gws []netip.Addr
	for i, gw := range r.GWs {
		gw = gw.Unmap()
		switch {
		case !gw.IsValid() || gw.IsUnspecified() || gw.Zone() != "":
			return fmt.Errorf("gws[%d] must be the address of a gateway, without a zone", i)
		case gw.Is4() != r.Dst.Addr().Is4():
			return fmt.Errorf("gws[%d] %s must be of the same family as dst %s", i, gw, r.Dst)
		case slices.Contains(gws, gw):
			return fmt.Errorf("gws[%d] repeats %s; list each gateway once", i, gw)
		case i == 0 && r.GW.IsValid() && r.GW != gw:
			return fmt.Errorf("gw must be the first of gws, want %s, got %s; omit gw", gw, r.GW)
		}
		gws = append(gws, gw)
	}
	if len(gws) > 0 {
		r.GW = gws[0]
	}
	if r.GWs = gws; len(gws) == 1 {
		r.GWs = nil
	}
	return nil
}

// unmap returns the IPv4 prefix of an IPv4-mapped IPv6 prefix, and any other prefix as it is.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// withoutAttributes returns the routes with destination and gateway only, as in versions before 1.1.0.
func withoutAttributes(routes []Route) []Route {
	out := make([]Route, 0, len(routes))
	for _, r := range routes {
		out = append(out, Route{Dst: r.Dst, GW: r.GW})
	}
	return out
}

// FirstMAC parses the first text that is not empty of the keys runtimeConfig.mac, args.cni.mac, MAC in CNI_ARGS (args) and mac.
// It returns the zero MAC if all are empty. The error begins with the key.
func FirstMAC(runtime, fromArgs string, args Args, configured string) (MAC, error) {
	for _, k := range [][2]string{{"runtimeConfig.mac", runtime}, {"args.cni.mac", fromArgs}, {"CNI_ARGS: MAC", args[ArgMAC]}, {"mac", configured}} {
		mac, err := UnicastMAC(k[1])
		if err != nil {
			return "", fmt.Errorf("%s: %w", k[0], err)
		}
		if mac != "" {
			return mac, nil
		}
	}
	return "", nil
}

// UnicastMAC parses a MAC, or returns the zero MAC for an empty text. It returns an error for an address that no interface can
// have (multicast, all zero).
func UnicastMAC(text string) (MAC, error) {
	if text == "" {
		return "", nil
	}
	mac, err := ParseMAC(text)
	switch {
	case err != nil:
		return "", err
	case len(mac) == 6 && mac[0]&1 != 0:
		return "", fmt.Errorf("invalid MAC address %q: it is a multicast address, because its second digit %q is odd; use a unicast address, with an even digit", text, mac.String()[1])
	case len(mac) != 6, mac == MAC(make([]byte, 6)):
		return "", fmt.Errorf("invalid MAC address %q: an interface needs a unicast address of 6 bytes", text)
	}
	return mac, nil
}
