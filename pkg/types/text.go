package types

import (
	"errors"
	"fmt"
	"net/netip"
)

// ParseAddr parses an address without a zone. It returns an IPv4-mapped IPv6 address as IPv4.
func ParseAddr(s string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(s)
	if err != nil || ip.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("invalid IP address: %q", s)
	}
	return ip.Unmap(), nil
}

// ParseCIDR parses an address with its prefix length. It keeps the host bits, and returns an IPv4-mapped IPv6 prefix as IPv4.
func ParseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || unmap(p).Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("invalid CIDR address: %q", s)
	}
	return unmap(p), nil
}

// A RouteText is a Route of a configuration, with the addresses as text, so that the plugin can report an invalid address
// together with the other problems of the configuration. MTU and AdvMSS are in bytes.
type RouteText struct {
	Dst      string   `json:"dst"`
	GW       string   `json:"gw"`
	GWs      []string `json:"gws"`
	MTU      int      `json:"mtu"`
	AdvMSS   int      `json:"advmss"`
	Priority int      `json:"priority"`
	Table    int      `json:"table"`
	Scope    int      `json:"scope"`
}

// ParseRoutes converts the routes of a key. An invalid route is empty. The error names all problems.
func ParseRoutes(key string, texts []RouteText) (routes []Route, err error) {
	for i, text := range texts {
		route, routeErr := text.Route()
		if routeErr != nil {
			err = errors.Join(err, fmt.Errorf("%s[%d].%w", key, i, routeErr))
		}
		routes = append(routes, route)
	}
	return routes, err
}

// Route converts t to a Route and normalizes it. The error begins with the key that is wrong.
func (t RouteText) Route() (Route, error) {
	r := Route{MTU: t.MTU, AdvMSS: t.AdvMSS, Priority: t.Priority, Table: t.Table, Scope: t.Scope}
	var err error
	if r.Dst, err = ParseCIDR(t.Dst); err != nil {
		return Route{}, fmt.Errorf("dst: %w; want a prefix, which is 0.0.0.0/0 or ::/0 for a default route", err)
	}
	if t.GW != "" {
		if r.GW, err = ParseAddr(t.GW); err != nil {
			return Route{}, fmt.Errorf("gw: %w", err)
		}
	}
	for i, text := range t.GWs {
		gw, err := ParseAddr(text)
		if err != nil {
			return Route{}, fmt.Errorf("gws[%d]: %w", i, err)
		}
		r.GWs = append(r.GWs, gw)
	}
	return r, r.Normalize()
}
