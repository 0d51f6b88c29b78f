package attach

import (
	"errors"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// EnsureForwarding enables forwarding on the host, and on dev, the gateway's interface, for the address families of ips. Before
// that, it lets the host's network cards keep accepting router advertisements (see linksToRouters), even if forwarding is
// already enabled, because the administrator may have enabled it, or a card may be new. All containers share the sysctls, so
// EnsureForwarding writes only the sysctls that differ and does not undo the change.
func EnsureForwarding(host *nl.Conn, dev nl.Link, ips []types.IP) error {
	if slices.ContainsFunc(ips, is6) {
		links, err := linksToRouters(host)
		if err != nil {
			return err
		}
		for _, l := range links {
			if err := sysctl.Set(host.NS(), AcceptRouters(l.Name)); err != nil {
				return err
			}
		}
	}
	return explainNoIPv6(sysctl.Ensure(host.NS(), forwardingSysctls(dev, ips)...))
}

// DiffForwarding returns an error if the host does not forward packets between dev, the gateway's interface, and others in an
// address family of ips. The error names each sysctl that is off, and a missing link-local address.
func DiffForwarding(host *nl.Conn, dev nl.Link, ips []types.IP) error {
	missing, err := missingLinkLocal(host, dev, ips)
	errs := []error{err}
	for _, a := range missing {
		errs = append(errs, MissingAddr(host, dev, a).Errorf("interface %s has no link-local IPv6 address such as %s, from which the host finds containers", dev.Name, a))
	}
	for _, s := range forwardingSysctls(dev, ips) {
		err := sysctl.Diff(host.NS(), s)
		errs = append(errs, err)
		if err != nil && s.Key == forwarding4 {
			break // writing it sets the next one, the sysctl of the interface, as well
		}
	}
	return errors.Join(errs...)
}

// RestoreForwarding restores what DiffForwarding reports.
func RestoreForwarding(host *nl.Conn, dev nl.Link, ips []types.IP) error {
	missing, err := missingLinkLocal(host, dev, ips)
	if len(missing) > 0 {
		err = Restore(host, dev, Spec{Addrs: missing})
	}
	return errors.Join(EnsureForwarding(host, dev, ips), err)
}

const (
	forwarding4 = "net/ipv4/ip_forward"
	forwarding6 = "net/ipv6/conf/all/forwarding"
)

// forwardingSysctls returns the sysctls with which the host forwards packets from dev. For IPv6, the kernel reads only
// forwarding6 (ip6_forward). The sysctl of the interface says there whether the host is a router on the link.
func forwardingSysctls(dev nl.Link, ips []types.IP) []sysctl.Setting {
	var settings []sysctl.Setting
	if slices.ContainsFunc(ips, is6) {
		settings = append(settings, sysctl.Setting{Key: forwarding6, Value: "1"})
	}
	if slices.ContainsFunc(ips, func(ip types.IP) bool { return !is6(ip) }) {
		settings = append(settings, sysctl.Setting{Key: forwarding4, Value: "1"}, sysctl.Setting{Key: sysctl.IPv4(dev.Name, "forwarding"), Value: "1"})
	}
	return settings
}
