package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Route is a unicast route through one link. MTU and AdvMSS in bytes.
type Route struct {
	Dst      netip.Prefix
	GW       netip.Addr // zero: on the link
	Src      netip.Addr // preferred source; zero: the kernel's choice
	Priority int        // metric; zero: the kernel's default (IPv4 0, IPv6 1024)
	Table    int        // zero: main
	Scope    int        // rtnetlink's number; IPv4 only
	MTU      int
	AdvMSS   int
	// OnLink: the gateway is taken to be on the link whatever the routes say.
	OnLink bool
}

// Scopes of rtnetlink.
const (
	ScopeGlobal = unix.RT_SCOPE_UNIVERSE
	ScopeLink   = unix.RT_SCOPE_LINK
	ScopeHost   = unix.RT_SCOPE_HOST
)

func (r Route) String() string {
	s := r.Dst.String()
	if r.GW.IsValid() {
		s += " via " + r.GW.String()
	}
	if r.Table != 0 && r.Table != unix.RT_TABLE_MAIN {
		s += fmt.Sprintf(" table %d", r.Table)
	}
	if r.Priority != 0 {
		s += fmt.Sprintf(" metric %d", r.Priority)
	}
	return s
}

// Same reports whether the kernel would take the two for one route.
func (r Route) Same(o Route) bool {
	return r.Dst == o.Dst && r.GW == o.GW && r.table() == o.table() && r.metric() == o.metric()
}

// Matches reports whether have is the wanted route r. What r does not say (table,
// metric, MTU, AdvMSS) is not compared: a result of before 1.1.0 cannot say it.
func (r Route) Matches(have Route) bool {
	return r.Dst == have.Dst && r.GW == have.GW &&
		(r.Table == 0 || r.table() == have.table()) &&
		(r.Priority == 0 || r.Priority == have.Priority) &&
		(r.MTU == 0 || r.MTU == have.MTU) && (r.AdvMSS == 0 || r.AdvMSS == have.AdvMSS)
}

func (r Route) table() int {
	if r.Table == 0 {
		return unix.RT_TABLE_MAIN
	}
	return r.Table
}

// metric is what the kernel makes of an unsaid one (IP6_RT_PRIO_USER).
func (r Route) metric() int {
	if r.Priority == 0 && r.Dst.Addr().Is6() {
		return 1024
	}
	return r.Priority
}

// AddRoute adds a route through the link. As with the reference plugins an IPv4
// route of the same destination and metric through another gateway stands behind
// the new one, and an IPv6 one shares the load with it; the same route again is an
// error that matches fs.ErrExist.
func (l Link) AddRoute(r Route) Change {
	route := &netlink.Route{
		LinkIndex: l.Index, Dst: ipNet(r.Dst.Masked()), Gw: r.GW.AsSlice(), Src: r.Src.AsSlice(),
		Priority: r.Priority, Table: r.table(), Scope: netlink.Scope(r.Scope), MTU: r.MTU, AdvMSS: r.AdvMSS,
	}
	if r.OnLink {
		route.Flags = int(netlink.FLAG_ONLINK)
	}
	return change(fmt.Sprintf("add route %s to %s", r, l.Name), func(c *Conn) error {
		// Of the library's methods this one sends NLM_F_CREATE alone.
		return c.lib.RouteAddEcmp(route)
	})
}

// Routes lists the unicast routes through a link, of all tables but local's,
// IPv4 first.
func (c *Conn) Routes(l Link) ([]Route, error) {
	var routes []Route
	for _, family := range families {
		// The kernel filters by the link. The library would as well, and drop routes with
		// several next hops, if it was told.
		list, err := c.routes("list routes of "+l.Name, family, &netlink.Route{LinkIndex: l.Index})
		if err != nil {
			return nil, err
		}
		for _, found := range list {
			if found.Table == unix.RT_TABLE_LOCAL || found.Type != unix.RTN_UNICAST {
				continue
			}
			for _, hop := range nextHops(found) {
				if hop.LinkIndex == l.Index {
					routes = append(routes, describeRoute(found, hop))
				}
			}
		}
	}
	return routes, nil
}

// routes lists the routes of a family that match the filter: LinkIndex, Table, Protocol
// as far as they are set.
func (c *Conn) routes(step string, family int, filter *netlink.Route) ([]netlink.Route, error) {
	mask := uint64(netlink.RT_FILTER_TABLE) // with no table in the filter: all tables
	if filter.Protocol != 0 {
		mask |= netlink.RT_FILTER_PROTOCOL
	}
	return query(c, step, func() (list []netlink.Route, err error) {
		// The library repeats interrupted lists of all kinds but this.
		for range listTries {
			list, err = c.lib.RouteListFiltered(family, filter, mask)
			if !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		if errors.Is(err, unix.ENOENT) { // a table is made with its first route
			return nil, nil
		}
		return list, err
	})
}

// listTries is how often a list is asked for that changes while the kernel sends it.
const listTries = 10

// nextHops returns where a route leads: more than one hop where several routes to one
// destination share the load.
func nextHops(r netlink.Route) []*netlink.NexthopInfo {
	if len(r.MultiPath) > 0 {
		return r.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw}}
}

// describeRoute returns a route of the library's, by one of its hops, as a Route.
func describeRoute(r netlink.Route, hop *netlink.NexthopInfo) Route {
	return Route{
		Dst: prefix(r.Dst), GW: addrOf(hop.Gw), Src: addrOf(r.Src), Priority: r.Priority, Table: r.Table,
		Scope: int(r.Scope), MTU: r.MTU, AdvMSS: r.AdvMSS, OnLink: r.Flags&int(netlink.FLAG_ONLINK) != 0,
	}
}

// DefaultDevice finds the index of the first link that a default route of the main
// table goes through, IPv4 before IPv6; zero: there is none.
func (c *Conn) DefaultDevice() (int, error) {
	for _, probe := range []netip.Addr{unrouted4, unrouted6} {
		index, err := c.defaultRouteTo(probe)
		if index == 0 && err == nil {
			index, err = c.firstDefaultRoute(family(probe))
		}
		if index != 0 || err != nil {
			return index, err
		}
	}
	return 0, nil
}

// Addresses of blocks that are reserved (RFC 1112, section 4; RFC 4291, section 2.4 and
// IANA's registry), so that hardly a node has a route to them but a default route.
var (
	unrouted4 = netip.MustParseAddr("240.0.0.1")
	unrouted6 = netip.MustParseAddr("4000::")
)

// defaultRouteTo asks the kernel which route it takes to an address (RTM_F_FIB_MATCH,
// Linux 4.13), and returns the link if that is a default route of the main table; zero:
// it is another route, as policy rules or a VPN may have it, or none. It saves the list
// of all routes, which takes 70 ms where there are 100 000.
func (c *Conn) defaultRouteTo(probe netip.Addr) (int, error) {
	route, err := c.lookup(probe, &netlink.RouteGetOptions{FIBMatch: true})
	var refused *Error
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &refused) && refused.Refused: // no route, or one that forbids
		return 0, nil
	case err != nil:
		return 0, err
	}
	return defaultLink(route), nil
}

// firstDefaultRoute reads the list of routes of the main table.
func (c *Conn) firstDefaultRoute(family int) (int, error) {
	list, err := c.routes("list default routes", family, &netlink.Route{Table: unix.RT_TABLE_MAIN})
	for _, r := range list {
		if index := defaultLink(r); index != 0 {
			return index, err
		}
	}
	return 0, err
}

// defaultLink returns the index of the link that a route goes through, if that is a
// default route of the main table; zero: it is not.
func defaultLink(r netlink.Route) int {
	if prefix(r.Dst).Bits() != 0 || r.Table != unix.RT_TABLE_MAIN {
		return 0
	}
	return nextHops(r)[0].LinkIndex
}

// AdvertisedUplinks lists the links with an IPv6 default route that a router
// advertised. The kernel filters the advertised routes.
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

// LinkTo finds the link that packets to the address leave by. The error matches
// fs.ErrNotExist when no route leads there.
func (c *Conn) LinkTo(a netip.Addr) (Link, error) {
	route, err := c.lookup(a, nil)
	if err != nil {
		return Link{}, err
	}
	return c.LinkByIndex(route.LinkIndex)
}

// delivers reports whether packets for an address of the link are taken for the
// namespace's own.
func (c *Conn) delivers(l Link, a netip.Addr) (bool, error) {
	route, err := c.lookup(a, &netlink.RouteGetOptions{OifIndex: l.Index})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return route.Type == unix.RTN_LOCAL, err
}

// lookup finds the route that packets to the address take. The error matches
// fs.ErrNotExist when there is none.
func (c *Conn) lookup(a netip.Addr, options *netlink.RouteGetOptions) (netlink.Route, error) {
	return query(c, "find route to "+a.String(), func() (netlink.Route, error) {
		// The library sets RTM_F_LOOKUP_TABLE, which the kernel refuses for IPv6 if its
		// checks are strict (inet6_rtm_valid_getroute_req).
		_ = c.lib.SetStrictCheck(false)
		defer func() { _ = c.lib.SetStrictCheck(true) }()
		routes, err := c.lib.RouteGetWithOptions(a.AsSlice(), options)
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || err == nil && len(routes) == 0 {
			return netlink.Route{}, fs.ErrNotExist
		}
		if err != nil {
			return netlink.Route{}, err
		}
		return routes[0], nil
	})
}
