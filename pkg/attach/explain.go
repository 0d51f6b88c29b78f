package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The errno of some kernel errors does not tell the cause. The functions in this file return an error
// that names the cause instead. They return every other error unchanged.

// ExplainRemoved explains the error of an ADD during which the link was deleted. created is the link as
// ADD created it, or the zero Link.
func ExplainRemoved(c *nl.Conn, created nl.Link, ifName string, err error) error {
	if err == nil || created.Index == 0 || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, lost := c.LinkByIndex(created.Index); !errors.Is(lost, fs.ErrNotExist) {
		return err
	}
	return &types.Error{
		Code:    types.CodeTryAgain,
		Msg:     fmt.Sprintf("interface %s was removed during ADD, probably by a DEL of the same attachment", ifName),
		Details: err.Error(),
	}
}

// ExplainIPv6Off explains the error of a request that adds addresses to an interface whose sysctl
// disable_ipv6 is 1 (EACCES from ipv6_add_addr).
func ExplainIPv6Off(c *nl.Conn, ifName string, err error) error {
	if !errors.Is(err, syscall.EACCES) {
		return err
	}
	key := sysctl.IPv6(ifName, "disable_ipv6")
	if value, unknown := sysctl.Get(c.NS(), key); unknown != nil || value != "1" {
		return err
	}
	return types.Errorf(types.CodeConfig, "%w: sysctl %s is 1; enable IPv6 there, or remove the IPv6 range from ipam", err, key)
}

// explainNoIPv6 explains the error for an IPv6 sysctl that does not exist.
func explainNoIPv6(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return types.Errorf(types.CodeConfig, "the network has IPv6 addresses, but IPv6 is disabled in this kernel: %w", err)
	}
	return err
}

// explainGateway explains the error of a request that adds routes. It names the gateway that is in
// none of the interface's networks.
func explainGateway(l nl.Link, s Spec, err error) error {
	if !nl.IsInvalidRoute(err) {
		return err
	}
	for _, r := range s.Routes {
		if gateway := s.unreachableGateway(r); gateway.IsValid() && !r.OnLink {
			return types.Errorf(types.CodeConfig, "%s, the gateway of the route to %s, is in none of the networks of %s %s: %w", gateway, r.Dst, l.Name, s.Addrs, err)
		}
	}
	return err
}

// unreachableGateway returns the first gateway of a route that is neither link-local, nor in the network of an address, nor
// in the destination of a route without a gateway. If there is none, it returns the zero Addr.
func (s Spec) unreachableGateway(r nl.Route) netip.Addr {
	for _, gw := range r.Gateways() {
		inNetwork := slices.ContainsFunc(s.Addrs, func(a nl.Addr) bool { return a.Prefix.Contains(gw) })
		onLink := func(r nl.Route) bool { return !r.GW.IsValid() && r.Dst.Contains(gw) }
		if !gw.IsLinkLocalUnicast() && !inNetwork && !slices.ContainsFunc(s.Routes, onLink) {
			return gw
		}
	}
	return netip.Addr{}
}
