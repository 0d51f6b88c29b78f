package main

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// add makes a rule for each IP of the interface, fills the tables, and then removes the routes from
// the main table. A packet for which a table has no route yet is routed by the main table.
func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	ips, err := sources(r)
	if err != nil {
		return nil, err
	}
	if err := r.LockPod(); err != nil {
		return nil, err
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return nil, err
	}
	t, err := newTarget(r, pod)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, types.Coded(types.CodeConfig, err)
	}
	if err != nil {
		return nil, err
	}
	if err := t.requireAddrs(ips); err != nil {
		return nil, types.Coded(types.CodeConfig, err)
	}
	prev, err := r.Prev()
	if err == nil && conf.table != 0 {
		err = t.addRules(ips, conf.table)
	} else if err == nil {
		err = t.moveRoutes(&plan{conf: conf, ips: ips, prev: prev.Routes, baseRoutes: t.routesIn(t.baseTable)})
	}
	return prev, err
}

// addRules makes the rules to the configured table.
func (t *target) addRules(ips []types.IP, table int) error {
	for _, ip := range ips {
		if err := t.addRule(ip, table, protocolOurs); err != nil {
			return err
		}
	}
	return nil
}

// addRule makes the rule of an IP, unless it exists.
func (t *target) addRule(ip types.IP, table, protocol int) error {
	if rule, found := t.ruleOf(ip.Address.Addr()); found && rule.Table == table {
		return nil
	}
	err := t.pod.AddRule(&t.r.Undo, nl.Rule{
		Source: hostPrefix(ip.Address.Addr()), Table: table, Priority: rulePriority, Protocol: protocol,
	})
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// moveRoutes gives each IP a table of its own, and moves the routes of the interface there. It makes
// the rule before the routes, because DEL finds the table by the rule.
func (t *target) moveRoutes(p *plan) error {
	tables, err := t.tables(p.ips)
	if err != nil {
		return err
	}
	for i, ip := range p.ips {
		if err := t.addRule(ip, tables[i], protocolMoved); err != nil {
			return err
		}
		for _, route := range p.routesFor(t.link, ip, tables[i], t.routesIn(tables[i])) {
			if err := t.pod.EnsureFullRoute(&t.r.Undo, route); err != nil {
				return explainGateway(err, route, ip)
			}
		}
	}
	return t.removeMoved(p)
}

// tables returns a table for each IP: that of its rule, or a free one.
func (t *target) tables(ips []types.IP) ([]int, error) {
	free, err := t.pod.FreeTables(len(ips), firstTable)
	if err != nil {
		return nil, err
	}
	for i, ip := range ips {
		if rule, found := t.ruleOf(ip.Address.Addr()); found && rule.Protocol != protocolOurs {
			free[i] = rule.Table
		}
	}
	return free, nil
}

// removeMoved removes from the main table the routes that the tables of the IPs have now. If the
// interface is in a VRF, the routes stay in the table of the VRF, because programs that are bound to
// the VRF use them.
func (t *target) removeMoved(p *plan) error {
	if p.conf.keep == keepAll || t.baseTable != mainTable {
		return nil
	}
	moved := p.moved()
	if p.conf.keep == keepSubnet {
		for _, hint := range subnetHints(t.link, p.ips) {
			if !slices.ContainsFunc(p.baseRoutes, func(r nl.FullRoute) bool { return isHint(hint, r) }) {
				if err := t.pod.EnsureFullRoute(&t.r.Undo, hint); err != nil {
					return err
				}
			}
			moved = slices.DeleteFunc(moved, func(r nl.FullRoute) bool { return isHint(hint, r) })
		}
	}
	t.r.Undo.Push("restore the routes of "+t.link.Name, func() error { return t.restore(moved) })
	for _, route := range moved {
		if err := t.pod.DeleteFullRoute(route); err != nil {
			return err
		}
	}
	return nil
}

// subnetHints returns a route of the main table to each subnet of the IPs, with the first IP of the
// subnet as the preferred source.
func subnetHints(l nl.Link, ips []types.IP) []nl.FullRoute {
	var hints []nl.FullRoute
	for _, ip := range ips {
		hint := nl.Route{Dst: ip.Address.Masked(), Src: ip.Address.Addr()}
		if ip.Address.IsSingleIP() || slices.ContainsFunc(hints, func(h nl.FullRoute) bool { return h.Dst == hint.Dst }) {
			continue
		}
		if ip.Address.Addr().Is4() {
			hint.Scope = nl.ScopeLink
		}
		hints = append(hints, nl.NewFullRoute(l, hint, protocolOurs))
	}
	return hints
}

// isHint reports whether a route leads to the same subnet as the hint, with the same preferred source.
func isHint(hint, r nl.FullRoute) bool {
	return r.Dst == hint.Dst && r.Src == hint.Src && !r.GW.IsValid()
}

// explainGateway explains why the kernel refuses a route: no route leads to its gateway.
func explainGateway(err error, route nl.FullRoute, ip types.IP) error {
	if !route.GW.IsValid() {
		return err
	}
	if errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.EINVAL) {
		return types.Errorf(types.CodeConfig, "%s, the gateway for %s, is not reachable through the interface; it has to be in a subnet of the interface: %w",
			route.GW, ip.Address, err)
	}
	return err
}
