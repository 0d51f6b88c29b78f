package attach

import (
	"errors"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// adopt adds the configuration of a link in another namespace to the container's link l, which is up. It keeps what exists.
// The addresses have no lifetimes, because no DHCP client renews the leases in the container. conf may be nil.
func adopt(c *nl.Conn, l nl.Link, conf *nl.LinkConfig) error {
	if conf == nil {
		return nil
	}
	if err := sysctl.Ensure(c.NS(), ipv6Sysctls(l.Name, adoptedIPs(conf))...); err != nil {
		return explainNoIPv6(err)
	}
	err := ExplainIPv6Off(c, l.Name, errors.Join(c.AddLinkConfig(l, conf.Permanent())...))
	if nl.IsInvalidRoute(err) {
		err = types.Errorf(types.CodeConfig, "copy the configuration of interface %s of the host: %w; delete there what the container cannot use", conf.Link, err)
	}
	return err
}

func adoptedIPs(conf *nl.LinkConfig) (ips []types.IP) {
	for _, p := range conf.Prefixes() {
		ips = append(ips, types.IP{Address: p})
	}
	return ips
}

// addAdopted adds the adopted addresses and routes, which the link has, to the result. It removes from the Spec, and does
// not add to the result again, what the lease contains as well.
func (s *Spec) addAdopted(conf *nl.LinkConfig, result *types.Result) {
	if conf == nil {
		return
	}
	for _, ip := range adoptedIPs(conf) {
		before := len(s.Addrs)
		s.Addrs = slices.DeleteFunc(s.Addrs, func(a nl.Addr) bool { return a.Prefix == ip.Address })
		if len(s.Addrs) == before {
			result.IPs = append(result.IPs, ip)
		}
	}
	for _, route := range conf.DecodedRoutes() {
		before := len(s.Routes)
		s.Routes = slices.DeleteFunc(s.Routes, route.Same)
		if len(s.Routes) == before {
			result.Routes = append(result.Routes, types.Route{Dst: route.Dst, GW: route.GW, Priority: route.Priority, Table: route.Table, Scope: route.Scope})
		}
	}
}

// CheckAdopted executes CHECK like CheckContainerLink, for an interface with an adopted configuration. conf is nil if it is
// not known. A route of prevResult without a gateway can be an adopted route on the link, or a route that uses the first
// gateway of the lease. CheckAdopted accepts either.
func CheckAdopted(r *skel.Request, conf *nl.LinkConfig) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	container, l, err := nl.OpenLink(r.ContainerNS, r.IfName)
	noDiff := func(*nl.Conn, nl.Link) error { return nil }
	if err != nil {
		return CheckContainerLink(r, "", noDiff) // reports the error
	}
	got, err := container.Routes(l)
	prev.Routes = slices.Clone(prev.Routes)
	for i, route := range prev.Routes {
		onLink := nl.Route{Dst: route.Dst, Table: route.Table, Priority: route.Priority}
		if !route.GW.IsValid() && slices.ContainsFunc(got, onLink.Matches) {
			prev.Routes[i].Scope = nl.ScopeLink // see Routes
		}
	}
	errs := []error{CheckContainerLink(r, "", noDiff), err}
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

// RepairAdopted executes REPAIR like RepairContainerLink, for an interface with an adopted configuration.
func RepairAdopted(r *skel.Request, dad DADMode, conf *nl.LinkConfig) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	isAdopted := func(route types.Route) bool {
		return slices.ContainsFunc(conf.DecodedRoutes(), Routes(nil, []types.Route{route})[0].Matches)
	}
	routes := slices.DeleteFunc(slices.Clone(prev.Routes), isAdopted)
	ips := slices.DeleteFunc(slices.Clone(IPsOf(prev, r.IfName)), func(ip types.IP) bool { return slices.Contains(conf.Prefixes(), ip.Address) })
	spec := ContainerSpec(r.IfName, dad, ips, routes)
	spec.Adopted = conf
	return errors.Join(ipam.Repair(r), RestoreContainer(r, spec))
}
