package main

import (
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// routesFor returns the routes that ADD adds to the table of an IP, which are the base routes that belong there, and
// the missing routes. The missing routes follow the base routes that make their gateway reachable. They precede all
// other base routes, because the kernel prefers the first of two IPv4 routes with the same metric.
func (t *target) routesFor(ip types.IP, table int) []nl.FullRoute {
	var routes []nl.FullRoute
	for _, r := range t.routesIn(t.baseTable) {
		if !t.belongs(r, ip) {
			continue
		}
		if t.baseTable != nl.MainTable {
			// An address of a VRF can be the preferred source of routes in the table of the VRF, but not
			// of routes in other tables (fib_valid_prefsrc in net/ipv4/fib_semantics.c).
			r = r.WithoutSource()
		}
		routes = append(routes, r.WithTable(table))
	}
	missingRoutes := t.missingRoutes(ip, table, slices.Concat(t.routesIn(table), routes))
	i := slices.IndexFunc(routes, func(r nl.FullRoute) bool { return r.GW.IsValid() || r.Dst == defaultOf(ip) })
	if i < 0 {
		return append(routes, missingRoutes...)
	}
	return slices.Insert(routes, i, missingRoutes...)
}

// belongs reports whether the table of an IP gets a base route. The route must be of the same family as the
// IP. Its preferred source and its gateway must not be addresses that are only in the subnet of another IP.
// The table gets no routes for link-local and multicast addresses, because these addresses are the same on
// all interfaces. It gets no routes from router advertisements, because the kernel would add them to the main
// table again, and no routes that an earlier ADD created.
func (t *target) belongs(r nl.FullRoute, ip types.IP) bool {
	dst := r.Dst.Addr()
	return dst.Is4() == ip.Address.Addr().Is4() && !r.Advertised && !isMarked(r.Protocol) &&
		!dst.IsLinkLocalUnicast() && !dst.IsMulticast() && !t.isInOtherSubnet(r.Src, ip) && !t.isInOtherSubnet(r.GW, ip)
}

// isInOtherSubnet reports whether an address is in the subnet of another IP, and not in the subnet of ip.
func (t *target) isInOtherSubnet(a netip.Addr, ip types.IP) bool {
	return a.IsValid() && !ip.Address.Contains(a) &&
		slices.ContainsFunc(t.ips, func(other types.IP) bool { return other.Address.Contains(a) })
}

// movedRoutes returns the base routes that belong to the table of at least one IP.
func (t *target) movedRoutes() []nl.FullRoute {
	return slices.DeleteFunc(t.routesIn(t.baseTable), func(r nl.FullRoute) bool {
		return !slices.ContainsFunc(t.ips, func(ip types.IP) bool { return t.belongs(r, ip) })
	})
}

// missingRoutes returns the routes that the table of an IP must contain, and that are not in existing. These are a
// route to the IP's subnet, unless the address was added with noprefixroute, and a default route. If a gateway is
// configured, the default route must use it.
func (t *target) missingRoutes(ip types.IP, table int, existing []nl.FullRoute) []nl.FullRoute {
	var missingRoutes []nl.FullRoute
	hasPrefixRoute := slices.ContainsFunc(t.addrs, func(a nl.Addr) bool { return a.Prefix == ip.Address && !a.NoPrefixRoute })
	toSubnet := func(r nl.FullRoute) bool { return r.Dst == ip.Address.Masked() && !r.GW.IsValid() }
	if hasPrefixRoute && !ip.Address.IsSingleIP() && !slices.ContainsFunc(existing, toSubnet) {
		missingRoutes = append(missingRoutes, nl.NewFullRoute(t.link, nl.Route{Dst: ip.Address.Masked(), Table: table}, protocolSBR))
	}
	defaults := slices.DeleteFunc(slices.Clone(existing), func(r nl.FullRoute) bool { return r.Dst != defaultOf(ip) })
	gateway := t.firstUsable(ip, t.conf.gateways)
	if !gateway.IsValid() && len(defaults) == 0 {
		gateway = t.firstUsable(ip, t.knownGateways(ip))
	}
	if !gateway.IsValid() || len(defaults) > 0 && bestRoute(defaults).GW == gateway {
		return missingRoutes
	}
	route := nl.Route{Dst: defaultOf(ip), GW: gateway, Table: table}
	if len(defaults) > 0 && gateway.Is6() {
		route.Priority = 1 // with the same metric, the kernel would use both routes (multipath)
	}
	return append(missingRoutes, nl.NewFullRoute(t.link, route, protocolSBR))
}

// firstUsable returns the first gateway that an IP can use, or the zero Addr.
func (t *target) firstUsable(ip types.IP, gateways []netip.Addr) netip.Addr {
	for _, a := range gateways {
		if a.IsValid() && !a.IsUnspecified() && a.Is4() == ip.Address.Addr().Is4() && !t.isInOtherSubnet(a, ip) {
			return a
		}
	}
	return netip.Addr{}
}

// knownGateways returns the gateways for an IP from other sources than the configuration. These are the IP's
// gateway in prevResult, the gateways of default routes in prevResult, and the gateways from router
// advertisements.
func (t *target) knownGateways(ip types.IP) []netip.Addr {
	gateways := []netip.Addr{ip.Gateway}
	for _, r := range t.prev.Routes {
		if r.Dst == defaultOf(ip) && r.Table == 0 {
			gateways = append(gateways, r.GW)
		}
	}
	for _, r := range t.routesIn(t.baseTable) {
		if r.Dst == defaultOf(ip) && r.Advertised {
			gateways = append(gateways, r.GW)
		}
	}
	return gateways
}

// bestRoute returns the route that the kernel prefers among routes for the same destination, which is the first
// route with the lowest metric.
func bestRoute(routes []nl.FullRoute) nl.FullRoute {
	return slices.MinFunc(routes, func(a, b nl.FullRoute) int { return a.Priority - b.Priority })
}

// defaultOf returns the destination of default routes in the family of an IP.
func defaultOf(ip types.IP) netip.Prefix { return netip.PrefixFrom(ip.Address.Addr(), 0).Masked() }

// newRecord returns the record of the table of an address. See protocolTable.
func (t *target) newRecord(a netip.Addr, table int) nl.FullRoute {
	return nl.NewFullRoute(t.link, nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Table: table}, protocolTable)
}
