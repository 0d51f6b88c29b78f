package attach

import (
	"errors"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// EnsureForwarding enables forwarding on the host for the address families of ips. All containers share
// the sysctls, so EnsureForwarding writes only the sysctls that are off and does not undo the change.
func EnsureForwarding(host *nl.Conn, ips []types.IP) error {
	for _, s := range forwardingSysctls(ips) {
		current, err := sysctl.Get(host.NS(), s.Key)
		if err != nil {
			return explainNoIPv6(err)
		}
		if current == s.Value {
			continue
		}
		if s.Key == forwarding6 {
			if err := keepAdvertisedRoutes(host); err != nil {
				return err
			}
		}
		if err := sysctl.Set(host.NS(), s); err != nil {
			return err
		}
	}
	return nil
}

// DiffForwarding returns an error if the host does not forward packets of an address family of ips.
// The error names each sysctl that is off.
func DiffForwarding(host *nl.Conn, ips []types.IP) error {
	return sysctl.Diff(host.NS(), forwardingSysctls(ips)...)
}

const forwarding6 = "net/ipv6/conf/all/forwarding"

func forwardingSysctls(ips []types.IP) []sysctl.Setting {
	var v4, v6 bool
	for _, ip := range ips {
		v4, v6 = v4 || !is6(ip), v6 || is6(ip)
	}
	var settings []sysctl.Setting
	if v4 {
		settings = append(settings, sysctl.Setting{Key: "net/ipv4/ip_forward", Value: "1"})
	}
	if v6 {
		settings = append(settings, sysctl.Setting{Key: forwarding6, Value: "1"})
	}
	return settings
}

// keepAdvertisedRoutes sets accept_ra to 2 on the host's interfaces whose IPv6 default route comes
// from a router advertisement. A host that forwards IPv6 processes router advertisements only with
// that value (Documentation/networking/ip-sysctl.rst), and would lose the route otherwise.
func keepAdvertisedRoutes(host *nl.Conn) error {
	uplinks, err := host.AdvertisedUplinks()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range uplinks {
		key := sysctl.IPv6(l.Name, "accept_ra")
		if current, err := sysctl.Get(host.NS(), key); err == nil && current == "1" {
			errs = append(errs, sysctl.Set(host.NS(), sysctl.Setting{Key: key, Value: "2"}))
		}
	}
	return errors.Join(errs...)
}
