package main

import (
	"net/netip"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// portDeadline is the longest time for which ADD waits for one kernel event.
const portDeadline = 10 * time.Second

// configureContainer waits for the lease, adds it to the result, and configures the container's
// interface for it. index is the index of that interface in the result, or types.NoInterface if
// the result does not list one.
func (a *attachment) configureContainer(result *types.Result, index int) error {
	if index != types.NoInterface {
		if err := a.prepareContainer(); err != nil {
			return err
		}
	}
	lease, err := a.awaitLease()
	if err != nil {
		return err
	}
	if index != types.NoInterface {
		if err := attach.RefreshMTU(a.r, a.container, &a.eth, &result.Interfaces[index]); err != nil {
			return err
		}
	}
	if err := a.conf.setGateways(lease.IPs); err != nil {
		return err
	}
	lease.Routes = a.conf.withDefaultRoutes(lease.IPs, lease.Routes)
	lease.AddTo(result, index)
	if index == types.NoInterface {
		return nil
	}
	return attach.Apply(a.container, a.eth, attach.ContainerSpec(a.eth.Name, a.conf.dadMode(), lease.IPs, lease.Routes))
}

// prepareContainer writes the sysctls of the container's interface, and sets the interface up. The interface accepts
// router advertisements only if the bridge has an uplink. On other bridges, the only router is the host, which sends no
// advertisements, and another container could send them.
func (a *attachment) prepareContainer() error {
	settings := attach.ContainerSysctls(a.eth.Name, a.conf.dadMode())
	uplink, err := hasUplink(a.host, a.bridge, a.conf)
	if err != nil {
		return err
	}
	if !uplink {
		settings = append(settings, attach.IgnoreRouters(a.eth.Name))
	}
	return attach.Prepare(a.container, a.eth, settings...)
}

// awaitLease waits for the lease. Both ends of the pair must be up. If the IPAM plugin works over
// the link, as dhcp does, awaitLease first waits until the port forwards.
func (a *attachment) awaitLease() (*ipam.Lease, error) {
	if ipam.NeedsLink(a.r) {
		if err := a.host.AwaitRunning(a.hostEnd, portDeadline); err != nil {
			return nil, err
		}
	}
	return a.pending.Wait()
}

// configureHost adds the gateway addresses to the host, enables forwarding, and adds the
// masquerade, if they are configured.
func (a *attachment) configureHost(result *types.Result) error {
	if a.conf.isGateway {
		dev, err := a.ensureGateway(result.IPs)
		if err != nil {
			return err
		}
		if dev.Index != a.bridge.Index {
			result.Interfaces = append(result.Interfaces, attach.Interface(dev, ""))
		}
		if err := attach.EnsureForwarding(a.host, dev, result.IPs); err != nil {
			return err
		}
	}
	if !a.conf.masquerade.Enabled {
		return nil
	}
	return masq.Add(&a.r.Undo, a.conf.masq(a.r), attach.Prefixes(attach.IPsOf(result, a.r.IfName)))
}

// awaitReachable waits until the port forwards and the container receives packets for its
// addresses, and announces the addresses to the hosts on the bridge.
func (a *attachment) awaitReachable(ips []types.IP) error {
	if a.conf.containerDown {
		return nil
	}
	if err := a.host.AwaitRunning(a.hostEnd, portDeadline); err != nil {
		return err
	}
	if a.conf.awaitDAD {
		if err := attach.AwaitDAD(a.container, a.eth); err != nil {
			return err
		}
	}
	if err := a.container.AwaitDelivery(a.eth, addresses(attach.Prefixes(ips)), portDeadline); err != nil {
		return err
	}
	return attach.Announce(a.container, a.eth)
}

// addresses returns the addresses of the prefixes.
func addresses(prefixes []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, p.Addr())
	}
	return out
}
