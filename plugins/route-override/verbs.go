package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// add deletes and adds the routes in the container, and returns prevResult with the same changes.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	t, err := newTarget(r, conf, types.CodeConfig)
	if err == nil && conf.requireDelRoutes {
		err = t.requireDelRoutes()
	}
	if err != nil {
		return nil, err
	}
	for _, route := range slices.Backward(t.deletedRoutes()) { // so that the undo restores the routes to gateways first
		r.Undo.Push("restore route "+route.String(), func() error { return t.container.EnsureFullRoute(&undo.Stack{}, route) })
		if err := t.container.DeleteFullRoute(route); err != nil {
			return nil, err
		}
	}
	for i, route := range conf.addRoutes {
		if err := t.addRoute(&r.Undo, route); err != nil {
			return nil, fmt.Errorf("addroutes[%d]: %w", i, err)
		}
	}
	return t.result(r.IfName), nil
}

// requireDelRoutes returns an error that names the entries of delroutes that select no route.
func (t *target) requireDelRoutes() error {
	var errs []error
	for i, selector := range t.conf.delRoutes {
		if !slices.ContainsFunc(t.routes, func(r nl.FullRoute) bool { return !r.Advertised && t.selects(selector, r.Route) }) {
			route := nl.Route{Dst: selector.Dst, GW: selector.GW, Table: selector.Table}
			errs = append(errs, fmt.Errorf("delroutes[%d]: interface %s has no route %s; correct it, or remove requireDelRoutes", i, t.link.Name, route))
		}
	}
	return types.Coded(types.CodeConfig, errors.Join(errs...))
}

// addRoute adds a route, unless it exists. It does not replace another route to the same destination, which may belong to
// another interface.
func (t *target) addRoute(u *undo.Stack, route types.Route) error {
	add := t.resolve(route)
	add.Table = t.tableOf(add.Table)
	err := t.container.AddNewRoute(u, t.link, add)
	switch {
	case errors.Is(err, fs.ErrExist):
		existing, listErr := t.container.Routes(t.link)
		if listErr != nil || slices.ContainsFunc(existing, func(e nl.Route) bool { return e.Same(add) && add.Matches(e) }) {
			return listErr
		}
		return types.Errorf(types.CodeConfig, "%s: the container has another route to this destination with the same metric: %w; delete it with delroutes, or set priority", add, err)
	case nl.IsInvalidRoute(err):
		return types.Errorf(types.CodeConfig, "%s is not possible through %s: %w; gw must be in a network of the interface, or be the destination of an earlier route", add, t.link.Name, err)
	}
	return attach.ExplainIPv6Off(t.container, t.link.Name, err)
}

// check compares the added routes of prevResult with the container, and reports deleted routes that exist again. The
// interface plugin compares the other routes of prevResult. Runtimes drop gws and, before version 1.1.0, other attributes
// from prevResult, so that check takes them from the configuration.
func check(r *skel.Request, conf *config) error {
	if conf.skipCheck {
		return nil
	}
	t, err := newTarget(r, conf, types.CodeChanged)
	if err != nil {
		return err
	}
	var spec attach.Spec
	var wanted []nl.Route
	for _, route := range t.prev.Routes {
		i := slices.IndexFunc(conf.addRoutes, func(added types.Route) bool {
			return added.Dst == route.Dst && (route.Table == 0 || route.Table == added.Table) && (!added.GW.IsValid() || added.GW == route.GW)
		})
		if i >= 0 {
			gw := route.GW
			route = conf.addRoutes[i]
			route.GW = gw
			spec.Routes = append(spec.Routes, t.resolve(route))
		}
		wanted = append(wanted, t.resolve(route))
	}
	existing, err := t.container.Routes(t.link)
	errs := []error{err, attach.Diff(t.container, t.link, spec)}
	for _, e := range existing {
		if t.deletes(e) && !t.isAdvertised(e) && !slices.ContainsFunc(wanted, func(want nl.Route) bool { return want.Matches(e) }) {
			errs = append(errs, t.returned(e).Errorf("interface %s has the route %s, which ADD deletes; set skipcheck if the container changes its routes", t.link.Name, e))
		}
	}
	return types.Coded(types.CodeChanged, errors.Join(errs...))
}

// isAdvertised reports whether a route is from a router advertisement.
func (t *target) isAdvertised(r nl.Route) bool {
	return slices.ContainsFunc(t.routes, func(a nl.FullRoute) bool { return a.Advertised && a.Dst == r.Dst })
}

// returned returns the problem that a deleted route exists again.
func (t *target) returned(r nl.Route) types.Problem {
	words := []string{"ip", "route", "delete", r.Dst.String(), "dev", t.link.Name, "table", strconv.Itoa(r.Table)}
	if len(r.GWs) == 0 && r.GW.IsValid() {
		words = append(words, "via", r.GW.String())
	}
	p := t.container.NS().Problem("interface "+t.link.Name, types.ProblemDiffers)
	p.Got, p.Fix = "route "+r.String(), t.container.NS().Command(words...)
	return p
}
