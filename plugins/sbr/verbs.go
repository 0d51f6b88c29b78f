package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// add creates a rule for each IP of the interface. If no table is configured, each rule looks up a separate
// table, and add moves the routes of the interface to these tables.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	t, err := newTarget(r, conf, types.CodeConfig)
	if err != nil {
		return nil, err
	}
	if t.conf.table == 0 {
		return t.prev, t.moveRoutes(r)
	}
	for _, ip := range t.ips {
		if err := t.container.EnsureRule(&r.Undo, newRule(ip.Address.Addr(), t.conf.table, protocolSBR)); err != nil {
			return nil, err
		}
	}
	return t.prev, nil
}

// moveRoutes adds the routes of each IP to the IP's table, and then deletes them from the main table. It adds
// the record first, because DEL finds the table by it, and the rule last, so that the table is complete when
// the kernel starts to use it.
func (t *target) moveRoutes(r *skel.Request) error {
	if err := t.checkGateways(); err != nil {
		return err
	}
	for _, a := range t.conf.gateways {
		if !slices.ContainsFunc(t.ips, func(ip types.IP) bool { return ip.Address.Addr().Is4() == a.Is4() }) {
			r.Warn("gateways: %s has no effect, because the interface has no %s address", a, family(a))
		}
	}
	tables, err := t.tables()
	if err != nil {
		return err
	}
	for i, ip := range t.ips {
		source := ip.Address.Addr()
		for _, route := range append([]nl.FullRoute{t.newRecord(source, tables[i])}, t.routesFor(ip, tables[i])...) {
			if err := t.container.EnsureFullRoute(&r.Undo, route); err != nil {
				return explainGateway(err, route, ip)
			}
		}
		if err := t.container.EnsureRule(&r.Undo, newRule(source, tables[i], protocolTable)); err != nil {
			return err
		}
	}
	return t.removeMoved(r)
}

// checkGateways returns an error for gateways that cannot be another host. The kernel accepts some of them,
// but packets to them do not leave the container.
func (t *target) checkGateways() error {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	for _, gw := range t.conf.gateways {
		reportIf(t.hasAddr(gw), "gateways: %s is an address of the interface itself", gw)
		for _, a := range t.addrs {
			if !gw.Is4() || !a.Prefix.Contains(gw) || a.Prefix.Bits() > 30 { // a /31 has no network or broadcast address (RFC 3021)
				continue
			}
			subnet := a.Prefix.Masked()
			reportIf(gw == subnet.Addr(), "gateways: %s is the network address of %s", gw, subnet)
			reportIf(!subnet.Contains(gw.Next()), "gateways: %s is the broadcast address of %s", gw, subnet)
		}
	}
	return types.Coded(types.CodeConfig, errors.Join(errs...))
}

// tables returns a table for each IP, which is the IP's existing table or a free one.
func (t *target) tables() ([]int, error) {
	tables, err := t.container.FreeTables(len(t.ips), firstTable)
	if err != nil {
		return nil, err
	}
	for i, ip := range t.ips {
		for _, rule := range slices.Concat(t.rules, t.missingRules) {
			if rule.Source == ip.Address.Addr() && t.hasOwnTable(rule) {
				tables[i] = rule.Table
			}
		}
	}
	return tables, nil
}

// removeMoved deletes the routes from the main table that are now in the tables of the IPs. If the interface
// is in a VRF, the routes stay in the table of the VRF, because programs that are bound to the VRF use them.
func (t *target) removeMoved(r *skel.Request) error {
	if t.conf.keep == keepAll || t.baseTable != nl.MainTable {
		return nil
	}
	if t.conf.keep == keepSubnet {
		for _, ip := range t.ips {
			if ip.Address.IsSingleIP() {
				continue
			}
			subnet := nl.Route{Dst: ip.Address.Masked(), Src: ip.Address.Addr()}
			if err := t.container.EnsureFullRoute(&r.Undo, nl.NewFullRoute(t.link, subnet, protocolSBR)); err != nil {
				return err
			}
		}
	}
	for _, route := range slices.Backward(t.movedRoutes()) { // so that the undo restores the routes to gateways first
		r.Undo.Push("restore route "+route.String(), func() error { return t.restore(r, route) })
		if err := t.container.DeleteFullRoute(route); err != nil {
			return err
		}
	}
	return nil
}

// explainGateway explains that the kernel rejects a route because it cannot reach the gateway.
func explainGateway(err error, route nl.FullRoute, ip types.IP) error {
	if !route.GW.IsValid() || !nl.IsInvalidRoute(err) {
		return err
	}
	return types.Errorf(types.CodeConfig, "%s, the gateway for %s, is not reachable through the interface: %w; it must be the address of a router in a subnet of the interface",
		route.GW, ip.Address, err)
}

// del deletes the rules of the attachment, and moves the routes back. It needs neither prevResult
// nor a valid configuration.
func del(r *skel.Request) error {
	if r.ContainerNS == nil {
		return nil
	}
	var raw rawConfig
	_ = types.Decode(r.Stdin, &raw)
	conf, _ := raw.toConfig() // DEL must work with any configuration
	t := &target{conf: conf}
	if err := t.read(r); err != nil {
		return err
	}
	if t.link.Index != 0 {
		other, err := attach.BelongsToOther(r, t.container, t.link)
		if other {
			r.Warn("interface %s keeps its rules and routes, because it belongs to another attachment", r.IfName)
		}
		if other || err != nil {
			return err
		}
	}
	prev, _ := r.Prev() // in DEL, Prev returns no error
	t.ips = attach.IPsOf(prev, r.IfName)
	var errs []error
	for _, rule := range slices.Concat(t.rules, t.missingRules, t.orphanedRules) {
		// Without prevResult, it is not known which interface an orphaned rule was for.
		if len(t.ips) == 0 || t.isOfIP(rule) || !slices.Contains(t.orphanedRules, rule) {
			errs = append(errs, t.release(r, rule))
		}
	}
	for _, route := range t.routesIn(t.baseTable) {
		if route.Protocol == protocolSBR {
			errs = append(errs, t.container.DeleteFullRoute(route))
		}
	}
	return errors.Join(errs...)
}

// isOfIP reports whether the source of a rule is an IP of prevResult.
func (t *target) isOfIP(rule nl.Rule) bool {
	return slices.ContainsFunc(t.ips, func(ip types.IP) bool { return ip.Address.Addr() == rule.Source })
}

// release deletes a rule. If the rule looks up a table that sbr chose, release first moves the routes of that
// table back. If the interface is in a VRF, release only deletes them, because the table of the VRF still
// contains them. It deletes the record last, so that a later DEL finds what this one did not delete.
func (t *target) release(r *skel.Request, rule nl.Rule) error {
	if !t.hasOwnTable(rule) {
		return t.container.DeleteRule(rule)
	}
	for _, route := range t.routesIn(rule.Table) {
		if route.Protocol == protocolTable {
			continue
		}
		if t.baseTable == nl.MainTable && route.Protocol != protocolSBR && !t.lostAddr(route) {
			if err := t.restore(r, route.WithTable(nl.MainTable)); err != nil {
				return err
			}
		}
		if err := t.container.DeleteFullRoute(route); err != nil {
			return err
		}
	}
	if err := t.container.DeleteRule(rule); err != nil {
		return err
	}
	return t.container.DeleteFullRoute(t.newRecord(rule.Source, rule.Table))
}

// lostAddr reports whether the address for which the kernel added the route no longer exists.
func (t *target) lostAddr(route nl.FullRoute) bool {
	return route.Protocol == nl.ProtocolKernel &&
		!slices.ContainsFunc(t.addrs, func(a nl.Addr) bool { return a.Prefix.Masked() == route.Dst })
}

// restore adds a route, unless it exists. It prints a warning if the kernel rejects the route because its
// preferred source, or the address for its gateway's subnet, no longer exists.
func (t *target) restore(r *skel.Request, route nl.FullRoute) error {
	err := t.container.EnsureFullRoute(&undo.Stack{}, route) // without an undo, because restored routes stay
	if nl.IsInvalidRoute(err) {
		r.Warn("the main table does not get route %s back, because an address of %s is gone: %v", route, t.link.Name, err)
		return nil
	}
	return err
}

// check looks for the rule of each IP and for the routes that its table must have. It does not check the main
// table, because the kernel adds routes there when the interface is set up again.
func check(r *skel.Request, conf *config) error {
	t, err := newTarget(r, conf, types.CodeChanged)
	if err != nil {
		return err
	}
	var errs []error
	for _, ip := range t.ips {
		source := ip.Address.Addr()
		i := slices.IndexFunc(t.rules, func(rule nl.Rule) bool { return rule.Source == source })
		if i < 0 {
			errs = append(errs, fmt.Errorf("the rule from %s is missing", source))
			continue
		}
		table := t.rules[i].Table
		if t.conf.table != 0 && t.conf.table != table {
			errs = append(errs, fmt.Errorf("the rule from %s looks up table %d, want %d", source, table, t.conf.table))
		}
		if t.conf.table == 0 {
			for _, route := range t.missingRoutes(ip, table, t.routesIn(table)) {
				errs = append(errs, fmt.Errorf("table %d has no route %s through %s", table, route.WithTable(nl.MainTable), t.link.Name))
			}
		}
	}
	return types.Coded(types.CodeChanged, errors.Join(errs...))
}
