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

// All containers on the bridge share what the functions of this file make. It is made if it
// does not exist, and DEL does not delete it.

// ensureBridge makes the bridge, or adapts an existing one as far as that interrupts no
// traffic. A new bridge gets a MAC of its own. Without one, the kernel gives it the lowest
// MAC of its ports, so that the MAC changes when that port is removed, and the containers
// have a wrong neighbor entry for their gateway.
func ensureBridge(node *nl.Conn, conf *config) (nl.Link, error) {
	br, made, err := node.EnsureBridge(nl.BridgeSpec{
		Name: conf.bridge, MAC: nl.RandomMAC(), MTU: conf.mtu, VLANFiltering: conf.filtering,
	})
	if err != nil {
		return nl.Link{}, explainNoVLANs(err, conf)
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
	var changes []nl.Change
	if conf.promisc && !br.Promisc {
		changes = append(changes, br.SetFlag(nl.Promisc))
	}
	if !br.Up {
		changes = append(changes, br.SetUp())
	}
	return br, node.Apply(changes...)
}

// explainNoVLANs explains the error of a kernel without VLAN filtering.
func explainNoVLANs(err error, conf *config) error {
	if conf.filtering && nl.Unsupported(err) {
		return types.Errorf(types.CodeConfig, "vlan and vlanTrunk need a kernel with CONFIG_BRIDGE_VLAN_FILTERING: %w", err)
	}
	return err
}

// adaptBridge adapts an existing bridge to the configuration. If the bridge has ports, it
// keeps its MTU, because the kernel sets the smallest MTU of the ports, and missing VLAN
// filtering is an error.
func adaptBridge(node *nl.Conn, br nl.Link, conf *config) (nl.Link, error) {
	var changes []nl.Change
	if br.MAC == zeroMAC { // the kernel sets it when a bridge loses its last port
		br.MAC = nl.RandomMAC()
		changes = append(changes, br.SetMAC(br.MAC))
	}
	filter := conf.filtering && !br.Bridge.VLANFiltering
	resize := conf.mtu != 0 && conf.mtu != br.MTU
	if !filter && !resize {
		return br, node.Apply(changes...)
	}
	ports, err := node.Ports(br)
	if err != nil {
		return nl.Link{}, err
	}
	if filter {
		if err := checkMayFilter(br, ports); err != nil {
			return nl.Link{}, err
		}
		changes = append(changes, br.SetVLANFiltering())
	}
	if resize && len(ports) == 0 {
		changes = append(changes, br.SetMTU(conf.mtu))
		br.MTU = conf.mtu
	}
	return br, explainNoVLANs(node.Apply(changes...), conf)
}

// checkMayFilter returns an error if a bridge that is to filter VLANs has ports: all of them
// would be in the default VLAN of the bridge, which nobody has configured.
func checkMayFilter(br nl.Link, ports []nl.Link) error {
	if len(ports) == 0 {
		return nil
	}
	return types.Errorf(types.CodeConfig,
		"bridge %s does not filter VLANs and has %d ports in use: run \"ip link set %s type bridge vlan_filtering 1\", or use another bridge for vlan and vlanTrunk",
		br.Name, len(ports), br.Name)
}

const zeroMAC = types.MAC("\x00\x00\x00\x00\x00\x00")

// makePort makes a link a port of the bridge and sets it up.
func makePort(node *nl.Conn, host, br nl.Link, conf *config) error {
	changes := []nl.Change{host.SetMaster(br), host.SetPort(conf.port)}
	changes = append(changes, vlanChanges(host, br, conf)...)
	changes = append(changes, host.SetUp())
	return explainNoVLANs(node.Apply(changes...), conf)
}

// vlanChanges returns the changes that move a new port from the default VLAN of the bridge
// to the VLANs of the configuration.
func vlanChanges(port, br nl.Link, conf *config) []nl.Change {
	want := vlansOf(conf)
	if len(want) == 0 {
		return nil
	}
	var changes []nl.Change
	pvid := br.Bridge.DefaultPVID
	wanted := slices.ContainsFunc(want, func(v nl.VLAN) bool { return v.ID == pvid })
	if pvid != 0 && !conf.keepDefaultVLAN && !wanted {
		changes = append(changes, port.DelVLAN(pvid))
	}
	return append(changes, port.AddVLANs(want...))
}

// vlansOf returns the VLANs of a container's port: vlan is untagged, and those of vlanTrunk
// are tagged. With vlanTrunk and without vlan, VLAN 1 is untagged.
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

const defaultUntagged = 1 // VLAN

// warnOfSTPAndMTU warns of a bridge that runs the spanning tree protocol, and of one whose
// MTU is smaller than the configured one.
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
	var refused syscall.Errno // such as that of a blackhole route
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &refused) {
		return nil
	}
	if err != nil || other.Index == dev.Index {
		return err
	}
	addrs, err := a.node.Addrs(other)
	for _, h := range addrs {
		if h.Prefix.Overlaps(ip.Address) {
			a.r.Warn("the network %s of bridge %s is on interface %s as well (%s): the node reaches containers on one of the two only; "+
				"remove the address that is not used, or use another subnet", ip.Address.Masked(), dev.Name, other.Name, h.Prefix)
		}
	}
	return err
}

// ensureGateway adds the gateway addresses of the container's IPs to the bridge or, with a
// VLAN, to the interface of the node in that VLAN. It returns the interface.
func (a *attachment) ensureGateway(ips []types.IP) (nl.Link, error) {
	gateways := gatewaysOf(ips)
	dev, err := a.gatewayDevice()
	if err != nil {
		return nl.Link{}, err
	}
	have, err := a.node.Addrs(dev)
	if err != nil {
		return nl.Link{}, err
	}
	var changes []nl.Change
	for _, gw := range gateways {
		if hasAddr(have, gw) {
			continue
		}
		stale := conflicting(have, gateways, gw)
		if err := a.conf.checkMayReplace(dev, stale, gw); err != nil {
			return nl.Link{}, err
		}
		for _, p := range stale {
			changes = append(changes, dev.DelAddr(p).IfPresent())
		}
		changes = append(changes, dev.AddAddr(nl.Addr{Prefix: gw, NoDAD: gw.Addr().Is6()}).IfAbsent())
	}
	if len(changes) == 0 {
		return dev, nil
	}
	for _, ip := range ips {
		if err := a.warnOfOverlap(dev, ip); err != nil {
			return nl.Link{}, err
		}
	}
	// If the MAC is set, even to its present value, the kernel no longer changes it when
	// ports are added and removed.
	if err := a.node.Apply(append(changes, dev.SetMAC(dev.MAC))...); err != nil {
		return nl.Link{}, attach.ExplainIPv6Off(a.node, dev.Name, err)
	}
	return dev, a.node.AwaitDelivery(dev, addresses(gateways), portDeadline)
}

func hasAddr(have []nl.Addr, p netip.Prefix) bool {
	return slices.ContainsFunc(have, func(a nl.Addr) bool { return a.Prefix == p })
}

// conflicting returns the addresses that must not be on the same interface as the gateway
// address: every IPv4 address that is not a gateway of this network, and every IPv6 address
// of an overlapping prefix.
func conflicting(have []nl.Addr, gateways []netip.Prefix, gw netip.Prefix) []netip.Prefix {
	var stale []netip.Prefix
	for _, h := range have {
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

// checkMayReplace returns an error if there are conflicting addresses and forceAddress is
// not set: they may be of an earlier network of this bridge, but an administrator may have
// added them as well.
func (c *config) checkMayReplace(dev nl.Link, stale []netip.Prefix, gw netip.Prefix) error {
	if len(stale) == 0 || c.forceAddress {
		return nil
	}
	return types.Errorf(types.CodeConfig,
		"%q already has an IP address different from %s: it has %s; remove it (ip addr del %s dev %s), set \"forceAddress\": true to have it replaced, or use another bridge",
		dev.Name, gw, stale, stale[0], dev.Name)
}

// gatewayDevice returns the interface for the gateway addresses: the bridge or, with a VLAN,
// one end of a veth pair whose other end is a port of the bridge in the VLAN. It makes the
// pair if there is none. All containers in the VLAN share the pair, so that it is not undone.
func (a *attachment) gatewayDevice() (nl.Link, error) {
	if a.conf.vlan == 0 {
		return a.bridge, nil
	}
	name := a.conf.gatewayDevice()
	dev, err := a.node.Link(name)
	if errors.Is(err, fs.ErrNotExist) {
		var shared undo.Stack
		dev, _, err = a.node.AddVeth(&shared, nl.Veth{
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

// configureVLANDevice makes the other end of the pair a port and waits until it forwards. It
// can be repeated: an ADD may have been killed before it was done, and another ADD may be
// doing the same.
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
	if err := a.node.Apply(dev.SetUp()); err != nil {
		return err
	}
	return a.node.AwaitRunning(port, portDeadline)
}

// gatewayPort returns the configuration of the gateway's port.
func (c *config) gatewayPort() *config {
	return &config{vlan: c.vlan, keepDefaultVLAN: c.keepDefaultVLAN}
}

// vlanPortName returns the name of the gateway's port: always the same for an interface.
func vlanPortName(dev string) string {
	sum := sha256.Sum256([]byte(dev))
	return "veth" + hex.EncodeToString(sum[:4])
}
