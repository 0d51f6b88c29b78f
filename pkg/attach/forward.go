package attach

import (
	"errors"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// EnsureForwarding lets the node pass packets of the IPs' families on. It is shared,
// touched only where it is off, and never undone.
func EnsureForwarding(node *nl.Conn, ips []types.IP) error {
	for _, s := range forwarding(ips) {
		now, err := sysctl.Get(node.NS(), s.Key)
		if err != nil {
			return explainIPv6(err)
		}
		if now == s.Value {
			continue
		}
		if s.Key == forwarding6 {
			if err := keepAdvertised(node); err != nil {
				return err
			}
		}
		if err := sysctl.Set(node.NS(), s); err != nil {
			return err
		}
	}
	return nil
}

// DiffForwarding names the families that the node does not forward.
func DiffForwarding(node *nl.Conn, ips []types.IP) error {
	return sysctl.Diff(node.NS(), forwarding(ips)...)
}

const forwarding6 = "net/ipv6/conf/all/forwarding"

func forwarding(ips []types.IP) []sysctl.Setting {
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

// keepAdvertised keeps the node's own IPv6 default routes that it learnt by router
// advertisement: with forwarding on, the kernel hears advertisements only where
// accept_ra is 2 (Documentation/networking/ip-sysctl.rst).
func keepAdvertised(node *nl.Conn) error {
	uplinks, err := node.AdvertisedUplinks()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range uplinks {
		key := sysctl.IPv6(l.Name, "accept_ra")
		if now, err := sysctl.Get(node.NS(), key); err == nil && now == "1" {
			errs = append(errs, sysctl.Set(node.NS(), sysctl.Setting{Key: key, Value: "2"}))
		}
	}
	return errors.Join(errs...)
}
