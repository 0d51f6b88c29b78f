// Package types gives the values of the CNI protocol: results, errors, versions and
// the configuration that all plugins share (SPEC 1.1.0, sections 1, 2 and 5).
//
// There is one Result, in the newest form. Older forms exist only on the wire: one
// file a family (wire020.go, wire040.go, wire100.go), each with the structs of that
// family and the way there and back. A field that is younger than the version asked
// for has no place in its struct and so cannot appear.
package types

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// NoInterface is the Interface of an IP that belongs to none.
const NoInterface = -1

// A Result is what an ADD has made.
type Result struct {
	Interfaces []Interface
	IPs        []IP
	Routes     []Route
	DNS        DNS
}

// An Interface is a network interface, on the node or, with a Sandbox, in a
// container. MTU in bytes; zero: not said.
type Interface struct {
	Name       string
	MAC        MAC
	MTU        int
	Sandbox    string // the container's netns path; empty: on the node
	SocketPath string
	PciID      string
}

// An IP is an address with its prefix length, the gateway (zero: none) and the
// index into Result.Interfaces (or NoInterface).
type IP struct {
	Interface int
	Address   netip.Prefix
	Gateway   netip.Addr
}

// A Route is a route in the container. GW zero: the gateway of the first IP of the
// same family. MTU and AdvMSS in bytes; all numbers zero: not said. Scope as in
// rtnetlink (0 global, 253 link, 254 host).
type Route struct {
	Dst      netip.Prefix `json:"dst"`
	GW       netip.Addr   `json:"gw,omitzero"`
	MTU      int          `json:"mtu,omitempty"`
	AdvMSS   int          `json:"advmss,omitempty"`
	Priority int          `json:"priority,omitempty"`
	Table    int          `json:"table,omitempty"`
	Scope    int          `json:"scope,omitempty"`
}

// DNS is the resolver configuration that the runtime may use.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// IsZero reports whether nothing is said. An empty list says something: it
// overrides what an IPAM plugin found.
func (d DNS) IsZero() bool {
	return d.Nameservers == nil && d.Domain == "" && d.Search == nil && d.Options == nil
}

// printed is d as it is printed: an empty list has nothing to override any more.
func (d DNS) printed() DNS {
	if len(d.Nameservers) == 0 && d.Domain == "" && len(d.Search) == 0 && len(d.Options) == 0 {
		return DNS{}
	}
	return d
}

// Container finds the interface of that name in the container.
func (r *Result) Container(ifName string) (index int, found bool) {
	for i, in := range r.Interfaces {
		if in.Name == ifName && in.Sandbox != "" {
			return i, true
		}
	}
	return NoInterface, false
}

// Of lists the IPs of the interface with that index, and those that name none.
func (r *Result) Of(index int) []IP {
	var ips []IP
	for _, ip := range r.IPs {
		if ip.Interface == index || ip.Interface == NoInterface {
			ips = append(ips, ip)
		}
	}
	return ips
}

// A MAC is a hardware address, comparable; the zero MAC is none. On the wire it is
// the usual text, in lower case.
type MAC string

// ParseMAC reads the forms of net.ParseMAC, which would link all of net into each
// executable: 6, 8 or 20 bytes in hexadecimal, with a colon or a hyphen after each, a
// dot after each two, or nothing between them.
func ParseMAC(s string) (MAC, error) {
	group, separator := len(s), ":"
	switch {
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

func (m MAC) String() string {
	const digits = "0123456789abcdef"
	text := make([]byte, 0, 3*len(m))
	for i := range len(m) {
		if i > 0 {
			text = append(text, ':')
		}
		text = append(text, digits[m[i]>>4], digits[m[i]&0xf])
	}
	return string(text)
}

// Bytes is the address as the kernel takes it.
func (m MAC) Bytes() []byte { return []byte(m) }

// MarshalText is for encoding/json.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText is for encoding/json; an empty text is the zero MAC.
func (m *MAC) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*m = ""
		return nil
	}
	mac, err := ParseMAC(string(text))
	*m = mac
	return err
}

// Marshal gives the result in the form of version v, indented for people, with a
// closing newline. A form that cannot hold the result (0.1.0 and 0.2.0 without an
// address) is an error.
func (r *Result) Marshal(v Version) ([]byte, error) { return marshal(r, v, v >= V110) }

// MarshalLease is Marshal for the answer of an IPAM plugin. Its routes keep mtu,
// advmss, priority, table and scope in every version that has a list of routes:
// the interface plugin that asked is to program them, and it has no other way to
// learn of them under a configuration of 1.0.0 or older.
func (r *Result) MarshalLease(v Version) ([]byte, error) { return marshal(r, v, true) }

func marshal(r *Result, v Version, routeAttributes bool) ([]byte, error) {
	var wire any
	var err error
	switch {
	case v <= V020:
		wire, err = to020(r, v)
	case v <= V040:
		wire = to040(r, v, routeAttributes)
	default:
		wire = to100(r, v, routeAttributes)
	}
	if err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(wire, "", "    ")
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return append(b, '\n'), nil
}

// ParseResult reads a result. Its own cniVersion decides the form; where it has
// none, v does. Fields that the specification does not know are dropped.
func ParseResult(v Version, data []byte) (*Result, error) {
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("decode result: %w", explain(err, data, &head))
	}
	if head.CNIVersion != "" {
		own, err := ParseVersion(head.CNIVersion)
		if err != nil {
			return nil, fmt.Errorf("decode result: %w", err)
		}
		v = own
	}
	r, err := parse(v, data)
	if err != nil {
		return nil, fmt.Errorf("decode result of version %s: %w", v, err)
	}
	return r, nil
}

func parse(v Version, data []byte) (*Result, error) {
	switch {
	case v <= V020:
		return decode(data, from020)
	case v <= V040:
		return decode(data, from040)
	}
	return decode(data, from100)
}

// decode reads one wire form, brings it into the newest and checks it.
func decode[Wire any](data []byte, from func(*Wire) *Result) (*Result, error) {
	var wire Wire
	if err := json.Unmarshal(data, &wire); err != nil {
		return nil, explain(err, data, &wire)
	}
	r := from(&wire)
	for i := range r.IPs {
		if err := r.IPs[i].clean(len(r.Interfaces)); err != nil {
			return nil, err
		}
	}
	for i := range r.Routes {
		if err := r.Routes[i].Clean(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// clean brings an address from outside into the one form that is used inside.
// netip takes an empty text for a zero prefix and keeps IPv4-mapped IPv6 as such.
// Where there are no interfaces (an IPAM plugin's answer) an index means nothing.
func (ip *IP) clean(interfaces int) error {
	ip.Address, ip.Gateway = unmap(ip.Address), ip.Gateway.Unmap()
	switch {
	case !ip.Address.IsValid():
		return errors.New("an IP without an address")
	case ip.Address.Addr().Is4In6():
		return fmt.Errorf("IP %s is IPv4 in IPv6 with the prefix length of neither", ip.Address)
	case ip.Gateway.Zone() != "":
		return fmt.Errorf("IP %s has a gateway with a zone: %s", ip.Address, ip.Gateway)
	case interfaces == 0:
		ip.Interface = NoInterface
	case ip.Interface < NoInterface || ip.Interface >= interfaces:
		return fmt.Errorf("IP %s names interface %d of %d", ip.Address, ip.Interface, interfaces)
	}
	return nil
}

// Clean checks a route from outside and brings it into the one form that is used
// inside: destination masked, no IPv4-mapped IPv6, gateway of the same family.
func (r *Route) Clean() error {
	if r.Dst = unmap(r.Dst).Masked(); !r.Dst.IsValid() {
		return errors.New("a route without a destination (dst)")
	}
	if r.GW.Zone() != "" {
		return fmt.Errorf("route %s has a gateway with a zone: %s", r.Dst, r.GW)
	}
	if r.GW = r.GW.Unmap(); r.GW.IsValid() && r.GW.Is4() != r.Dst.Addr().Is4() {
		return fmt.Errorf("route %s has a gateway of the other family: %s", r.Dst, r.GW)
	}
	for key, n := range map[string]int{"mtu": r.MTU, "advmss": r.AdvMSS, "priority": r.Priority, "table": r.Table} {
		if n < 0 || int64(n) > 1<<32-1 {
			return fmt.Errorf("route %s: %s %d is out of range", r.Dst, key, n)
		}
	}
	if r.Scope < 0 || r.Scope > 255 {
		return fmt.Errorf("route %s: scope %d is not between 0 and 255", r.Dst, r.Scope)
	}
	return nil
}

// unmap turns an IPv4-mapped IPv6 prefix into the IPv4 one.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// plain drops what a route of before 1.1.0 cannot say.
func plain(routes []Route, attributes bool) []Route {
	if attributes {
		return routes
	}
	out := make([]Route, 0, len(routes))
	for _, r := range routes {
		out = append(out, Route{Dst: r.Dst, GW: r.GW})
	}
	return out
}

// FirstMAC reads the first text that is not empty: callers list the places where a
// MAC can be asked for, the strongest first. All empty: the zero MAC. An address
// that no interface can have (multicast, all zero) is an error.
func FirstMAC(texts ...string) (MAC, error) {
	for _, text := range texts {
		if text == "" {
			continue
		}
		mac, err := ParseMAC(text)
		switch {
		case err != nil:
			return "", err
		case len(mac) != 6, mac[0]&1 != 0, mac == MAC(make([]byte, 6)):
			return "", fmt.Errorf("invalid MAC address %q: an interface needs a unicast address of 6 bytes", text)
		}
		return mac, nil
	}
	return "", nil
}
