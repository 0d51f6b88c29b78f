package main

import (
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A plan says which routes the table of each IP gets.
type plan struct {
	conf *config
	ips  []types.IP
	prev []types.Route // of prevResult
	home []nl.FullRoute
}

// belongs reports whether the table of an IP gets a route: it is of the same family, and neither its
// preferred source nor its gateway is in the subnet of another IP only. Routes for link-local and
// multicast addresses stay where they are, as these addresses are the same on all interfaces. So do
// routes that the kernel maintains because of router advertisements, because it would add them again,
// and those that an earlier ADD made.
func (p *plan) belongs(r nl.FullRoute, ip types.IP) bool {
	dst := r.Dst.Addr()
	return dst.Is4() == ip.Address.Addr().Is4() && !r.Advertised && r.Protocol != protocolOurs &&
		!dst.IsLinkLocalUnicast() && !dst.IsMulticast() && !p.isOfOther(r.Src, ip) && !p.isOfOther(r.GW, ip)
}

// isOfOther reports whether an address is in the subnet of another IP, and not in that of ip.
func (p *plan) isOfOther(a netip.Addr, ip types.IP) bool {
	return a.IsValid() && !ip.Address.Contains(a) &&
		slices.ContainsFunc(p.ips, func(other types.IP) bool { return other.Address.Contains(a) })
}

// moved returns the routes of the home table that belong to a table of any IP.
func (p *plan) moved() []nl.FullRoute {
	var routes []nl.FullRoute
	for _, r := range p.home {
		if slices.ContainsFunc(p.ips, func(ip types.IP) bool { return p.belongs(r, ip) }) {
			routes = append(routes, r)
		}
	}
	return routes
}

// table returns the routes that the table of an IP needs besides those that it has (present), in the
// order in which they can be added.
func (p *plan) table(l nl.Link, ip types.IP, number int, present []nl.FullRoute) []nl.FullRoute {
	var routes, behind []nl.FullRoute
	defaults := slices.DeleteFunc(slices.Clone(present), func(r nl.FullRoute) bool { return !isDefault(r.Route, ip) })
	found := len(defaults)
	for _, r := range p.home {
		belongs := p.belongs(r, ip)
		if r.Table != mainTable {
			// In the table of a VRF the kernel accepts preferred sources that are addresses of the VRF, and
			// in others it does not (fib_valid_prefsrc in net/ipv4/fib_semantics.c).
			r = r.WithoutSource()
		}
		r = r.In(number)
		switch {
		case !belongs, slices.ContainsFunc(present, func(has nl.FullRoute) bool { return has.Same(r.Route) && has.Src == r.Src }):
		case isDefault(r.Route, ip):
			defaults = append(defaults, r)
		case r.GW.IsValid():
			behind = append(behind, r)
		default:
			routes = append(routes, r)
		}
	}
	if own, needed := p.ownDefault(ip, defaults); needed {
		own.Table = number
		routes = append(routes, nl.NewFullRoute(l, own, protocolOurs))
	}
	return slices.Concat(routes, defaults[found:], behind)
}

// ownDefault returns the default route that the plugin has to make, because the table of the IP has
// none, or only some through other gateways than the configured one. The kernel prefers it to those.
func (p *plan) ownDefault(ip types.IP, defaults []nl.FullRoute) (nl.Route, bool) {
	gateway := p.configured(ip)
	switch {
	case gateway.IsValid() && len(defaults) > 0 && best(defaults).GW == gateway:
		return nl.Route{}, false
	case gateway.IsValid():
	case len(defaults) > 0:
		return nl.Route{}, false
	default:
		gateway = p.gateway(ip)
	}
	own := nl.Route{Dst: defaultOf(ip), GW: gateway}
	if len(defaults) > 0 && gateway.Is6() {
		own.Priority = 1 // with the same metric the two would share the load
	}
	return own, gateway.IsValid()
}

// configured returns the gateway of the key "gateways" for an IP, or the zero Addr.
func (p *plan) configured(ip types.IP) netip.Addr {
	gateway := firstOf(p.conf.gateways, ip.Address.Addr())
	if p.isOfOther(gateway, ip) {
		return netip.Addr{}
	}
	return gateway
}

// gateway returns the gateway of an IP for which neither the configuration nor the home table names
// one: its own, or that of a default route of prevResult or of a router advertisement.
func (p *plan) gateway(ip types.IP) netip.Addr {
	if ip.Gateway.IsValid() && !ip.Gateway.IsUnspecified() {
		return ip.Gateway
	}
	for _, r := range p.prev {
		if r.Dst == defaultOf(ip) && r.Table == 0 && r.GW.IsValid() && !r.GW.IsUnspecified() && !p.isOfOther(r.GW, ip) {
			return r.GW
		}
	}
	for _, r := range p.home {
		if isDefault(r.Route, ip) && r.Advertised {
			return r.GW
		}
	}
	return netip.Addr{}
}

// best returns the route that the kernel uses of several for the same destination: the first of those
// with the lowest metric.
func best(routes []nl.FullRoute) nl.FullRoute {
	return slices.MinFunc(routes, func(a, b nl.FullRoute) int { return a.Priority - b.Priority })
}

// isDefault reports whether a route is a default route of the family of an IP.
func isDefault(r nl.Route, ip types.IP) bool { return r.Dst == defaultOf(ip) }

// defaultOf returns the destination of default routes of the family of an IP.
func defaultOf(ip types.IP) netip.Prefix {
	if ip.Address.Addr().Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
