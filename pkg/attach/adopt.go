package attach

import (
	"errors"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
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
