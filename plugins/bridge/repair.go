package main

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// repair restores what check reports on the host and, with --container-side, in the container. It applies ADD's functions
// to each part in which check finds a difference. If the host end was deleted, the kernel has deleted the container end
// as well, and repair restores only the reservations.
func repair(r *skel.Request, conf *config) error {
	c, err := newChecker(r, conf)
	if err != nil {
		return err
	}
	err = ipam.Repair(r)
	if c.findErr != nil {
		return err // CHECK reports findErr
	}
	return errors.Join(err, c.repairHost(), c.repairContainer())
}

// repairContainer restores the container's interface, with --container-side.
func (c *checker) repairContainer() error {
	if c.conf.containerDown {
		return nil
	}
	return attach.RestoreContainer(c.r, c.containerSpec())
}

func (c *checker) repairHost() error {
	br, err := c.repairBridge()
	if err != nil {
		return err
	}
	a := &attachment{r: c.r, conf: c.conf, host: c.host, hostEnd: c.hostEnd, bridge: br, gatewayMAC: c.formerMAC(c.conf.gatewayName())}
	errs := []error{c.repairPort(br), c.repairGateway(a)}
	if attach.CreatedByPlumb(c.hostEnd) {
		errs = append(errs, c.repairRules())
	}
	if c.conf.masquerade.Enabled {
		errs = append(errs, masq.Restore(&c.r.Undo, c.conf.masq(c.r), attach.Prefixes(c.ips())))
	}
	return errors.Join(errs...)
}

// repairBridge restores the bridge with the MAC that it had during ADD, because the containers still have neighbor
// entries with that MAC. Unlike ADD, it enables VLAN filtering even if the bridge has ports, because the bridge filtered
// VLANs during ADD. It does so only if plumb created all ports.
func (c *checker) repairBridge() (nl.Link, error) {
	br, err := c.host.LinkByAnyName(c.conf.bridge)
	if err == nil && br.Kind == "bridge" && c.conf.filtering && !br.VLANFiltering {
		ports, err := c.host.Ports(br)
		if err == nil && !slices.ContainsFunc(ports, c.isForeign) {
			err = c.host.SetVLANFiltering(br)
		}
		if err != nil {
			return nl.Link{}, err
		}
	}
	return ensureBridge(c.host, c.conf, cmp.Or(c.formerMAC(c.conf.bridge), nl.RandomMAC()))
}

// isForeign reports whether the port is neither the attachment's nor created by plumb.
func (c *checker) isForeign(port nl.Link) bool {
	return port.Index != c.hostEnd.Index && isForeign(c.host, port)
}

// formerMAC returns the MAC of a host interface in prevResult, or the zero MAC if prevResult contains none.
func (c *checker) formerMAC(name string) types.MAC {
	for _, in := range c.prev.Interfaces {
		if in.Sandbox == "" && in.Name == name {
			mac, _ := types.ParseMAC(in.MAC)
			return mac
		}
	}
	return ""
}

func (c *checker) repairPort(br nl.Link) error {
	if c.diffPort(br) == nil {
		return nil
	}
	if err := checkMaster(c.host, c.hostEnd, br); err != nil {
		return err
	}
	if err := configurePort(c.host, c.hostEnd, br, c.conf); err != nil || len(portVLANs(c.conf)) == 0 {
		return err
	}
	got, err := c.host.VLANs(c.hostEnd)
	for _, v := range c.extraVLANs(br, got) {
		err = errors.Join(err, c.host.DeleteVLAN(c.hostEnd, v.ID))
	}
	return err
}

// repairGateway restores the gateway addresses, forwarding, and the routes that the kernel added for the addresses. It
// replaces no address, even with forceAddress, because another network may have replaced this network's address.
func (c *checker) repairGateway(a *attachment) error {
	if c.diffGateway(a.bridge) == nil {
		return nil
	}
	c.conf.forceAddress = false
	dev, err := a.ensureGateway(c.ips())
	if err != nil {
		return err
	}
	errs := []error{attach.RestoreForwarding(c.host, dev, c.ips())}
	for _, ip := range c.routedIPs(dev) {
		if attach.DiffRoute(c.host, dev, ip.Address.Masked(), ip.Address.Addr()) != nil {
			route := nl.PrefixRoute(netip.PrefixFrom(ip.Gateway, ip.Address.Bits()))
			errs = append(errs, attach.RestoreRoute(c.host, dev, route, ip.Address.Addr()))
		}
	}
	return errors.Join(errs...)
}

// repairRules restores the sysctls of the host end and the MAC spoof check.
func (c *checker) repairRules() error {
	return errors.Join(sysctl.Ensure(c.r.HostNS, attach.HostSysctls(c.hostEnd.Name)...), c.withSpoofCheck(func(s macSpoofCheck) error {
		if checkMACSpoofCheck(s) == nil {
			return nil
		}
		return addMACSpoofCheck(&c.r.Undo, s)
	}))
}
