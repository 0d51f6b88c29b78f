package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// What is here tells a person why the kernel refused a step, where its errno does not.

// ExplainRemoved returns the error of an ADD, or one that names the container's interface
// if its link, as ADD had made it, is gone by now: the cause is that somebody removed it.
func ExplainRemoved(c *nl.Conn, made nl.Link, ifName string, err error) error {
	if err == nil || made.Index == 0 || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, lost := c.LinkByIndex(made.Index); !errors.Is(lost, fs.ErrNotExist) {
		return err
	}
	return &types.Error{
		Code:    types.CodeTryAgain,
		Msg:     fmt.Sprintf("interface %s was removed meanwhile (a DEL?)", ifName),
		Details: err.Error(),
	}
}

// ExplainIPv6Off returns the error of a request that adds addresses to an interface, or
// one that names the sysctl by which the interface takes none of IPv6.
func ExplainIPv6Off(c *nl.Conn, ifName string, err error) error {
	if !errors.Is(err, syscall.EACCES) { // ipv6_add_addr
		return err
	}
	key := sysctl.IPv6(ifName, "disable_ipv6")
	if value, unknown := sysctl.Get(c.NS(), key); unknown != nil || value != "1" {
		return err
	}
	return types.Errorf(types.CodeConfig, "sysctl %s is 1: switch IPv6 on, or take the IPv6 range out of ipam: %w", key, err)
}

// explainGateway returns the error of a request that adds routes, or one that names the
// gateway that the interface cannot reach.
func explainGateway(l nl.Link, s Spec, err error) error {
	if !errors.Is(err, syscall.ENETUNREACH) && !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	for _, r := range s.Routes {
		if !r.GW.IsValid() || r.OnLink || reaches(s, r.GW) {
			continue
		}
		return types.Errorf(types.CodeConfig, "%s, the gateway of the route to %s, is in none of the networks of %s %s: %w", r.GW, r.Dst, l.Name, prefixesOf(s.Addrs), err)
	}
	return err
}

// reaches reports whether a gateway is in a network of the addresses, or behind a route
// on the link.
func reaches(s Spec, gw netip.Addr) bool {
	return gw.IsLinkLocalUnicast() ||
		slices.ContainsFunc(s.Addrs, func(a nl.Addr) bool { return a.Prefix.Contains(gw) }) ||
		slices.ContainsFunc(s.Routes, func(r nl.Route) bool { return !r.GW.IsValid() && r.Dst.Contains(gw) })
}

func prefixesOf(addrs []nl.Addr) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, a := range addrs {
		prefixes = append(prefixes, a.Prefix)
	}
	return prefixes
}
