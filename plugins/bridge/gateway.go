package main

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// setGateways sets the first address of the network as the gateway of each IP without a gateway,
// if the bridge is the gateway. It returns an error if a gateway is of the other family, or is an
// address of the container as well.
func (c *config) setGateways(ips []types.IP) error {
	if !c.isGateway {
		return nil
	}
	for i := range ips {
		if ip := &ips[i]; !ip.HasGateway() {
			ip.Gateway = ip.Address.Masked().Addr().Next()
		}
	}
	for _, ip := range ips {
		if ip.Gateway.Is4() != ip.Address.Addr().Is4() {
			return types.Errorf(types.CodeConfig, "address %s has the gateway %s of the other family", ip.Address, ip.Gateway)
		}
		isGateway := func(other types.IP) bool { return other.Address.Addr() == ip.Gateway }
		if slices.ContainsFunc(ips, isGateway) {
			return types.Errorf(types.CodeConfig, "%s is the address of the container and of its gateway, bridge %s; "+
				"change one of them (\"gateway\" in \"ipam\")", ip.Gateway, c.bridge)
		}
	}
	return nil
}

// withDefaultRoutes adds the default routes that isDefaultGateway requires. It adds none for a
// family for which the IPAM plugin has returned a default route.
func (c *config) withDefaultRoutes(ips []types.IP, routes []types.Route) []types.Route {
	if !c.isDefaultGateway {
		return routes
	}
	for _, unspecified := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		dst := netip.PrefixFrom(unspecified, 0)
		gw := attach.FirstGateway(ips, dst)
		exists := slices.ContainsFunc(routes, func(r types.Route) bool { return r.Dst == dst && r.Table == 0 })
		if gw.IsValid() && !exists {
			routes = append(routes, types.Route{Dst: dst, GW: gw})
		}
	}
	return routes
}

// gatewaysOf returns the gateways of the IPs without duplicates, as addresses for the gateway's
// interface. Each gateway gets the prefix length of its IP.
func gatewaysOf(ips []types.IP) []netip.Prefix {
	var gateways []netip.Prefix
	for _, ip := range ips {
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if gw.IsValid() && ip.HasGateway() && !slices.Contains(gateways, gw) {
			gateways = append(gateways, gw)
		}
	}
	return gateways
}

// gatewaySysctls returns the sysctls of the gateway's interface that depend on the configuration.
func (c *config) gatewaySysctls(dev nl.Link) []sysctl.Setting {
	if !c.proxyARP {
		return nil
	}
	return []sysctl.Setting{{Key: sysctl.IPv4(dev.Name, "proxy_arp"), Value: "1"}}
}

// ensureGateway adds the gateway addresses of the container's IPs to the gateway's interface
// (see gatewayDevice), writes its sysctls, and returns that interface.
func (a *attachment) ensureGateway(ips []types.IP) (nl.Link, error) {
	gateways := gatewaysOf(ips)
	a.warnOfUnreachable(ips, gateways)
	dev, err := a.gatewayDevice()
	if err != nil {
		return nl.Link{}, err
	}
	if err := sysctl.Ensure(a.host.NS(), a.conf.gatewaySysctls(dev)...); err != nil {
		return nl.Link{}, err
	}
	existing, err := a.host.Addrs(dev)
	if err != nil {
		return nl.Link{}, err
	}
	var stale, missing []netip.Prefix
	for _, gw := range gateways {
		exists := slices.ContainsFunc(existing, func(a nl.Addr) bool { return a.Prefix == gw })
		if exists || a.r.IsRepair() && hasGateway(existing, gw.Addr()) {
			continue
		}
		replaced := conflictingAddrs(existing, gateways, gw)
		if err := a.conf.checkMayReplace(dev, replaced, gw); err != nil {
			return nl.Link{}, err
		}
		stale, missing = append(stale, replaced...), append(missing, gw)
	}
	if len(missing) == 0 {
		return dev, nil
	}
	for _, ip := range ips {
		if err := a.warnOfOverlap(dev, ip); err != nil {
			return nl.Link{}, err
		}
	}
	if err := replaceAddrs(a.host, dev, stale, missing); err != nil {
		return nl.Link{}, attach.ExplainIPv6Off(a.host, dev.Name, err)
	}
	return dev, a.host.AwaitDelivery(dev, addresses(gateways), portDeadline)
}

// replaceAddrs deletes the stale addresses of the gateway's interface, adds the missing ones,
// and sets its MAC. Another ADD may do the same at the same time.
func replaceAddrs(host *nl.Conn, dev nl.Link, stale, missing []netip.Prefix) error {
	for _, p := range stale {
		if err := types.IgnoreNotExist(host.DeleteAddr(dev, p)); err != nil {
			return err
		}
	}
	for _, gw := range missing {
		err := host.AddAddr(dev, nl.Addr{Prefix: gw, NoDAD: gw.Addr().Is6()})
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// After the MAC was set, even to its current value, the kernel no longer changes it when
	// ports are added and removed.
	return host.SetMAC(dev, dev.MAC)
}

// hasGateway reports whether one of the addresses is addr with any prefix length. After the network was enlarged, the bridge
// has the new prefix length, and the gateway still works for the containers with the old one.
func hasGateway(addrs []nl.Addr, addr netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr() == addr })
}

// conflictingAddrs returns the existing addresses of gw's family that must not be on the same interface
// as the gateway address gw. These are the addresses that are not gateways of this network. IPv6
// addresses conflict only if their prefix overlaps with gw's prefix.
func conflictingAddrs(existing []nl.Addr, gateways []netip.Prefix, gw netip.Prefix) []netip.Prefix {
	var stale []netip.Prefix
	for _, h := range existing {
		sameFamily := h.Prefix.Addr().Is4() == gw.Addr().Is4()
		if !sameFamily || slices.Contains(gateways, h.Prefix) {
			continue
		}
		if gw.Addr().Is4() || h.Prefix.Overlaps(gw) {
			stale = append(stale, h.Prefix)
		}
	}
	return stale
}

// checkMayReplace returns an error if stale is not empty and forceAddress is not set. The stale
// addresses may come from a former configuration of this bridge, but an administrator may have
// added them as well.
func (c *config) checkMayReplace(dev nl.Link, stale []netip.Prefix, gw netip.Prefix) error {
	if len(stale) == 0 || c.forceAddress {
		return nil
	}
	return types.Errorf(types.CodeConfig,
		"%q already has an IP address different from %s: it has %s; remove it (ip addr del %s dev %s), set \"forceAddress\": true to have it replaced, or use another bridge",
		dev.Name, gw, stale, stale[0], dev.Name)
}

// gatewayDevice returns the interface for the gateway addresses. Without a VLAN, it is the
// bridge. With a VLAN, it is one end of a veth pair whose other end is a port of the bridge in
// the VLAN. gatewayDevice creates the pair if it does not exist. A failed ADD does not delete the
// pair, because all containers in the VLAN share it.
func (a *attachment) gatewayDevice() (nl.Link, error) {
	if a.conf.vlan == 0 {
		return a.bridge, nil
	}
	name := a.conf.gatewayName()
	dev, err := a.host.Link(name)
	if errors.Is(err, fs.ErrNotExist) {
		var notUndone undo.Stack
		dev, _, err = a.host.AddVeth(&notUndone, nl.Veth{
			Name: name, MAC: a.formerMAC(name), Peer: vlanPortName(name), PeerIn: a.host, MTU: a.bridge.MTU,
		})
	}
	if errors.Is(err, fs.ErrExist) { // another ADD has just created the pair
		dev, err = a.host.Link(name)
	}
	if err != nil {
		return nl.Link{}, err
	}
	if dev.Kind != "veth" {
		return nl.Link{}, types.Errorf(types.CodeConfig, "interface %q exists, but is not the veth that plumb creates for the gateway of VLAN %d; use another bridge name", name, a.conf.vlan)
	}
	port, err := a.host.VethPeer(dev, a.host)
	if err != nil || port.Master == a.bridge.Index && port.Running && dev.Up && !a.r.IsRepair() { // REPAIR found a difference
		return dev, err
	}
	return dev, a.configureVLANDevice(dev, port)
}

// configureVLANDevice attaches port, the other end of dev, to the bridge, and waits until the
// port forwards. It can run several times for the same pair, because an earlier ADD may have been
// killed before it finished, and another ADD may run at the same time.
func (a *attachment) configureVLANDevice(dev, port nl.Link) error {
	settings := append(a.conf.newSysctls(dev.Name), attach.IgnoreRouters(port.Name))
	if err := sysctl.Set(a.host.NS(), settings...); err != nil {
		return err
	}
	if err := configurePort(a.host, port, a.bridge, a.conf.gatewayPort()); err != nil {
		return err
	}
	if err := a.host.SetUp(dev); err != nil {
		return err
	}
	return a.host.AwaitRunning(port, portDeadline)
}

// gatewayPort returns the configuration of the gateway's port.
func (c *config) gatewayPort() *config {
	return &config{vlan: c.vlan, keepDefaultVLAN: c.keepDefaultVLAN}
}

// vlanPortName returns the name of the gateway's port, which contains a hash of the name of the
// gateway's interface.
func vlanPortName(dev string) string {
	return "veth" + types.ShortHash(dev)[:8]
}

// warnOfUnreachable warns of IPs that are not in the network of any gateway, because the gateway
// addresses give the host no route to them. The reference plugin accepts such gateways as well.
func (a *attachment) warnOfUnreachable(ips []types.IP, gateways []netip.Prefix) {
	for _, ip := range ips {
		if ip.HasGateway() && !slices.ContainsFunc(gateways, func(gw netip.Prefix) bool { return gw.Contains(ip.Address.Addr()) }) {
			a.r.Warn("the gateway %s is outside the network of address %s: the gateway address gives the host no route to the container; "+
				"correct \"gateway\" in \"ipam\", or add such a route", ip.Gateway, ip.Address)
		}
	}
}

// warnOfOverlap warns if another interface of the host has an address in the container's
// network, for example the uplink, or the bridge that the configuration named before. In that
// case the host sends packets for the containers to only one of the two interfaces.
func (a *attachment) warnOfOverlap(dev nl.Link, ip types.IP) error {
	other, err := a.host.LinkTo(ip.Address.Addr())
	var refused syscall.Errno // for example, the kernel found a blackhole route
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &refused) {
		return nil
	}
	if err != nil || other.Index == dev.Index {
		return err
	}
	addrs, err := a.host.Addrs(other)
	for _, h := range addrs {
		if h.Prefix.Overlaps(ip.Address) {
			a.r.Warn("the network %s of bridge %s is also on interface %s (%s): the host reaches containers on only one of the two interfaces; "+
				"remove the unused address, or use another subnet", ip.Address.Masked(), dev.Name, other.Name, h.Prefix)
		}
	}
	return err
}
