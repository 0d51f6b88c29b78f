package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// check looks for the rule of each IP. In the table of the rule, it looks for the route to the subnet of
// the IP and for the default route. It does not look at the main table: the kernel adds routes there
// when the interface is set up again.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	ips, err := sources(r)
	if err != nil {
		return err
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return err
	}
	t, err := newTarget(r, pod)
	if err != nil {
		return types.Coded(types.CodeChanged, err)
	}
	prev, err := r.Prev()
	if err != nil {
		return err
	}
	p := &plan{conf: conf, ips: ips, prev: prev.Routes, baseRoutes: t.routesIn(t.baseTable)}
	var errs []error
	for _, ip := range ips {
		rule, found := t.ruleOf(ip.Address.Addr())
		switch {
		case !found:
			errs = append(errs, fmt.Errorf("the rule from %s is missing", ip.Address.Addr()))
		case conf.table == 0:
			errs = append(errs, t.diff(p, ip, rule.Table))
		case rule.Table != conf.table:
			errs = append(errs, fmt.Errorf("the rule from %s leads to table %d, not %d", ip.Address.Addr(), rule.Table, conf.table))
		}
	}
	return types.Coded(types.CodeChanged, errors.Join(errs...))
}

// diff returns an error that names the routes that the table of an IP lacks.
func (t *target) diff(p *plan, ip types.IP, table int) error {
	var errs []error
	var defaults []nl.FullRoute
	routes := t.routesIn(table)
	for _, r := range routes {
		if isDefault(r.Route, ip) {
			defaults = append(defaults, r)
		}
	}
	toSubnet := func(r nl.FullRoute) bool { return r.Dst == ip.Address.Masked() && !r.GW.IsValid() }
	if t.hasSubnetRoute(ip) && !slices.ContainsFunc(routes, toSubnet) {
		errs = append(errs, fmt.Errorf("table %d has no route to %s through %s", table, ip.Address.Masked(), t.link.Name))
	}
	if own, needed := p.ownDefault(ip, defaults); needed {
		errs = append(errs, fmt.Errorf("table %d has no default route via %s", table, own.GW))
	}
	return errors.Join(errs...)
}

// hasSubnetRoute reports whether the kernel added a route to the subnet when the address was added. The
// plugin ptp, for example, adds addresses for which the kernel adds no route (noprefixroute).
func (t *target) hasSubnetRoute(ip types.IP) bool {
	return !ip.Address.IsSingleIP() &&
		slices.ContainsFunc(t.addrs, func(a nl.Addr) bool { return a.Prefix == ip.Address && !a.NoPrefixRoute })
}
