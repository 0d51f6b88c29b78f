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

// What is here is shared by all containers of the node: it is ensured, and stays.

// ensureBridge makes the bridge, or brings the one that is there right where that
// disturbs nobody. A new bridge has its MAC pinned: otherwise the kernel gives it
// the lowest of its ports', and neighbours lose it each time that port goes.
func ensureBridge(node *nl.Conn, conf *config) (nl.Link, error) {
	br, made, err := node.EnsureBridge(nl.BridgeSpec{
		Name: conf.bridge, MAC: nl.RandomMAC(), MTU: conf.mtu, VLANFiltering: conf.filtering,
	})
	if err != nil {
		return nl.Link{}, lacksVLANs(err, conf)
	}
	if br.Kind != "bridge" {
		return nl.Link{}, types.Errorf(types.CodeConfig, "interface %q exists and is no bridge; give another name by the key \"bridge\"", conf.bridge)
	}
	settings := attach.HostSysctls(br.Name)
	// One that is down can be of a plugin that was killed when it had made it.
	if (made || !br.Up) && !conf.awaitDAD {
		settings = append(settings, noDAD(br.Name))
	}
	if err := sysctl.Ensure(node.NS(), settings...); err != nil {
		return nl.Link{}, err
	}
	if !made {
		if br, err = mend(node, br, conf); err != nil {
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

// noDAD makes the link-local address of an interface of ours usable at once: the node
// asks for its neighbours from it, and a container that is sent to before it sends
// would be found a second or two late.
func noDAD(name string) sysctl.Setting {
	return sysctl.Setting{Key: sysctl.IPv6(name, "accept_dad"), Value: "0", Optional: true}
}

// lacksVLANs explains the error of a kernel that knows no VLAN filtering.
func lacksVLANs(err error, conf *config) error {
	if conf.filtering && nl.Unsupported(err) {
		return types.Errorf(types.CodeConfig, "vlan and vlanTrunk need a kernel with CONFIG_BRIDGE_VLAN_FILTERING: %w", err)
	}
	return err
}

// mend brings a bridge right that somebody else made. Without ports it serves
// nobody yet; with ports it keeps its MTU (the kernel follows the smallest port's)
// and its filtering.
func mend(node *nl.Conn, br nl.Link, conf *config) (nl.Link, error) {
	var changes []nl.Change
	if br.MAC == zeroMAC { // a bridge that has lost its last port
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
		if err := mayFilter(br, ports); err != nil {
			return nl.Link{}, err
		}
		changes = append(changes, br.SetVLANFiltering())
	}
	if resize && len(ports) == 0 {
		changes = append(changes, br.SetMTU(conf.mtu))
		br.MTU = conf.mtu
	}
	return br, lacksVLANs(node.Apply(changes...), conf)
}

// mayFilter refuses to turn on the filtering of a bridge that is in use: its ports
// would be in VLANs that nobody chose.
func mayFilter(br nl.Link, ports []nl.Link) error {
	if len(ports) == 0 {
		return nil
	}
	return types.Errorf(types.CodeConfig,
		"bridge %s does not filter VLANs and has %d ports in use: run \"ip link set %s type bridge vlan_filtering 1\", or use another bridge for vlan and vlanTrunk",
		br.Name, len(ports), br.Name)
}

const zeroMAC = types.MAC("\x00\x00\x00\x00\x00\x00")

// plug makes a link a port of the bridge and sets it up.
func plug(node *nl.Conn, host, br nl.Link, conf *config) error {
	changes := []nl.Change{host.SetMaster(br), host.SetPort(conf.port)}
	changes = append(changes, vlanChanges(host, br, conf)...)
	changes = append(changes, host.SetUp())
	return lacksVLANs(node.Apply(changes...), conf)
}

// vlanChanges bring a fresh port from the bridge's default VLAN into its own.
func vlanChanges(port, br nl.Link, conf *config) []nl.Change {
	want := vlansOf(conf)
	if len(want) == 0 {
		return nil
	}
	var changes []nl.Change
	pvid := br.Bridge.DefaultPVID
	taken := slices.ContainsFunc(want, func(v nl.VLAN) bool { return v.ID == pvid })
	if pvid != 0 && !conf.keepDefaultVLAN && !taken {
		changes = append(changes, port.DelVLAN(pvid))
	}
	return append(changes, port.AddVLANs(want...))
}

// vlansOf is the membership of a container's port: its VLAN untagged, the trunk
// tagged; a trunk without a VLAN has 1 as its native one.
func vlansOf(conf *config) []nl.VLAN {
	var vlans []nl.VLAN
	native := conf.vlan
	if native == 0 && len(conf.trunk) > 0 {
		native = nativeVLAN
	}
	if native != 0 {
		vlans = append(vlans, nl.VLAN{ID: native, PVID: true, Untagged: true})
	}
	for _, id := range conf.trunk {
		if id != native {
			vlans = append(vlans, nl.VLAN{ID: id})
		}
	}
	return vlans
}

const nativeVLAN = 1

// warnOfBridge warns about a bridge that does not carry what its users expect.
func (a *attachment) warnOfBridge() error {
	stp, err := a.node.RunsSTP(a.bridge)
	if err != nil {
		return err
	}
	if stp {
		a.r.Warn("bridge %[1]s runs STP: the container reaches nobody until its port forwards, after twice the forward delay of the bridge; "+
			"\"ip link set %[1]s type bridge stp_state 0\" turns it off", a.bridge.Name)
	}
	if a.conf.mtu > a.bridge.MTU {
		a.r.Warn("mtu %d is above the %d of bridge %s: larger packets are lost on the way to its gateway and its other ports", a.conf.mtu, a.bridge.MTU, a.bridge.Name)
	}
	return nil
}

// warnOfOverlap tells of another interface of the node that has an address in the
// container's network: a bridge that was renamed in the configuration, an uplink. The
// node then sends packets for containers to either of them.
func (a *attachment) warnOfOverlap(dev nl.Link, ip types.IP) error {
	other, err := a.node.LinkTo(ip.Address.Addr())
	var refused syscall.Errno // a blackhole, say
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &refused) {
		return nil
	}
	if err != nil || other.Index == dev.Index {
		return err
	}
	addrs, err := a.node.Addrs(other)
	for _, h := range addrs {
		if h.Prefix.Overlaps(ip.Address) {
			a.r.Warn("the network %s of bridge %s is on interface %s as well (%s): the node reaches containers on one of them only; "+
				"remove the address that is not used, or take another subnet", ip.Address.Masked(), dev.Name, other.Name, h.Prefix)
		}
	}
	return err
}

// ensureGateway gives the gateway addresses of the container's IPs to the bridge or, with a
// VLAN, to an interface beside it that is in the VLAN, and returns that interface.
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
		if holds(have, gw) {
			continue
		}
		stale := conflicting(have, gateways, gw)
		if err := a.conf.mayReplace(dev, stale, gw); err != nil {
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
	// Setting the MAC, be it to what it was before our port came, stops the kernel
	// from following the ports.
	if err := a.node.Apply(append(changes, dev.SetMAC(dev.MAC))...); err != nil {
		return nl.Link{}, attach.ExplainIPv6Off(a.node, dev.Name, err)
	}
	return dev, a.node.AwaitDelivery(dev, addresses(gateways), portDeadline)
}

func holds(have []nl.Addr, p netip.Prefix) bool {
	return slices.ContainsFunc(have, func(a nl.Addr) bool { return a.Prefix == p })
}

// conflicting lists the addresses that cannot stand beside the gateway: in IPv4 any
// that is no gateway of this network, in IPv6 those of an overlapping prefix.
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

// mayReplace refuses to remove addresses that are in the way unless the configuration
// says so: nothing tells whether they are of an earlier network of this bridge, or of
// somebody who works on the node.
func (c *config) mayReplace(dev nl.Link, stale []netip.Prefix, gw netip.Prefix) error {
	if len(stale) == 0 || c.forceAddress {
		return nil
	}
	return types.Errorf(types.CodeConfig,
		"%q already has an IP address different from %s: it has %s; remove it (ip addr del %s dev %s), set \"forceAddress\": true to have it replaced, or use another bridge",
		dev.Name, gw, stale, stale[0], dev.Name)
}

// gatewayDevice is the bridge itself or, with a VLAN, one end of a veth pair whose
// other end is a port of the bridge in the VLAN. That pair is shared and stays.
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
	if errors.Is(err, fs.ErrExist) { // another ADD was first
		dev, err = a.node.Link(name)
	}
	if err != nil {
		return nl.Link{}, err
	}
	if dev.Kind != "veth" {
		return nl.Link{}, types.Errorf(types.CodeConfig, "interface %q exists and is not the gateway's of VLAN %d", name, a.conf.vlan)
	}
	port, err := a.node.VethPeer(dev, a.node)
	if err != nil || port.Master == a.bridge.Index && port.Running && dev.Up {
		return dev, err
	}
	return dev, a.finishVLANDevice(dev, port)
}

// finishVLANDevice makes the far end a port and waits until it forwards, also after
// somebody was stopped between making the pair and this, and beside another ADD that
// is at it.
func (a *attachment) finishVLANDevice(dev, port nl.Link) error {
	settings := append(attach.HostSysctls(dev.Name), attach.HostSysctls(port.Name)...)
	if !a.conf.awaitDAD {
		settings = append(settings, noDAD(dev.Name))
	}
	if err := sysctl.Set(a.node.NS(), settings...); err != nil {
		return err
	}
	if err := plug(a.node, port, a.bridge, a.conf.gatewayPort()); err != nil {
		return err
	}
	if err := a.node.Apply(dev.SetUp()); err != nil {
		return err
	}
	return a.node.AwaitRunning(port, portDeadline)
}

// gatewayPort is how the far end is plugged in.
func (c *config) gatewayPort() *config {
	return &config{vlan: c.vlan, keepDefaultVLAN: c.keepDefaultVLAN}
}

// vlanPortName names the far end of the gateway's pair, the same each time.
func vlanPortName(dev string) string {
	sum := sha256.Sum256([]byte(dev))
	return "veth" + hex.EncodeToString(sum[:4])
}
