package main

import (
	"cmp"
	"errors"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The bridge, and the gateway's interface and addresses, belong to all containers on the bridge. ADD creates them if
// they do not exist. DEL does not delete them.

// ensureBridge creates the bridge and sets it up. If the bridge exists, ensureBridge adapts it without interrupting
// traffic. A new bridge gets a MAC, because it would otherwise use the lowest MAC of its ports. When that port was removed,
// the bridge's MAC would change, and the containers' neighbor entries for the gateway would be wrong. REPAIR uses the former
// MAC, which is in the neighbor entries.
func (a *attachment) ensureBridge() error {
	host, conf := a.host, a.conf
	uplink, err := findUplink(host, conf)
	if err != nil {
		return err
	}
	mac := cmp.Or(a.formerMAC(conf.bridge), nl.RandomMAC())
	br, created, err := host.EnsureBridge(nl.Bridge{
		Name: conf.bridge, MAC: mac, MTU: conf.mtu, VLANFiltering: conf.filtering, Forwarding: conf.forwarding,
	})
	if err != nil {
		return explainUnsupported(err, conf)
	}
	if err := checkIsBridge(br, conf.bridge); err != nil {
		return err
	}
	settings := conf.newSysctls(br.Name)
	if !created && br.Up { // an ADD that was killed may have created a bridge that is down
		settings, err = existingSysctls(host, br)
	}
	if err == nil {
		err = sysctl.Ensure(host.NS(), settings...)
	}
	if err == nil && !created {
		br, err = adaptBridge(host, br, conf, mac)
	}
	if err == nil {
		err = ensureUplink(host, br, uplink, conf)
	}
	if err == nil && conf.promisc && !br.Promisc {
		err = host.SetPromisc(br)
	}
	if err == nil && !br.Up {
		err = host.SetUp(br)
	}
	a.bridge = br
	return err
}

// formerMAC returns the MAC of a host interface in prevResult, or the zero MAC if prevResult contains none.
func (a *attachment) formerMAC(name string) types.MAC {
	if a.prev == nil {
		return ""
	}
	for _, in := range a.prev.Interfaces {
		if in.Sandbox == "" && in.Name == name {
			mac, _ := types.ParseMAC(in.MAC)
			return mac
		}
	}
	return ""
}

// existingSysctls returns the sysctls to set on an existing bridge. It returns none if the bridge is the host's uplink,
// because a network card is its port, or because the host got an IPv6 default route from a router advertisement on it.
// Other bridges must ignore router advertisements, because containers can send them.
func existingSysctls(host *nl.Conn, br nl.Link) ([]sysctl.Setting, error) {
	acceptRA, err := sysctl.Get(host.NS(), sysctl.IPv6(br.Name, "accept_ra"))
	if err != nil || acceptRA == "0" {
		return nil, types.IgnoreNotExist(err) // without IPv6, the sysctl does not exist
	}
	uplinks, err := host.AdvertisedUplinks()
	if err != nil || slices.ContainsFunc(uplinks, func(l nl.Link) bool { return l.Index == br.Index }) {
		return nil, err
	}
	if faces, err := attach.FacesLAN(host, br); faces || err != nil {
		return nil, err
	}
	return []sysctl.Setting{attach.IgnoreRouters(br.Name)}, nil
}

// newSysctls returns the sysctls of a bridge or a gateway's interface that ADD creates.
func (c *config) newSysctls(name string) []sysctl.Setting {
	settings := []sysctl.Setting{attach.IgnoreRouters(name)}
	if !c.awaitDAD {
		settings = append(settings, attach.NoDAD(name))
	}
	return settings
}

// checkIsBridge returns an error if l, which Link or LinkByAnyName returned for the name of the bridge, is not a bridge.
func checkIsBridge(l nl.Link, name string) error {
	if l.Kind == "bridge" {
		return nil
	}
	if l.Name != name {
		return types.Errorf(types.CodeConfig, "bridge %q: interface %s has this alternative name; delete it (ip link property del dev %[2]s altname %[1]s), or set another name with the key \"bridge\"", name, l.Name)
	}
	return types.Errorf(types.CodeConfig, "interface %q exists and is not a bridge; set another name with the key \"bridge\"", l.Name)
}

// explainUnsupported explains the error that a kernel without VLAN filtering returns.
func explainUnsupported(err error, conf *config) error {
	if conf.filtering && errors.Is(err, errors.ErrUnsupported) {
		return types.Errorf(types.CodeConfig, "vlan and vlanTrunk need a kernel with CONFIG_BRIDGE_VLAN_FILTERING: %w", err)
	}
	return err
}

// adaptBridge adapts an existing bridge to the configuration. A bridge without a MAC gets mac. If the bridge has ports,
// adaptBridge does not set the MTU, because the kernel uses the smallest MTU of the ports. If
// the bridge has ports and lacks the configured VLAN filtering, or if it has ports of other programs and other settings of
// forwarding, adaptBridge returns an error.
func adaptBridge(host *nl.Conn, br nl.Link, conf *config, mac types.MAC) (nl.Link, error) {
	if br.MAC == zeroMAC { // the kernel clears the MAC when a bridge loses its last port
		br.MAC = mac
		if err := host.SetMAC(br, br.MAC); err != nil {
			return nl.Link{}, err
		}
	}
	setFiltering := conf.filtering && !br.VLANFiltering
	setMTU := conf.mtu != 0 && conf.mtu != br.MTU
	setForwarding := conf.forwarding.Without(br.Forwarding)
	if !setFiltering && !setMTU && setForwarding == (nl.BridgeForwarding{}) {
		return br, nil
	}
	ports, err := host.Ports(br)
	if err != nil {
		return nl.Link{}, err
	}
	if setForwarding != (nl.BridgeForwarding{}) {
		if err := conf.checkOwnPorts(host, br, ports); err != nil {
			return nl.Link{}, err
		}
		if err := host.SetForwarding(br, setForwarding); err != nil {
			return nl.Link{}, err
		}
	}
	if setFiltering {
		if err := checkNoPorts(br, ports); err != nil {
			return nl.Link{}, err
		}
		if err := host.SetVLANFiltering(br); err != nil {
			return nl.Link{}, explainUnsupported(err, conf)
		}
	}
	if setMTU && len(ports) == 0 {
		br.MTU = conf.mtu
		return br, host.SetMTU(br, conf.mtu)
	}
	return br, nil
}

// checkNoPorts returns an error if the bridge has ports. If ADD enabled VLAN filtering on such a bridge, the kernel would
// add all ports to the bridge's default VLAN, although the configuration does not request that.
func checkNoPorts(br nl.Link, ports []nl.Link) error {
	if len(ports) == 0 {
		return nil
	}
	return types.Errorf(types.CodeConfig,
		"bridge %s does not filter VLANs and is in use (ports: %d); run \"ip link set %s type bridge vlan_filtering 1\", "+
			"or use another bridge for vlan and vlanTrunk",
		br.Name, len(ports), br.Name)
}

// checkOwnPorts returns an error if the bridge has a port that plumb did not create, because the settings would change
// which frames of that port the bridge forwards.
func (c *config) checkOwnPorts(host *nl.Conn, br nl.Link, ports []nl.Link) error {
	for _, port := range ports {
		if port.Name != c.uplink && isForeign(host, port) {
			return types.Errorf(types.CodeConfig, "bridge %[1]s does not have %[2]s, and has the port %[3]s of another program; "+
				"run \"ip link set %[1]s type bridge %[2]s\", or use another bridge for groupFwdMask and mcastSnooping", br.Name, c.forwarding.Without(br.Forwarding), port.Name)
		}
	}
	return nil
}

// isForeign reports whether plumb did not create the port, neither for an attachment nor for the gateway of a VLAN.
func isForeign(host *nl.Conn, port nl.Link) bool {
	if attach.CreatedByPlumb(port) {
		return false
	}
	dev, err := host.VethPeer(port, host)
	return err != nil || port.Name != vlanPortName(dev.Name)
}

// zeroMAC is the MAC of a bridge that has lost its last port.
const zeroMAC = types.MAC("\x00\x00\x00\x00\x00\x00")

// configurePort attaches hostEnd to the bridge, configures it as a port, and sets it up.
func configurePort(host *nl.Conn, hostEnd, br nl.Link, conf *config) error {
	if err := pinMAC(host, hostEnd, br); err != nil {
		return err
	}
	if err := host.SetMaster(hostEnd, br); err != nil {
		return err
	}
	if conf.port != (nl.Port{}) || hostEnd.Master != 0 { // all flags of a new port are off
		if err := host.SetPort(hostEnd, conf.port); err != nil {
			return err
		}
	}
	if err := setVLANs(host, hostEnd, br, conf); err != nil {
		return explainUnsupported(err, conf)
	}
	return host.SetUp(hostEnd)
}

// pinMAC sets the bridge's MAC to its current value if the new port could change it. If the MAC was never set, the
// kernel replaces it with the MAC of the first port, and later with the MAC of each port whose MAC is lower. In all
// other cases pinMAC does nothing, because the kernel deletes the bridge's neighbor entries when the MAC is set.
func pinMAC(host *nl.Conn, port, br nl.Link) error {
	changes := port.MAC < br.MAC
	if !changes && !br.Running { // a bridge runs only if it has a port
		ports, err := host.Ports(br)
		if err != nil {
			return err
		}
		changes = len(ports) == 0
	}
	if !changes {
		return nil
	}
	return host.SetMAC(br, br.MAC)
}

// setVLANs moves a new port from the bridge's default VLAN to the configured VLANs.
func setVLANs(host *nl.Conn, port, br nl.Link, conf *config) error {
	vlans := portVLANs(conf)
	if len(vlans) == 0 {
		return nil
	}
	pvid := br.DefaultPVID
	configured := slices.ContainsFunc(vlans, func(v nl.VLAN) bool { return v.ID == pvid })
	if pvid != 0 && !conf.keepDefaultVLAN && !configured {
		if err := host.DeleteVLAN(port, pvid); err != nil {
			return err
		}
	}
	return host.AddVLANs(port, vlans...)
}

// portVLANs returns the VLANs of a container's port. The VLAN in the key "vlan" is untagged, and the VLANs in "vlanTrunk" are
// tagged.
func portVLANs(conf *config) []nl.VLAN {
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

// readBridge reads the bridge's MAC and MTU. Call it after the port is attached, because the kernel derives both from
// the ports unless they were set. readBridge warns if the bridge runs the spanning tree protocol, and if the bridge's
// MTU is smaller than the configured MTU.
func (a *attachment) readBridge() error {
	current, err := a.host.BridgeState(a.bridge)
	if err != nil {
		return err
	}
	a.bridge.MAC, a.bridge.MTU = current.MAC, current.MTU
	if current.STP {
		a.r.Warn("bridge %[1]s runs STP: the container cannot send or receive until its port forwards, after twice the forward delay of the bridge; "+
			"\"ip link set %[1]s type bridge stp_state 0\" turns STP off", a.bridge.Name)
	}
	if a.conf.mtu > a.bridge.MTU {
		a.r.Warn("mtu %d is larger than the mtu %d of bridge %s; larger packets do not reach the gateway and the other ports",
			a.conf.mtu, a.bridge.MTU, a.bridge.Name)
	}
	return nil
}

// addPort attaches the host end to the bridge, and reads the bridge's MAC and MTU.
func (a *attachment) addPort() error {
	if err := configurePort(a.host, a.hostEnd, a.bridge, a.conf); err != nil {
		return err
	}
	return a.readBridge()
}
