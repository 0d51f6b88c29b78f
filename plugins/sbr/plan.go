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
	// baseRoutes are the routes of the interface in the table that has them without sbr (see
	// target.baseTable).
	baseRoutes []nl.FullRoute
}

// belongs reports whether the table of an IP gets a route. The route must be of the same family as the
// IP. Its preferred source and its gateway must not be addresses that are only in the subnet of
// another IP. Some routes stay where they are: those for link-local and multicast addresses, because
// these addresses are the same on all interfaces; those from router advertisements, because the kernel
// would add them again; and those that an earlier ADD made.
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

// moved returns the base routes that belong to the table of at least one IP.
func (p *plan) moved() []nl.FullRoute {
	var routes []nl.FullRoute
	for _, r := range p.baseRoutes {
		if slices.ContainsFunc(p.ips, func(ip types.IP) bool { return p.belongs(r, ip) }) {
			routes = append(routes, r)
		}
	}
	return routes
}

// routesFor returns the routes that the table of an IP needs besides those that it has (present). The
// routes that gateways need come before the routes through these gateways.
func (p *plan) routesFor(l nl.Link, ip types.IP, number int, present []nl.FullRoute) []nl.FullRoute {
	var routes, throughGateway []nl.FullRoute
	defaults := slices.DeleteFunc(slices.Clone(present), func(r nl.FullRoute) bool { return !isDefault(r.Route, ip) })
	found := len(defaults)
	for _, r := range p.baseRoutes {
		belongs := p.belongs(r, ip)
		if r.Table != mainTable {
			// An address of a VRF can be the preferred source of routes in the table of the VRF, but not
			// of routes in other tables (fib_valid_prefsrc in net/ipv4/fib_semantics.c).
			r = r.WithoutSource()
		}
		r = r.In(number)
		switch {
		case !belongs, slices.ContainsFunc(present, func(has nl.FullRoute) bool { return has.Same(r.Route) && has.Src == r.Src }):
		case isDefault(r.Route, ip):
			defaults = append(defaults, r)
		case r.GW.IsValid():
			throughGateway = append(throughGateway, r)
		default:
			routes = append(routes, r)
		}
	}
	if own, needed := p.ownDefault(ip, defaults); needed {
		own.Table = number
		routes = append(routes, nl.NewFullRoute(l, own, protocolOurs))
	}
	return slices.Concat(routes, defaults[found:], throughGateway)
}

// ownDefault returns the default route that the plugin has to make, and whether it has to make one. That
// is so if the table of the IP has no default route, or if the best default route there does not lead
// through the configured gateway. The kernel prefers the returned route to the present ones.
func (p *plan) ownDefault(ip types.IP, defaults []nl.FullRoute) (nl.Route, bool) {
	gateway := p.configuredGateway(ip)
	switch {
	case gateway.IsValid() && len(defaults) > 0 && best(defaults).GW == gateway:
		return nl.Route{}, false
	case gateway.IsValid():
	case len(defaults) > 0:
		return nl.Route{}, false
	default:
		gateway = p.defaultGateway(ip)
	}
	own := nl.Route{Dst: defaultOf(ip), GW: gateway}
	if len(defaults) > 0 && gateway.Is6() {
		own.Priority = 1 // with the same metric the two would share the load
	}
	return own, gateway.IsValid()
}

// configuredGateway returns the gateway of the key "gateways" for an IP, or the zero Addr.
func (p *plan) configuredGateway(ip types.IP) netip.Addr {
	gateway := firstOf(p.conf.gateways, ip.Address.Addr())
	if p.isOfOther(gateway, ip) {
		return netip.Addr{}
	}
	return gateway
}

// defaultGateway returns the gateway to use for an IP if the configuration names none and the table of
// the IP has no default route: the first of the gateway of the IP in prevResult, the gateway of a
// default route of prevResult, and the gateway of a router advertisement. It returns the zero Addr if
// there is none of these.
func (p *plan) defaultGateway(ip types.IP) netip.Addr {
	if ip.Gateway.IsValid() && !ip.Gateway.IsUnspecified() {
		return ip.Gateway
	}
	for _, r := range p.prev {
		if r.Dst == defaultOf(ip) && r.Table == 0 && r.GW.IsValid() && !r.GW.IsUnspecified() && !p.isOfOther(r.GW, ip) {
			return r.GW
		}
	}
	for _, r := range p.baseRoutes {
		if isDefault(r.Route, ip) && r.Advertised {
			return r.GW
		}
	}
	return netip.Addr{}
}

// best returns the route that the kernel uses if there are several routes for the same destination: the
// first one with the lowest metric.
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
