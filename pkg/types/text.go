package types

import (
	"fmt"
	"net/netip"
)

// ParseAddr reads an address that a person wrote, into the one form that is used
// inside: no zone, and IPv4 as such where it is written as IPv6.
func ParseAddr(s string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(s)
	if err != nil || ip.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("invalid IP address: %q", s)
	}
	return ip.Unmap(), nil
}

// ParseCIDR reads an address with its prefix length, in the same way. The part of
// the host is kept.
func ParseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || unmap(p).Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("invalid CIDR address: %q", s)
	}
	return unmap(p), nil
}

// RouteText is a Route as a person wrote it. Its addresses are text, so that all
// that is wrong with a configuration can be said at once.
type RouteText struct {
	Dst      string `json:"dst"`
	GW       string `json:"gw"`
	MTU      int    `json:"mtu"`
	AdvMSS   int    `json:"advmss"`
	Priority int    `json:"priority"`
	Table    int    `json:"table"`
	Scope    int    `json:"scope"`
}

// Route reads the text.
func (t RouteText) Route() (Route, error) {
	r := Route{MTU: t.MTU, AdvMSS: t.AdvMSS, Priority: t.Priority, Table: t.Table, Scope: t.Scope}
	var err error
	if r.Dst, err = ParseCIDR(t.Dst); err != nil {
		return Route{}, fmt.Errorf("dst: %w", err)
	}
	if t.GW != "" {
		if r.GW, err = ParseAddr(t.GW); err != nil {
			return Route{}, fmt.Errorf("gw: %w", err)
		}
	}
	return r, r.Clean()
}
