package main

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The functions of this file compute the state of both ends from a lease. ADD applies it and
// CHECK compares it.

// withGateways returns the IPs of the lease, each with a gateway. The error names all problems.
func withGateways(lease *ipam.Lease) ([]types.IP, error) {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	ips := slices.Clone(lease.IPs)
	for i := range ips {
		ip := &ips[i]
		ip.Gateway = gatewayOf(*ip, lease)
		addr, gw := ip.Address.Addr(), ip.Gateway
		reportIf(!gw.IsValid(), "address %s has no gateway, which ptp needs for the host end; set \"gateway\" in \"ipam\", or \"gw\" of a route (169.254.1.1 and fe80::1 work for every network)", ip.Address)
		reportIf(gw.IsValid() && gw.Is4() != addr.Is4(), "address %s has the gateway %s of the other family", ip.Address, gw)
		reportIf(gw == addr, "address %s is its own gateway; the gateway is the host end, which needs another address", ip.Address)
	}
	return ips, types.Coded(types.CodeConfig, errors.Join(errs...))
}

// gatewayOf returns the gateway of an IP. For an IP without one, such as an address from the runtime, it
// returns the first gateway of the same family among the other IPs, or else among the routes.
func gatewayOf(ip types.IP, lease *ipam.Lease) netip.Addr {
	if ip.HasGateway() {
		return ip.Gateway
	}
	if gw := attach.FirstGateway(lease.IPs, ip.Address); gw.IsValid() {
		return gw
	}
	for _, route := range lease.Routes {
		if route.GW.IsValid() && !route.GW.IsUnspecified() && route.GW.Is4() == ip.Address.Addr().Is4() {
			return route.GW
		}
	}
	return netip.Addr{}
}

// containerSpec returns the Spec of the container end. The kernel adds no routes to the networks of its
// addresses, because only the host is on the link. All routes go through the host.
func containerSpec(eth string, ips []types.IP, routes []types.Route) attach.Spec {
	s := attach.ContainerSpec(eth, attach.DADOff, ips, nil)
	s.Kind = "veth"
	for i := range s.Addrs {
		s.Addrs[i].NoPrefixRoute = true
	}
	s.Routes = containerRoutes(ips, routes)
	return s
}

// containerRoutes returns the routes to the gateways, then the routes to the networks of the addresses
// through the gateways, and then the routes of the result. The order matters, because the kernel accepts a
// gateway only if there is a route to it. An IP in prevResult lacks its gateway after flushgateway of route-override.
func containerRoutes(ips []types.IP, routes []types.Route) []nl.Route {
	var out []nl.Route
	for _, ip := range ips {
		if ip.Gateway.IsValid() {
			out = addIfNew(out, nl.Route{Dst: singlePrefix(ip.Gateway), Src: ip.Address.Addr(), Scope: nl.ScopeLink})
		}
	}
	for _, ip := range ips {
		if ip.Gateway.IsValid() && !ip.Address.IsSingleIP() {
			out = addIfNew(out, nl.Route{Dst: ip.Address.Masked(), GW: ip.Gateway, Src: ip.Address.Addr()})
		}
	}
	for _, route := range attach.Routes(ips, routes) {
		// The host may answer for other gateways than those of the host end by proxy ARP.
		route.OnLink = slices.ContainsFunc(route.Gateways(), func(gw netip.Addr) bool {
			return !slices.ContainsFunc(ips, func(ip types.IP) bool { return ip.Gateway == gw })
		})
		if !slices.ContainsFunc(out, route.Same) {
			out = append(out, route)
		}
	}
	return out
}

// addIfNew appends the route if there is none to the same destination, because two addresses of one network
// need one route to it.
func addIfNew(routes []nl.Route, route nl.Route) []nl.Route {
	if slices.ContainsFunc(routes, func(r nl.Route) bool { return r.Dst == route.Dst }) {
		return routes
	}
	return append(routes, route)
}

// hostSpec returns the Spec of the host end, which contains the gateway addresses and a route to each address
// of the container. The scope of the routes is host, as in the reference plugin, because other programs may
// look for such routes.
func hostSpec(host string, ips []types.IP) attach.Spec {
	var s attach.Spec
	for _, ip := range ips {
		v6 := ip.Address.Addr().Is6()
		gateway := nl.Addr{Prefix: singlePrefix(ip.Gateway), NoDAD: v6, NoPrefixRoute: true}
		if ip.Gateway.IsValid() && !slices.Contains(s.Addrs, gateway) {
			s.Addrs = append(s.Addrs, gateway)
		}
		s.Routes = append(s.Routes, nl.Route{Dst: singlePrefix(ip.Address.Addr()), Scope: nl.ScopeHost})
		if v6 && s.Sysctls == nil {
			s.Sysctls = []sysctl.Setting{{Key: sysctl.IPv6(host, "disable_ipv6"), Value: "0"}}
		}
	}
	return s
}

// singlePrefix returns the prefix that contains one address only.
func singlePrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
