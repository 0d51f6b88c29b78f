package main

import (
	"cmp"
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A target is the interface of an attachment, with its routes at the start of the call.
type target struct {
	conf *config
	prev *types.Result
	ips  []types.IP // the interface's IPs in prevResult

	container *nl.Conn
	link      nl.Link
	baseTable int // the table of routes without a table, which is the main table or the table of the interface's VRF
	routes    []nl.FullRoute
}

// newTarget reads the state for ADD and CHECK. The code applies to the error for a missing interface.
func newTarget(r *skel.Request, conf *config, code uint) (*target, error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, err
	}
	t := &target{conf: conf, prev: prev, ips: attach.IPsOf(prev, r.IfName)}
	t.container, t.link, err = nl.OpenLink(r.ContainerNS, r.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		missing := types.MissingLink(r.IfName)
		return nil, types.Coded(code, missing.Errorf("the container has no interface %s; list route-override after the plugin that creates it", r.IfName))
	}
	if err == nil {
		err = attach.RequireOwnLink(r, t.container, t.link)
	}
	if err != nil {
		return nil, err
	}
	if t.baseTable, err = t.container.TableOf(t.link); err != nil {
		return nil, err
	}
	t.routes, err = t.container.FullRoutes(t.link)
	return t, err
}

// resolve returns a route of a result as an interface plugin adds it. A route without a gateway gets the gateway of an IP.
func (t *target) resolve(route types.Route) nl.Route {
	return attach.Routes(t.ips, []types.Route{route})[0]
}

// tableOf returns the number of a table of prevResult or the configuration. Zero means the table of the interface.
func (t *target) tableOf(table int) int { return cmp.Or(table, t.baseTable) }

// deletes reports whether the configuration deletes a route of the interface. flushroutes and flushgateway apply only to
// the table of the interface, because other tables contain routes of sbr and of policy rules.
func (t *target) deletes(r nl.Route) bool {
	isDefault := r.Dst.Bits() == 0
	flushed := t.conf.flushGateway && isDefault || t.conf.flushRoutes && (isDefault || r.GW.IsValid() && !t.isOwnNetwork(r.Dst))
	if flushed && t.tableOf(r.Table) == t.baseTable {
		return true
	}
	return slices.ContainsFunc(t.conf.delRoutes, func(selector types.Route) bool { return t.selects(selector, r) })
}

// isOwnNetwork reports whether a destination is link-local, or the network of an IP, to which ptp adds a route through the
// gateway.
func (t *target) isOwnNetwork(dst netip.Prefix) bool {
	return dst.Addr().IsLinkLocalUnicast() || slices.ContainsFunc(t.ips, func(ip types.IP) bool { return ip.Address.Masked() == dst })
}

// selects reports whether an entry of delroutes selects a route. An unspecified gateway selects a route without one. An
// entry with a gateway does not select a route with several gateways.
func (t *target) selects(selector types.Route, r nl.Route) bool {
	sameGW := !selector.GW.IsValid() || selector.GW == r.GW && len(r.GWs) == 0 || selector.GW.IsUnspecified() && !r.GW.IsValid()
	return selector.Dst == r.Dst && t.tableOf(selector.Table) == t.tableOf(r.Table) && sameGW
}

// deletedRoutes returns the interface's routes that ADD deletes. Routes of router advertisements stay, because the kernel
// maintains them.
func (t *target) deletedRoutes() []nl.FullRoute {
	return slices.DeleteFunc(slices.Clone(t.routes), func(r nl.FullRoute) bool { return r.Advertised || !t.deletes(r.Route) })
}

// result returns prevResult with the changes of ADD. With flushgateway, the IPs of the interface have no gateway. The
// other routes name their gateways then.
func (t *target) result(ifName string) *types.Result {
	result := *t.prev
	result.Routes = nil
	for _, route := range t.prev.Routes {
		resolved := t.resolve(route)
		if t.deletes(resolved) {
			continue
		}
		if t.conf.flushGateway && resolved.GW.IsValid() {
			route.GW = resolved.GW
		}
		result.Routes = append(result.Routes, route)
	}
	for _, route := range t.conf.addRoutes {
		resolved := t.resolve(route)
		if resolved.GW.IsValid() {
			route.GW = resolved.GW
		}
		if !slices.ContainsFunc(result.Routes, func(o types.Route) bool { return t.resolve(o).Same(resolved) }) {
			result.Routes = append(result.Routes, route)
		}
	}
	if t.conf.flushGateway {
		index, _ := t.prev.ContainerInterface(ifName)
		result.IPs = slices.Clone(t.prev.IPs)
		for i, ip := range result.IPs {
			if ip.Interface == index || ip.Interface == types.NoInterface {
				result.IPs[i].Gateway = netip.Addr{}
			}
		}
	}
	return &result
}
