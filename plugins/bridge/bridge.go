package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// All containers on the bridge share the objects that the functions of this file make: the
// bridge, and the interfaces and addresses for the gateway. ADD makes them if they do not
// exist. DEL does not delete them.

// ensureBridge makes the bridge, sets it up and returns it. If the bridge exists, ensureBridge
// adapts it, but makes no change that interrupts traffic. A new bridge gets a random MAC.
// Otherwise the kernel gives the bridge the lowest MAC of its ports. The MAC then changes when
// that port is removed, and the containers have a wrong neighbor entry for their gateway.
func ensureBridge(node *nl.Conn, conf *config) (nl.Link, error) {
	br, made, err := node.EnsureBridge(nl.Bridge{
		Name: conf.bridge, MAC: nl.RandomMAC(), MTU: conf.mtu, VLANFiltering: conf.filtering,
	})
	if err != nil {
		return nl.Link{}, explainUnsupported(err, conf)
	}
	if br.Kind != "bridge" {
		return nl.Link{}, types.Errorf(types.CodeConfig, "interface %q exists and is no bridge; set another name with the key \"bridge\"", conf.bridge)
	}
	settings := attach.HostSysctls(br.Name)
	// A bridge that is down may have been made by a plugin that was killed afterwards.
	if (made || !br.Up) && !conf.awaitDAD {
		settings = append(settings, attach.NoDAD(br.Name))
	}
	if err := sysctl.Ensure(node.NS(), settings...); err != nil {
		return nl.Link{}, err
	}
	if !made {
		if br, err = adaptBridge(node, br, conf); err != nil {
			return nl.Link{}, err
		}
	}
	if conf.promisc && !br.Promisc {
		if err := node.SetPromisc(br); err != nil {
			return nl.Link{}, err
		}
	}
	if br.Up {
		return br, nil
	}
	return br, node.SetUp(br)
}

// explainUnsupported adds an explanation to the error of a kernel without VLAN filtering.
func explainUnsupported(err error, conf *config) error {
	if conf.filtering && errors.Is(err, errors.ErrUnsupported) {
		return types.Errorf(types.CodeConfig, "vlan and vlanTrunk need a kernel with CONFIG_BRIDGE_VLAN_FILTERING: %w", err)
	}
	return err
}

// adaptBridge adapts an existing bridge to the configuration. If the bridge has ports,
// adaptBridge does not set the MTU, because the kernel uses the smallest MTU of the ports. If
// the bridge has ports and lacks the configured VLAN filtering, adaptBridge returns an error.
func adaptBridge(node *nl.Conn, br nl.Link, conf *config) (nl.Link, error) {
	if br.MAC == zeroMAC { // the kernel sets it when a bridge loses its last port
		br.MAC = nl.RandomMAC()
		if err := node.SetMAC(br, br.MAC); err != nil {
			return nl.Link{}, err
		}
	}
	setFiltering := conf.filtering && !br.VLANFiltering
	setMTU := conf.mtu != 0 && conf.mtu != br.MTU
	if !setFiltering && !setMTU {
		return br, nil
	}
	ports, err := node.Ports(br)
	if err != nil {
		return nl.Link{}, err
	}
	if setFiltering {
		if err := checkNoPorts(br, ports); err != nil {
			return nl.Link{}, err
		}
		if err := node.SetVLANFiltering(br); err != nil {
			return nl.Link{}, explainUnsupported(err, conf)
		}
	}
	if setMTU && len(ports) == 0 {
		br.MTU = conf.mtu
		return br, node.SetMTU(br, conf.mtu)
	}
	return br, nil
}

// checkNoPorts returns an error if the bridge has ports. VLAN filtering cannot be turned on
// then: the kernel would put all ports into the default VLAN of the bridge, and nobody has
// configured that.
func checkNoPorts(br nl.Link, ports []nl.Link) error {
	if len(ports) == 0 {
		return nil
	}
	return types.Errorf(types.CodeConfig,
		"bridge %s does not filter VLANs and has %d ports in use: run \"ip link set %s type bridge vlan_filtering 1\", or use another bridge for vlan and vlanTrunk",
		br.Name, len(ports), br.Name)
}

// zeroMAC is the MAC of a bridge that has lost its last port.
const zeroMAC = types.MAC("\x00\x00\x00\x00\x00\x00")

// makePort makes the link host a port of the bridge and sets it up.
func makePort(node *nl.Conn, host, br nl.Link, conf *config) error {
	if err := node.SetMaster(host, br); err != nil {
		return err
	}
	if err := node.SetPort(host, conf.port); err != nil {
		return err
	}
	if err := setVLANs(node, host, br, conf); err != nil {
		return explainUnsupported(err, conf)
	}
	return node.SetUp(host)
}

// setVLANs moves a new port from the default VLAN of the bridge to the VLANs of the
// configuration.
func setVLANs(node *nl.Conn, port, br nl.Link, conf *config) error {
	vlans := vlansOf(conf)
	if len(vlans) == 0 {
		return nil
	}
	pvid := br.DefaultPVID
	configured := slices.ContainsFunc(vlans, func(v nl.VLAN) bool { return v.ID == pvid })
	if pvid != 0 && !conf.keepDefaultVLAN && !configured {
		if err := node.DeleteVLAN(port, pvid); err != nil {
			return err
		}
	}
	return node.AddVLANs(port, vlans...)
}

// vlansOf returns the VLANs of a container's port. The VLAN of the key "vlan" is untagged, and
// those of "vlanTrunk" are tagged. If only "vlanTrunk" is set, VLAN 1 is untagged.
func vlansOf(conf *config) []nl.VLAN {
	var vlans []nl.VLAN
	untagged := conf.vlan
	if untagged == 0 && len(conf.trunk) > 0 {
		untagged = defaultUntagged
	}
	if untagged != 0 {
		vlans = append(vlans, nl.VLAN{ID: untagged, PVID: true, Untagged: true})
	}
	for _, id := range conf.trunk {
		if id != untagged {
			vlans = append(vlans, nl.VLAN{ID: id})
		}
	}
	return vlans
}

// defaultUntagged is the untagged VLAN if only "vlanTrunk" is set.
const defaultUntagged = 1

// warnOfSTPAndMTU warns if the bridge runs the spanning tree protocol, and if its MTU is
// smaller than the configured MTU.
func (a *attachment) warnOfSTPAndMTU() error {
	stp, err := a.node.RunsSTP(a.bridge)
	if err != nil {
		return err
	}
	if stp {
		a.r.Warn("bridge %[1]s runs STP: the container cannot send or receive until its port forwards, after twice the forward delay of the bridge; "+
			"\"ip link set %[1]s type bridge stp_state 0\" turns STP off", a.bridge.Name)
	}
	if a.conf.mtu > a.bridge.MTU {
		a.r.Warn("mtu %d is larger than %d, the mtu of bridge %s: larger packets do not reach the gateway and the other ports", a.conf.mtu, a.bridge.MTU, a.bridge.Name)
	}
	return nil
}

// warnOfOverlap warns if another interface of the node has an address in the container's
// network, such as the uplink, or the bridge that the configuration named before. The node
// then sends the packets for the containers to one of the two interfaces only.
func (a *attachment) warnOfOverlap(dev nl.Link, ip types.IP) error {
	other, err := a.node.LinkTo(ip.Address.Addr())
	var refused syscall.Errno // for example, the kernel found a blackhole route
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &refused) {
		return nil
	}
	if err != nil || other.Index == dev.Index {
		return err
	}
	addrs, err := a.node.Addrs(other)
	for _, h := range addrs {
		if h.Prefix.Overlaps(ip.Address) {
			a.r.Warn("the network %s of bridge %s is also on interface %s (%s): the node reaches containers on only one of the two interfaces; "+
				"remove the unused address, or use another subnet", ip.Address.Masked(), dev.Name, other.Name, h.Prefix)
		}
	}
	return err
}

// ensureGateway adds the gateway addresses of the container's IPs to the gateway's interface
// (see gatewayDevice) and returns that interface.
func (a *attachment) ensureGateway(ips []types.IP) (nl.Link, error) {
	gateways := gatewaysOf(ips)
	dev, err := a.gatewayDevice()
	if err != nil {
		return nl.Link{}, err
	}
	existing, err := a.node.Addrs(dev)
	if err != nil {
		return nl.Link{}, err
	}
	var stale, missing []netip.Prefix
	for _, gw := range gateways {
		if hasAddr(existing, gw) {
			continue
		}
		replaced := conflicting(existing, gateways, gw)
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
	if err := replaceAddrs(a.node, dev, stale, missing); err != nil {
		return nl.Link{}, attach.ExplainIPv6Off(a.node, dev.Name, err)
	}
	return dev, a.node.AwaitDelivery(dev, addresses(gateways), portDeadline)
}

// replaceAddrs deletes the stale addresses of the gateway's interface, adds the missing ones,
// and sets its MAC. Another ADD may do the same at the same time.
func replaceAddrs(node *nl.Conn, dev nl.Link, stale, missing []netip.Prefix) error {
	for _, p := range stale {
		if err := types.IgnoreNotExist(node.DeleteAddr(dev, p)); err != nil {
			return err
		}
	}
	for _, gw := range missing {
		err := node.AddAddr(dev, nl.Addr{Prefix: gw, NoDAD: gw.Addr().Is6()})
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// Once the MAC was set, even to its present value, the kernel no longer changes it when
	// ports are added and removed.
	return node.SetMAC(dev, dev.MAC)
}

// hasAddr reports whether one of the addresses is p, with the same prefix length.
func hasAddr(addrs []nl.Addr, p netip.Prefix) bool {
	return slices.ContainsFunc(addrs, func(a nl.Addr) bool { return a.Prefix == p })
}

// conflicting returns the existing addresses that must not be on the same interface as the
// gateway address gw: for IPv4, every address that is not a gateway of this network; for IPv6,
// every such address whose prefix overlaps with that of gw.
func conflicting(existing []nl.Addr, gateways []netip.Prefix, gw netip.Prefix) []netip.Prefix {
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
// addresses may come from an earlier network of this bridge, but an administrator may also have
// added them.
func (c *config) checkMayReplace(dev nl.Link, stale []netip.Prefix, gw netip.Prefix) error {
	if len(stale) == 0 || c.forceAddress {
		return nil
	}
	return types.Errorf(types.CodeConfig,
		"%q already has an IP address different from %s: it has %s; remove it (ip addr del %s dev %s), set \"forceAddress\": true to have it replaced, or use another bridge",
		dev.Name, gw, stale, stale[0], dev.Name)
}

// gatewayDevice returns the interface for the gateway addresses. Without a VLAN, that is the
// bridge. With a VLAN, it is one end of a veth pair whose other end is a port of the bridge in
// the VLAN. gatewayDevice makes the pair if it does not exist. All containers in the VLAN share
// the pair, so a failed ADD does not delete it.
func (a *attachment) gatewayDevice() (nl.Link, error) {
	if a.conf.vlan == 0 {
		return a.bridge, nil
	}
	name := a.conf.gatewayName()
	dev, err := a.node.Link(name)
	if errors.Is(err, fs.ErrNotExist) {
		var notUndone undo.Stack
		dev, _, err = a.node.AddVeth(&notUndone, nl.Veth{
			Name: name, Peer: vlanPortName(name), PeerIn: a.node, MTU: a.bridge.MTU,
		})
	}
	if errors.Is(err, fs.ErrExist) { // another ADD has just made it
		dev, err = a.node.Link(name)
	}
	if err != nil {
		return nl.Link{}, err
	}
	if dev.Kind != "veth" {
		return nl.Link{}, types.Errorf(types.CodeConfig, "interface %q exists, but is not the veth that plumb makes for the gateway of VLAN %d; use another bridge name", name, a.conf.vlan)
	}
	port, err := a.node.VethPeer(dev, a.node)
	if err != nil || port.Master == a.bridge.Index && port.Running && dev.Up {
		return dev, err
	}
	return dev, a.configureVLANDevice(dev, port)
}

// configureVLANDevice makes port, the other end of dev, a port of the bridge, and waits until
// the port forwards. It can run several times for the same pair: an earlier ADD may have been
// killed before it finished, and another ADD may run at the same time.
func (a *attachment) configureVLANDevice(dev, port nl.Link) error {
	settings := append(attach.HostSysctls(dev.Name), attach.HostSysctls(port.Name)...)
	if !a.conf.awaitDAD {
		settings = append(settings, attach.NoDAD(dev.Name))
	}
	if err := sysctl.Set(a.node.NS(), settings...); err != nil {
		return err
	}
	if err := makePort(a.node, port, a.bridge, a.conf.gatewayPort()); err != nil {
		return err
	}
	if err := a.node.SetUp(dev); err != nil {
		return err
	}
	return a.node.AwaitRunning(port, portDeadline)
}

// gatewayPort returns the configuration of the gateway's port.
func (c *config) gatewayPort() *config {
	return &config{vlan: c.vlan, keepDefaultVLAN: c.keepDefaultVLAN}
}

// vlanPortName returns the name of the gateway's port. It is a hash of the name of the
// gateway's interface.
func vlanPortName(dev string) string {
	sum := sha256.Sum256([]byte(dev))
	return "veth" + hex.EncodeToString(sum[:4])
}
