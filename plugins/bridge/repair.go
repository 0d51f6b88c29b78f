package main

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
)

// repair restores what check reports on the host and, with --container-side, in the container. It applies ADD's functions
// to each part in which check finds a difference. If the host end was deleted, the kernel has deleted the container end
// as well, and repair restores only the reservations.
func repair(r *skel.Request, conf *config) error {
	a, err := open(r, conf)
	if err != nil {
		return err
	}
	err = ipam.Repair(r)
	if a.findErr != nil {
		return err // CHECK reports findErr
	}
	return errors.Join(err, a.repairHost(), a.repairContainer())
}

// repairContainer restores the container's interface, with --container-side.
func (a *attachment) repairContainer() error {
	if a.conf.containerDown {
		return nil
	}
	return attach.RestoreContainer(a.r, a.containerSpec())
}

func (a *attachment) repairHost() error {
	if err := a.repairBridge(); err != nil {
		return err
	}
	errs := []error{a.repairPort(), a.repairGateway()}
	if attach.CreatedByPlumb(a.hostEnd) {
		errs = append(errs, a.repairRules())
	}
	if a.conf.masquerade.Enabled {
		errs = append(errs, masq.Restore(&a.r.Undo, a.conf.masq(a.r), attach.Prefixes(a.ips())))
	}
	return errors.Join(errs...)
}

// repairBridge restores the bridge. Unlike ADD, it enables VLAN filtering even if the bridge has ports, because the bridge
// filtered VLANs during ADD. It does so only if plumb created all ports but the attachment's.
func (a *attachment) repairBridge() error {
	br, err := a.host.LinkByAnyName(a.conf.bridge)
	if err == nil && br.Kind == "bridge" && a.conf.filtering && !br.VLANFiltering {
		ports, err := a.host.Ports(br)
		isOther := func(port nl.Link) bool { return port.Index != a.hostEnd.Index && isForeign(a.host, port) }
		if err == nil && !slices.ContainsFunc(ports, isOther) {
			err = a.host.SetVLANFiltering(br)
		}
		if err != nil {
			return err
		}
	}
	return a.ensureBridge()
}

func (a *attachment) repairPort() error {
	if a.diffPort() == nil {
		return nil
	}
	if err := a.checkMaster(); err != nil {
		return err
	}
	if err := configurePort(a.host, a.hostEnd, a.bridge, a.conf); err != nil || len(portVLANs(a.conf)) == 0 {
		return err
	}
	got, err := a.host.VLANs(a.hostEnd)
	for _, v := range a.extraVLANs(got) {
		err = errors.Join(err, a.host.DeleteVLAN(a.hostEnd, v.ID))
	}
	return err
}

// repairGateway restores the gateway addresses, forwarding, and the routes that the kernel added for the addresses. It
// replaces no address, even with forceAddress, because another network may have replaced this network's address.
func (a *attachment) repairGateway() error {
	if a.diffGateway() == nil {
		return nil
	}
	a.conf.forceAddress = false
	dev, err := a.ensureGateway(a.ips())
	if err != nil {
		return err
	}
	errs := []error{attach.RestoreForwarding(a.host, dev, a.ips())}
	for _, ip := range a.routedIPs(dev) {
		route := nl.PrefixRoute(netip.PrefixFrom(ip.Gateway, ip.Address.Bits()))
		errs = append(errs, attach.RestoreRoute(a.host, dev, route, ip.Address.Addr()))
	}
	return errors.Join(errs...)
}

// repairRules restores the sysctls of the host end and the MAC spoof check.
func (a *attachment) repairRules() error {
	return errors.Join(sysctl.Ensure(a.r.HostNS, attach.IgnoreRouters(a.hostEnd.Name)), a.withSpoofCheck(func(s macSpoofCheck) error {
		if checkMACSpoofCheck(s) == nil {
			return nil
		}
		return addMACSpoofCheck(&a.r.Undo, s)
	}))
}
