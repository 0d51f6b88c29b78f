package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/netlink"
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
	body, err := l.route(r)
	return change(fmt.Sprintf("add route %s to %s", r, l.Name), unix.RTM_NEWROUTE, body, err).with(unix.NLM_F_CREATE)
}

// ReplaceRoute adds a route through the link, or puts it in the place of the one of
// the same destination and metric.
func (l Link) ReplaceRoute(r Route) Change {
	body, err := l.route(r)
	return change(fmt.Sprintf("replace route %s on %s", r, l.Name), unix.RTM_NEWROUTE, body, err).with(unix.NLM_F_CREATE | unix.NLM_F_REPLACE)
}

// DelRoute removes a route.
func (l Link) DelRoute(r Route) Change {
	body, err := l.route(r)
	return change(fmt.Sprintf("delete route %s from %s", r, l.Name), unix.RTM_DELROUTE, body, err)
}

func (l Link) route(r Route) ([]byte, error) {
	header := make([]byte, unix.SizeofRtMsg)
	header[0] = family(r.Dst.Addr())
	header[1] = byte(r.Dst.Bits())
	header[4] = unix.RT_TABLE_UNSPEC
	header[5] = unix.RTPROT_BOOT
	header[6] = byte(r.Scope)
	header[7] = unix.RTN_UNICAST
	if r.OnLink {
		binary.NativeEndian.PutUint32(header[8:], unix.RTNH_F_ONLINK)
	}
	return linkBody(header, func(ae *netlink.Encoder) {
		ae.Bytes(unix.RTA_DST, r.Dst.Masked().Addr().AsSlice())
		ae.Uint32(unix.RTA_OIF, uint32(l.Index))
		ae.Uint32(unix.RTA_TABLE, uint32(r.table()))
		if r.GW.IsValid() {
			ae.Bytes(unix.RTA_GATEWAY, r.GW.AsSlice())
		}
		if r.Src.IsValid() {
			ae.Bytes(unix.RTA_PREFSRC, r.Src.AsSlice())
		}
		if r.Priority != 0 {
			ae.Uint32(unix.RTA_PRIORITY, uint32(r.Priority))
		}
		if r.MTU != 0 || r.AdvMSS != 0 {
			ae.Nested(unix.RTA_METRICS, r.metrics)
		}
	})
}

func (r Route) metrics(ae *netlink.Encoder) {
	if r.MTU != 0 {
		ae.Uint32(unix.RTAX_MTU, uint32(r.MTU))
	}
	if r.AdvMSS != 0 {
		ae.Uint32(unix.RTAX_ADVMSS, uint32(r.AdvMSS))
	}
}

// Routes lists the unicast routes through a link, of all tables but local's,
// IPv4 first.
func (c *Conn) Routes(l Link) ([]Route, error) {
	return c.routes("list routes of "+l.Name, l.Index)
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
// kernel 4.13), and returns the link if that is a default route of the main table; zero:
// it is another route, as policy rules or a VPN may have it, or none. It saves the list
// of all routes, which takes 70 ms where there are 100 000.
func (c *Conn) defaultRouteTo(probe netip.Addr) (int, error) {
	step := "find default route to " + probe.String()
	header := make([]byte, unix.SizeofRtMsg)
	header[0], header[1] = family(probe), byte(probe.BitLen())
	binary.NativeEndian.PutUint32(header[8:], unix.RTM_F_FIB_MATCH|unix.RTM_F_LOOKUP_TABLE)
	body, err := linkBody(header, func(ae *netlink.Encoder) { ae.Bytes(unix.RTA_DST, probe.AsSlice()) })
	if err != nil {
		return 0, wrap(step, err)
	}
	m, err := c.get(step, unix.RTM_GETROUTE, body)
	var refused *Error
	switch {
	case errors.As(err, &refused) && refused.Refused: // no route, or one that forbids
		return 0, nil
	case err != nil:
		return 0, err
	}
	return defaultLink(m.Body), nil
}

// firstDefaultRoute reads the list of routes.
func (c *Conn) firstDefaultRoute(fam byte) (int, error) {
	msgs, err := c.dump("list default routes", unix.RTM_GETROUTE, routeRequest(fam, 0))
	for _, m := range msgs {
		if index := defaultLink(m.Body); index != 0 {
			return index, err
		}
	}
	return 0, err
}

// defaultLink is the index of the link that a route goes through, if that is a default
// route of the main table; zero: it is not.
func defaultLink(route []byte) int {
	r, hops, err := decodeRoute(route)
	if err != nil || r.Dst.Bits() != 0 || r.Table != unix.RT_TABLE_MAIN {
		return 0
	}
	return hops[0].link
}

// delivers reports whether packets for an address of the link are taken for the
// namespace's own.
func (c *Conn) delivers(l Link, a netip.Addr) (bool, error) {
	step := "find route to " + a.String()
	header := make([]byte, unix.SizeofRtMsg)
	header[0], header[1] = family(a), byte(a.BitLen())
	body, err := linkBody(header, func(ae *netlink.Encoder) {
		ae.Bytes(unix.RTA_DST, a.AsSlice())
		ae.Uint32(unix.RTA_OIF, uint32(l.Index))
	})
	if err != nil {
		return false, wrap(step, err)
	}
	m, err := c.get(step, unix.RTM_GETROUTE, body)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return false, nil
	}
	return err == nil && len(m.Body) >= unix.SizeofRtMsg && m.Body[7] == unix.RTN_LOCAL, err
}

// AdvertisedUplinks lists the links with an IPv6 default route that a router
// advertised. The kernel picks the advertised routes from all others.
func (c *Conn) AdvertisedUplinks() ([]Link, error) {
	request := routeRequest(unix.AF_INET6, 0)
	request[5] = unix.RTPROT_RA // rtm_protocol
	msgs, err := c.dump("list advertised default routes", unix.RTM_GETROUTE, request)
	if err != nil {
		return nil, err
	}
	var links []Link
	for _, m := range msgs {
		r, hops, err := decodeRoute(m.Body)
		if err != nil || r.Dst.Bits() != 0 || m.Body[5] != unix.RTPROT_RA {
			continue
		}
		l, err := c.LinkByIndex(hops[0].link)
		if err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	return links, nil
}

func (c *Conn) routes(step string, index int) ([]Route, error) {
	var routes []Route
	for _, fam := range []byte{unix.AF_INET, unix.AF_INET6} {
		msgs, err := c.dump(step, unix.RTM_GETROUTE, routeRequest(fam, index))
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			r, hops, err := decodeRoute(m.Body)
			if err != nil {
				return nil, wrap(step, err)
			}
			for _, hop := range hops {
				if hop.link == index && r.Table != unix.RT_TABLE_LOCAL && m.Body[7] == unix.RTN_UNICAST {
					r.GW = hop.gw
					routes = append(routes, r)
				}
			}
		}
	}
	return routes, nil
}

// routeRequest asks for the routes of a family, through one link if index is not zero.
func routeRequest(fam byte, index int) []byte {
	header := make([]byte, unix.SizeofRtMsg)
	header[0] = fam
	body, _ := linkBody(header, func(ae *netlink.Encoder) {
		if index != 0 {
			ae.Uint32(unix.RTA_OIF, uint32(index))
		}
	})
	return body
}

// A hop is where a route leads: by way of a gateway, or of none, through the link of
// that index.
type hop struct {
	gw   netip.Addr
	link int
}

// decodeRoute reads a route, but for its gateways, and its hops, of which it has at
// least one: more where several routes to one destination share the load.
func decodeRoute(b []byte) (r Route, hops []hop, err error) {
	if len(b) < unix.SizeofRtMsg {
		return Route{}, nil, fmt.Errorf("route message of %d bytes", len(b))
	}
	r = Route{Table: int(b[4]), Scope: int(b[6])}
	r.OnLink = binary.NativeEndian.Uint32(b[8:])&unix.RTNH_F_ONLINK != 0
	dst := netip.IPv6Unspecified()
	if b[0] == unix.AF_INET {
		dst = netip.IPv4Unspecified()
	}
	ad := netlink.Decode(b[unix.SizeofRtMsg:], binary.NativeEndian)
	var only hop
	for ad.Next() {
		switch ad.Kind() {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.RTA_OIF:
			only.link = int(ad.Uint32())
		case unix.RTA_GATEWAY:
			only.gw, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.RTA_MULTIPATH:
			hops = decodeHops(ad.Bytes())
		default:
			r.attribute(ad)
		}
	}
	if len(hops) == 0 {
		hops = []hop{only}
	}
	r.Dst = netip.PrefixFrom(dst, int(b[1]))
	return r, hops, ad.Err()
}

func (r *Route) attribute(ad *netlink.Decoder) {
	switch ad.Kind() {
	case unix.RTA_TABLE:
		r.Table = int(ad.Uint32())
	case unix.RTA_PREFSRC:
		r.Src, _ = netip.AddrFromSlice(ad.Bytes())
	case unix.RTA_PRIORITY:
		r.Priority = int(ad.Uint32())
	case unix.RTA_METRICS:
		ad.Nested(func(ad *netlink.Decoder) {
			for ad.Next() {
				switch ad.Kind() {
				case unix.RTAX_MTU:
					r.MTU = int(ad.Uint32())
				case unix.RTAX_ADVMSS:
					r.AdvMSS = int(ad.Uint32())
				}
			}
		})
	}
}

// decodeHops reads the next hops of a multipath route: of each struct rtnexthop, then
// its attributes.
func decodeHops(b []byte) []hop {
	var hops []hop
	for len(b) >= unix.SizeofRtNexthop {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtNexthop || length > len(b) {
			break
		}
		h := hop{link: int(binary.NativeEndian.Uint32(b[4:]))}
		for ad := netlink.Decode(b[unix.SizeofRtNexthop:length], binary.NativeEndian); ad.Next(); {
			if ad.Kind() == unix.RTA_GATEWAY {
				h.gw, _ = netip.AddrFromSlice(ad.Bytes())
			}
		}
		hops = append(hops, h)
		b = b[min(align(length), len(b)):]
	}
	return hops
}

// align is the room that n bytes take in a message (RTNH_ALIGN).
func align(n int) int { return (n + unix.RTNH_ALIGNTO - 1) &^ (unix.RTNH_ALIGNTO - 1) }
