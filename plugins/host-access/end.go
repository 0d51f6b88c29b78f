package main

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// An end is the wanted state of one end of the pair.
type end struct {
	conn      *nl.Conn
	link      nl.Link
	table     int // the number of the routing table with the routes
	routes    []nl.Route
	neighbors map[netip.Addr]types.MAC
	rules     []nl.InputRule
	shared    bool // whether all attachments share the rules, so that ADD keeps them if it fails
}

func (e *end) addRoute(to, gw, source netip.Addr) {
	e.routes = append(e.routes, nl.Route{Dst: netip.PrefixFrom(to, to.BitLen()), GW: gw, Src: source, Table: e.table, OnLink: gw.Is4()})
}

// sysctls returns the sysctls of the end. Without rp_filter, the end accepts packets from addresses of other interfaces of the
// container. The kernel uses the larger one of this value and the value for all interfaces. The values 1 and 2 reject these
// packets, because the end has no address (no_addr in __fib_validate_source).
func (e end) sysctls() []sysctl.Setting {
	settings := []sysctl.Setting{
		attach.IgnoreRouters(e.link.Name), attach.NoDAD(e.link.Name), {Key: sysctl.IPv4(e.link.Name, "rp_filter"), Value: "0", Optional: true},
	}
	if e.neighbors[gateways[true]] != "" {
		settings = append(settings, sysctl.Setting{Key: sysctl.IPv6(e.link.Name, "disable_ipv6"), Value: "0"})
	}
	return settings
}

// apply adds the state to the end, and sets it up. It adds only the given routes. It pushes the removal of the rules to u,
// unless they are shared.
func (e end) apply(u *undo.Stack, routes []nl.Route) error {
	if err := sysctl.Ensure(e.conn.NS(), e.sysctls()...); err != nil {
		return err
	}
	if err := e.conn.SetUp(e.link); err != nil {
		return err
	}
	for gw, mac := range e.neighbors {
		if err := e.conn.AddPermanentNeighbor(e.link, gw, mac); err != nil {
			return err
		}
	}
	for _, route := range routes {
		if err := e.applyRoute(route); err != nil {
			return err
		}
	}
	if e.shared {
		u = new(undo.Stack)
	}
	for _, rule := range e.rules {
		if err := e.conn.EnsureInputRule(u, rule); err != nil {
			return err
		}
	}
	return nil
}

// applyRoute adds a route. Without a carrier of the master, the kernel has not checked the container's IPv6 address for
// duplicates, and rejects it as the source of a route. In that case, applyRoute leaves the choice of the source to the kernel.
func (e end) applyRoute(route nl.Route) error {
	err := e.conn.AddOnlyRoute(e.link, route)
	if route.Src.Is6() && nl.IsInvalidRoute(err) {
		route.Src = netip.Addr{}
		err = e.conn.AddOnlyRoute(e.link, route)
	}
	return err
}

// compare returns the routes that the end lacks, and the routes in the same table that are not wanted, for example after the
// address of the master has changed.
func (e end) compare() (missing, stale []nl.Route, err error) {
	got, err := e.conn.Routes(e.link)
	matches := func(w, g nl.Route) bool { return w.Matches(g) && (w.Src == g.Src || !g.Src.IsValid()) }
	for _, w := range e.routes {
		if !slices.ContainsFunc(got, func(g nl.Route) bool { return matches(w, g) }) {
			missing = append(missing, w)
		}
	}
	for _, g := range got {
		if g.Table == e.table && !slices.ContainsFunc(e.routes, func(w nl.Route) bool { return matches(w, g) }) {
			stale = append(stale, g)
		}
	}
	return missing, stale, err
}

// diff returns an error that names every difference of the end.
func (e end) diff() error {
	missing, _, routesErr := e.compare()
	neighbors, neighborsErr := e.conn.PermanentNeighbors(e.link)
	rules, rulesErr := e.conn.InputRules()
	errs := []error{attach.Diff(e.conn, e.link, attach.Spec{Sysctls: e.sysctls()}), routesErr, neighborsErr, rulesErr}
	reportIf := types.ProblemsInto(&errs)
	for _, w := range missing {
		errs = append(errs, attach.MissingRoute(e.conn, e.link, w).Errorf("interface %s has no route %s", e.link.Name, w))
	}
	for gw, mac := range e.neighbors {
		reportIf(neighborsErr == nil && neighbors[gw] != mac, "interface %s has no permanent neighbor entry %s with %s", e.link.Name, gw, mac)
	}
	for _, rule := range e.rules {
		reportIf(rulesErr == nil && !slices.Contains(rules, rule), "no rule %s", rule)
	}
	return errors.Join(errs...)
}

// restore adds what the end lacks, and deletes routes that are not wanted.
func (e end) restore(u *undo.Stack) error {
	errs := []error{e.apply(u, nil)}
	missing, stale, err := e.compare()
	for _, route := range stale {
		errs = append(errs, e.conn.DeleteFullRoute(nl.NewFullRoute(e.link, route, 0)))
	}
	for _, route := range missing {
		if err := e.applyRoute(route); !errors.Is(err, fs.ErrExist) { // another attachment may have the address
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, err)...)
}
