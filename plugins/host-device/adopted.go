package main

import (
	"errors"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// checkAdopted executes CHECK like attach.CheckContainerLink, for an interface with an adopted configuration. conf is nil if it is
// not known. A route of prevResult without a gateway can be an adopted route on the link, or a route that uses the first
// gateway of the lease. checkAdopted accepts either.
func checkAdopted(r *skel.Request, conf *nl.LinkConfig) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	container, l, err := nl.OpenLink(r.ContainerNS, r.IfName)
	if err != nil {
		return attach.CheckContainerLink(r, "", nil) // reports the error
	}
	got, err := container.Routes(l)
	prev.Routes = slices.Clone(prev.Routes)
	for i, route := range prev.Routes {
		onLink := nl.Route{Dst: route.Dst, Table: route.Table, Priority: route.Priority}
		if !route.GW.IsValid() && slices.ContainsFunc(got, onLink.Matches) {
			prev.Routes[i].Scope = nl.ScopeLink // see attach.Routes
		}
	}
	errs := []error{attach.CheckContainerLink(r, "", nil), err}
	if conf == nil {
		return errors.Join(errs...)
	}
	rules, err := container.MissingRules(r.IfName, conf)
	for _, rule := range rules {
		p := container.NS().Problem("rules", types.ProblemMissing)
		p.Want = "rule " + rule
		errs = append(errs, p.Errorf("the container has no rule %s", rule))
	}
	return types.Coded(types.CodeChanged, errors.Join(append(errs, err)...))
}

// repairAdopted executes REPAIR like attach.RepairContainerLink, for an interface with an adopted configuration.
func repairAdopted(r *skel.Request, dad attach.DADMode, conf *nl.LinkConfig) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	isAdopted := func(route types.Route) bool {
		return slices.ContainsFunc(conf.DecodedRoutes(), attach.Routes(nil, []types.Route{route})[0].Matches)
	}
	routes := slices.DeleteFunc(slices.Clone(prev.Routes), isAdopted)
	ips := slices.DeleteFunc(slices.Clone(attach.IPsOf(prev, r.IfName)), func(ip types.IP) bool { return slices.Contains(conf.Prefixes(), ip.Address) })
	spec := attach.ContainerSpec(r.IfName, dad, ips, routes)
	spec.Adopted = conf
	return errors.Join(ipam.Repair(r), attach.RestoreContainer(r, spec))
}
