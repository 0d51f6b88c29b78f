package nl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Route is a unicast route through one link.
type Route struct {
	Dst      netip.Prefix
	GW       netip.Addr // gateway, or zero if the destination is on the link
	Src      netip.Addr // preferred source address; if it is zero, the kernel chooses the source
	Priority int        // metric; zero means the kernel's default (IPv4 0, IPv6 1024)
	Table    int        // number of the routing table; zero means the main table
	Scope    int        // scope of an IPv4 route, for example ScopeGlobal
	MTU      int        // MTU in bytes, or zero if the route does not limit it
	AdvMSS   int        // advertised MSS in bytes, or zero if the route does not set it
	OnLink   bool       // the gateways are on the link, even if there is no route to them (RTNH_F_ONLINK)
	protocol int        // origin of the route for AddRoute; zero means RTPROT_BOOT
	// GWs contains the gateways of a multipath route through the link, of which GW is the first. It is nil if there are not
	// at least two.
	GWs []netip.Addr
}

// PrefixRoute returns the route that the kernel adds for an address (fib_add_ifaddr, addrconf_prefix_route). The kernel
// deletes the route with the address.
func PrefixRoute(address netip.Prefix) Route {
	r := Route{Dst: address.Masked(), protocol: unix.RTPROT_KERNEL}
	if address.Addr().Is6() {
		r.Priority = 256 // IP6_RT_PRIO_ADDRCONF
		return r
	}
	r.Src, r.Scope = address.Addr(), ScopeLink
	return r
}

// The scopes of a route, with rtnetlink's numbers.
const (
	ScopeGlobal = unix.RT_SCOPE_UNIVERSE
	ScopeLink   = unix.RT_SCOPE_LINK
	ScopeHost   = unix.RT_SCOPE_HOST
)

func (r Route) String() string {
	s := r.Dst.String()
	for _, gw := range r.Gateways() {
		s += " via " + gw.String()
	}
	if r.table() != MainTable {
		s += fmt.Sprintf(" table %d", r.Table)
	}
	if r.Priority != 0 {
		s += fmt.Sprintf(" metric %d", r.Priority)
	}
	if r.MTU != 0 {
		s += fmt.Sprintf(" mtu %d", r.MTU)
	}
	if r.AdvMSS != 0 {
		s += fmt.Sprintf(" advmss %d", r.AdvMSS)
	}
	return s
}

// Gateways returns the gateways of the route, which are none, GW, or GWs.
func (r Route) Gateways() []netip.Addr {
	if len(r.GWs) > 0 || !r.GW.IsValid() {
		return r.GWs
	}
	return []netip.Addr{r.GW}
}

// Same reports whether r and o have the same destination, gateways, table and metric. The kernel refuses to add two such
// routes.
func (r Route) Same(o Route) bool {
	return r.Dst == o.Dst && slices.Equal(r.Gateways(), o.Gateways()) && r.table() == o.table() && r.metric() == o.metric()
}

// Matches reports whether got is the wanted route r. Matches does not compare the table, the metric, the MTU, the AdvMSS
// or the further gateways if r does not contain them, because runtimes and results before version 1.1.0 drop these.
func (r Route) Matches(got Route) bool {
	gws := got.Gateways()
	return r.Dst == got.Dst && r.GW.IsValid() == got.GW.IsValid() &&
		!slices.ContainsFunc(r.Gateways(), func(gw netip.Addr) bool { return !slices.Contains(gws, gw) }) &&
		(r.Table == 0 || r.table() == got.table()) &&
		(r.Priority == 0 || r.Priority == got.Priority) &&
		(r.MTU == 0 || r.MTU == got.MTU) && (r.AdvMSS == 0 || r.AdvMSS == got.AdvMSS)
}

func (r Route) table() int { return cmp.Or(r.Table, MainTable) }

// metric returns the metric that the kernel uses. The default metric for IPv6 is IP6_RT_PRIO_USER.
func (r Route) metric() int {
	if r.Priority == 0 && r.Dst.Addr().Is6() {
		return 1024
	}
	return r.Priority
}

// MainTable is the number of the routing table "main".
const MainTable = unix.RT_TABLE_MAIN

// TableOf returns the table to which the kernel adds the routes of a link's addresses, which is the table of its VRF or
// the main table.
func (c *Conn) TableOf(l Link) (int, error) {
	if l.Master == 0 {
		return MainTable, nil
	}
	master, err := c.LinkByIndex(l.Master)
	if err != nil || master.Kind != "vrf" {
		return MainTable, err
	}
	return master.VRFTable, nil
}

// AddRoute adds a route through the link. If the same route exists (Route.Same), the error matches fs.ErrExist. A route
// with the same destination and metric through another gateway may exist. As with the reference plugins, a new IPv4
// route has precedence over such a route, and a new IPv6 route shares the load with it.
func (c *Conn) AddRoute(l Link, r Route) error {
	return c.step(fmt.Sprintf("add route %s to %s", r, l.Name), func() error {
		return c.lib.RouteAddEcmp(newLibRoute(l, r)) // RouteAdd would also send NLM_F_EXCL
	})
}

// AddOnlyRoute adds a route like AddRoute, but if any route with the same destination, table and metric exists, the error
// matches fs.ErrExist.
func (c *Conn) AddOnlyRoute(l Link, r Route) error {
	return c.step(fmt.Sprintf("add only route %s to %s", r, l.Name), func() error { return c.lib.RouteAdd(newLibRoute(l, r)) })
}

// IsInvalidRoute reports whether the kernel refused a route because there is no route to its gateway, or because its
// preferred source is not a local address.
func IsInvalidRoute(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL)
}

func newLibRoute(l Link, r Route) *netlink.Route {
	route := &netlink.Route{
		LinkIndex: l.Index, Dst: ipNet(r.Dst.Masked()), Gw: r.GW.AsSlice(), Src: r.Src.AsSlice(),
		Priority: r.Priority, Table: r.table(), Scope: netlink.Scope(r.Scope), MTU: r.MTU, AdvMSS: r.AdvMSS,
		Protocol: netlink.RouteProtocol(r.protocol),
	}
	if r.OnLink {
		route.Flags = int(netlink.FLAG_ONLINK)
	}
	for _, gw := range r.GWs {
		route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{LinkIndex: l.Index, Gw: gw.AsSlice(), Flags: route.Flags})
	}
	if route.MultiPath != nil {
		route.LinkIndex, route.Gw, route.Flags = 0, nil, 0
	}
	return route
}

// Routes returns the unicast routes through a link in all tables except the local table, IPv4 first. A multipath route
// lacks its gateways on other links. The kernel also makes a multipath route of two IPv6 routes that differ in the gateway
// only.
func (c *Conn) Routes(l Link) ([]Route, error) {
	list, err := c.unicastRoutes(l)
	var routes []Route
	for _, found := range list {
		hops := nextHops(found)
		if i := slices.IndexFunc(hops, func(hop *netlink.NexthopInfo) bool { return hop.LinkIndex == l.Index }); i >= 0 {
			routes = append(routes, newRoute(found, hops[i]))
		}
	}
	return routes, err
}

// unicastRoutes returns the unicast routes for Routes, undecoded. The kernel filters by the link. With RT_FILTER_OIF,
// package netlink would filter as well, and drop routes with several next hops.
func (c *Conn) unicastRoutes(l Link) ([]netlink.Route, error) {
	var all []netlink.Route
	for _, family := range families {
		list, err := c.routes("list routes of "+l.Name, family, &netlink.Route{LinkIndex: l.Index})
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return slices.DeleteFunc(all, func(r netlink.Route) bool { return r.Table == unix.RT_TABLE_LOCAL || r.Type != unix.RTN_UNICAST }), nil
}

// routes returns the routes of a family with the LinkIndex, Table and Protocol of filter, if these are not zero.
func (c *Conn) routes(step string, family int, filter *netlink.Route) ([]netlink.Route, error) {
	mask := uint64(netlink.RT_FILTER_TABLE) // all tables if the table of filter is zero
	if filter.Protocol != 0 {
		mask |= netlink.RT_FILTER_PROTOCOL
	}
	return query(c, step, func() (list []netlink.Route, err error) {
		list, err = c.lib.RouteListFiltered(family, filter, mask)
		if errors.Is(err, unix.ENOENT) { // the table does not exist
			return nil, nil
		}
		return list, err
	})
}

// nextHops returns the next hops of a route. There are several if routes to one destination share the load.
func nextHops(r netlink.Route) []*netlink.NexthopInfo {
	if len(r.MultiPath) > 0 {
		return r.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw}}
}

// newRoute converts a netlink.Route and its next hops on the link of hop, the first of them.
func newRoute(r netlink.Route, hop *netlink.NexthopInfo) Route {
	route := Route{
		Dst: prefix(r.Dst), GW: ipAddr(hop.Gw), Src: ipAddr(r.Src), Priority: r.Priority, Table: r.Table,
		Scope: int(r.Scope), MTU: r.MTU, AdvMSS: r.AdvMSS, OnLink: r.Flags&int(netlink.FLAG_ONLINK) != 0,
	}
	for _, other := range r.MultiPath {
		if gw := ipAddr(other.Gw); gw.IsValid() && other.LinkIndex == hop.LinkIndex {
			route.GWs = append(route.GWs, gw)
		}
	}
	if len(route.GWs) == 1 {
		route.GWs = nil
	}
	return route
}

// DefaultDevice returns the link index of the first default route in the main table, IPv4 before IPv6, or zero
// if there is none.
func (c *Conn) DefaultDevice() (int, error) {
	for _, probe := range []netip.Addr{unrouted4, unrouted6} {
		_, main, err := c.defaultRoutes(probe)
		if index := nextHops(main)[0].LinkIndex; index != 0 || err != nil {
			return index, err
		}
	}
	return 0, nil
}

// defaultRoutes returns the route to an address that usually only default routes match, and the first default route of
// the main table. Each is the zero Route if there is none. On most hosts both are the same route, for which
// defaultRoutes sends one request.
func (c *Conn) defaultRoutes(probe netip.Addr) (selected, main netlink.Route, err error) {
	selected, err = c.selectedRoute(probe)
	if err != nil || isMainDefault(selected) {
		return selected, selected, err
	}
	main, err = c.mainDefaultRoute(familyOf(probe))
	return selected, main, err
}

// The addresses are in reserved blocks (RFC 1112, section 4; RFC 4291, section 2.4, and IANA's registry), so that
// usually only a host's default route matches them.
var (
	unrouted4 = netip.MustParseAddr("240.0.0.1")
	unrouted6 = netip.MustParseAddr("4000::")
)

// selectedRoute asks the kernel for the route to an address (RTM_F_FIB_MATCH, Linux 4.13), and returns the zero Route
// if there is none. Policy rules or a VPN may select a route that is not the default route of the main table. Listing
// all routes would take 70 ms on a host with 100,000 routes.
func (c *Conn) selectedRoute(probe netip.Addr) (netlink.Route, error) {
	route, err := c.lookup(probe, &netlink.RouteGetOptions{FIBMatch: true})
	if errors.Is(err, fs.ErrNotExist) || isRefusal(err) { // no route, or a route of type prohibit
		return netlink.Route{}, nil
	}
	return route, err
}

// mainDefaultRoute lists the routes of the main table and returns the first default route, or the zero Route if there
// is none.
func (c *Conn) mainDefaultRoute(family int) (netlink.Route, error) {
	list, err := c.routes("list default routes", family, &netlink.Route{Table: unix.RT_TABLE_MAIN})
	for _, r := range list {
		if isMainDefault(r) {
			return r, err
		}
	}
	return netlink.Route{}, err
}

// isMainDefault reports whether the route is a default route of the main table through a link.
func isMainDefault(r netlink.Route) bool {
	return prefix(r.Dst).Bits() == 0 && r.Table == unix.RT_TABLE_MAIN && nextHops(r)[0].LinkIndex != 0
}

// AdvertisedUplinks returns the links with an IPv6 default route from a router advertisement. The kernel filters the
// routes by protocol.
func (c *Conn) AdvertisedUplinks() ([]Link, error) {
	list, err := c.routes("list advertised default routes", unix.AF_INET6, &netlink.Route{Protocol: unix.RTPROT_RA})
	if err != nil {
		return nil, err
	}
	var links []Link
	for _, r := range list {
		if prefix(r.Dst).Bits() != 0 {
			continue
		}
		l, err := c.LinkByIndex(nextHops(r)[0].LinkIndex)
		if err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	return links, nil
}

// LinkTo returns the link through which the namespace sends packets to the address. If there is no route, the error
// matches fs.ErrNotExist. If there is a route that refuses packets, it is a *RefusingRoute.
func (c *Conn) LinkTo(a netip.Addr) (Link, error) {
	l, _, err := c.RouteTo(a)
	return l, err
}

// RouteTo is LinkTo, and also returns the gateway of the route, or the zero Addr if the address is a neighbor. An
// address of the namespace itself, as in Cilium's routes, is not a gateway.
func (c *Conn) RouteTo(a netip.Addr) (l Link, gateway netip.Addr, err error) {
	route, err := c.lookup(a, nil)
	if err != nil {
		return Link{}, netip.Addr{}, c.explainRefusal(a, err)
	}
	gateway, _ = netip.AddrFromSlice(route.Gw)
	l, err = c.LinkByIndex(route.LinkIndex)
	return l, gateway.Unmap(), err
}

// hasLocalRoute reports whether the route to an address of the link is local, which means that the kernel delivers
// packets for the address to the namespace.
func (c *Conn) hasLocalRoute(l Link, a netip.Addr) (bool, error) {
	route, err := c.lookup(a, &netlink.RouteGetOptions{OifIndex: l.Index})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EHOSTUNREACH) { // no route, or a route of type unreachable
		return false, nil
	}
	return route.Type == unix.RTN_LOCAL, err
}

// lookup returns the route to the address. If there is none, the error matches fs.ErrNotExist.
func (c *Conn) lookup(a netip.Addr, options *netlink.RouteGetOptions) (netlink.Route, error) {
	return query(c, "find route to "+a.String(), func() (netlink.Route, error) {
		// Package netlink sets RTM_F_LOOKUP_TABLE, which the kernel rejects for IPv6 under strict checks
		// (inet6_rtm_valid_getroute_req).
		_ = c.lib.SetStrictCheck(false)
		defer func() { _ = c.lib.SetStrictCheck(true) }()
		routes, err := c.lib.RouteGetWithOptions(a.AsSlice(), options)
		if errors.Is(err, unix.ENETUNREACH) || err == nil && len(routes) == 0 {
			return netlink.Route{}, fs.ErrNotExist
		}
		if err != nil {
			return netlink.Route{}, err
		}
		return routes[0], nil
	})
}
