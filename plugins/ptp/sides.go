package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// What is here is pure: from a lease to the state of the two ends of the pair, for
// ADD to make and CHECK to compare.

// complete gives the IPs of the lease to the container's interface, each with a
// gateway. It reports all that cannot work at once.
func complete(lease *ipam.Lease, mtu int) ([]types.IP, error) {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	ips := slices.Clone(lease.IPs)
	for i := range ips {
		ip := &ips[i]
		ip.Interface, ip.Gateway = podIndex, gatewayOf(*ip, lease)
		addr, gw := ip.Address.Addr(), ip.Gateway
		refuse(!gw.IsValid(), "address %s has no gateway: ptp needs one, for the node's end; set \"gateway\" in \"ipam\", or \"gw\" of a route (169.254.1.1 and fe80::1 are good for any network)", ip.Address)
		refuse(gw.IsValid() && gw.Is4() != addr.Is4(), "address %s has the gateway %s of the other family", ip.Address, gw)
		refuse(gw == addr, "address %s is its own gateway: the gateway is the node's end, and needs an address of its own", ip.Address)
		refuse(addr.Is6() && mtu != 0 && mtu < minMTUv6, "mtu %d is too small for address %s: IPv6 needs %d (RFC 8200)", mtu, ip.Address, minMTUv6)
	}
	return ips, types.Coded(types.CodeConfig, errors.Join(errs...))
}

// gatewayOf is the gateway of an IP: its own, else the first of its family among the
// IPs, else among the routes. Addresses that the runtime asks for have none.
func gatewayOf(ip types.IP, lease *ipam.Lease) netip.Addr {
	if ip.Gateway.IsValid() && !ip.Gateway.IsUnspecified() {
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

// podSide is the container's end: its addresses without the kernel's routes to their
// networks, for only the node is on the link, and routes to everybody by way of it.
func podSide(eth string, ips []types.IP, routes []types.Route) attach.Spec {
	s := attach.PodSpec(eth, attach.Owned, ips, nil)
	for i := range s.Addrs {
		s.Addrs[i].NoPrefixRoute = true
	}
	s.Routes = podRoutes(ips, routes)
	return s
}

// podRoutes are the routes to the gateways, then to the networks of the addresses
// through them, then those of the result. The order matters: the kernel takes a
// gateway only when it can reach it.
func podRoutes(ips []types.IP, routes []types.Route) []nl.Route {
	var out []nl.Route
	for _, ip := range ips {
		out = addNew(out, nl.Route{Dst: single(ip.Gateway), Src: ip.Address.Addr(), Scope: nl.ScopeLink})
	}
	for _, ip := range ips {
		if !ip.Address.IsSingleIP() {
			out = addNew(out, nl.Route{Dst: ip.Address.Masked(), GW: ip.Gateway, Src: ip.Address.Addr()})
		}
	}
	for _, route := range attach.Routes(ips, routes) {
		known := slices.ContainsFunc(ips, func(ip types.IP) bool { return ip.Gateway == route.GW })
		// Other gateways are behind the node's proxy ARP, if anywhere.
		route.OnLink = route.GW.IsValid() && !known
		if !slices.ContainsFunc(out, route.Same) {
			out = append(out, route)
		}
	}
	return out
}

// addNew adds the route unless there is one to the destination: two of a network's
// addresses need one way there, and all ways end at the node.
func addNew(routes []nl.Route, route nl.Route) []nl.Route {
	if slices.ContainsFunc(routes, func(r nl.Route) bool { return r.Dst == route.Dst }) {
		return routes
	}
	return append(routes, route)
}

// nodeSide is the node's end: the gateways, and a route to each address. Scope host
// is the reference plugin's, by which others may look for the route.
func nodeSide(host string, ips []types.IP) attach.Spec {
	var s attach.Spec
	for _, ip := range ips {
		v6 := ip.Address.Addr().Is6()
		gateway := nl.Addr{Prefix: single(ip.Gateway), NoDAD: v6, NoPrefixRoute: true}
		if !slices.Contains(s.Addrs, gateway) {
			s.Addrs = append(s.Addrs, gateway)
		}
		s.Routes = append(s.Routes, nl.Route{Dst: single(ip.Address.Addr()), Scope: nl.ScopeHost})
		if v6 && s.Sysctls == nil {
			s.Sysctls = []sysctl.Setting{{Key: sysctl.IPv6(host, "disable_ipv6"), Value: "0"}}
		}
	}
	return s
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
