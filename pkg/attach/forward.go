package attach

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// EnsureForwarding enables forwarding on the host, and on dev, the gateway's interface, for the address families of ips. Before
// that, it lets the host's network cards keep accepting router advertisements (see linksToRouters), even if forwarding is
// already enabled, because the administrator may have enabled it, or a card may be new. All containers share the sysctls, so
// EnsureForwarding writes only the sysctls that differ and does not undo the change.
func EnsureForwarding(host *nl.Conn, dev nl.Link, ips []types.IP) error {
	for _, s := range forwardingSysctls(dev, ips) {
		current, err := sysctl.Get(host.NS(), s.Key)
		if err != nil {
			return explainNoIPv6(err)
		}
		if s.Key == forwarding6 {
			if err := keepRouters(host); err != nil {
				return err
			}
		}
		if current == s.Value {
			continue
		}
		if err := sysctl.Set(host.NS(), s); err != nil {
			return err
		}
	}
	return nil
}

func keepRouters(host *nl.Conn) error {
	links, err := linksToRouters(host)
	var settings []sysctl.Setting
	for _, l := range links {
		settings = append(settings, AcceptRouters(l.Name))
	}
	if err != nil {
		return err
	}
	return sysctl.Set(host.NS(), settings...)
}

// DiffForwarding returns an error if the host does not forward packets between dev, the gateway's interface, and others in an
// address family of ips. The error names each sysctl that is off, and a missing link-local address.
func DiffForwarding(host *nl.Conn, dev nl.Link, ips []types.IP) error {
	settings := forwardingSysctls(dev, ips)
	errs := []error{diffLinkLocal(host, dev, ips)}
	for i := 0; i < len(settings); i++ {
		err := sysctl.Diff(host.NS(), settings[i])
		if errs = append(errs, err); err != nil && settings[i].Key == forwarding4 {
			i++ // writing forwarding4 sets the sysctl of each interface as well
		}
	}
	return errors.Join(errs...)
}

// RestoreForwarding restores what DiffForwarding reports.
func RestoreForwarding(host *nl.Conn, dev nl.Link, ips []types.IP) error {
	return errors.Join(EnsureForwarding(host, dev, ips), restoreLinkLocal(host, dev, ips))
}

const (
	forwarding4 = "net/ipv4/ip_forward"
	forwarding6 = "net/ipv6/conf/all/forwarding"
)

// forwardingSysctls returns the sysctls with which the host forwards packets from dev. For IPv6, the kernel reads only
// forwarding6 (ip6_forward). The sysctl of the interface says there whether the host is a router on the link.
func forwardingSysctls(dev nl.Link, ips []types.IP) []sysctl.Setting {
	var v4, v6 bool
	for _, ip := range ips {
		v4, v6 = v4 || !is6(ip), v6 || is6(ip)
	}
	var settings []sysctl.Setting
	if v4 {
		settings = append(settings, sysctl.Setting{Key: forwarding4, Value: "1"}, sysctl.Setting{Key: sysctl.IPv4(dev.Name, "forwarding"), Value: "1"})
	}
	if v6 {
		settings = append(settings, sysctl.Setting{Key: forwarding6, Value: "1"})
	}
	return settings
}
