package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// check compares the current state with what ADD created, and names every difference in one
// error. It does not compare the container's MAC, MTU and sysctls, because a later plugin in the
// chain may change them. If the reference plugin created the pair, check does not compare what
// only plumb creates.
func check(r *skel.Request, conf *config) error {
	a, err := open(r, conf)
	if err != nil {
		return err
	}
	reserved := ipam.StartCheck(r)
	changed := errors.Join(a.diffContainer(), a.diffHost())
	return types.Coded(types.CodeChanged, errors.Join(reserved(), changed))
}

// open returns the attachment for CHECK and REPAIR.
func open(r *skel.Request, conf *config) (*attachment, error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, err
	}
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return nil, err
	}
	a := &attachment{r: r, conf: conf, host: host, container: container, prev: prev}
	a.hostEnd, a.findErr = a.findHost()
	return a, nil
}

func (a *attachment) ips() []types.IP {
	return attach.IPsOf(a.prev, a.r.IfName)
}

func (a *attachment) diffContainer() error {
	if a.conf.containerDown {
		_, err := a.container.RequireLink(a.r.IfName)
		return err
	}
	_, err := attach.DiffContainer(a.r, a.container, a.containerSpec(), a.hostEnd)
	return err
}

// containerSpec returns the Spec of the container's interface for prevResult.
func (a *attachment) containerSpec() attach.Spec {
	return attach.ContainerSpec(a.r.IfName, a.conf.dadMode(), a.ips(), a.prev.Routes)
}

// diffHost compares the bridge, the port, the gateway and the rules.
func (a *attachment) diffHost() (err error) {
	a.bridge, err = a.host.LinkByAnyName(a.conf.bridge)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("bridge %s does not exist", a.conf.bridge), a.findErr)
	}
	if err != nil {
		return err
	}
	br := a.bridge
	if br.Kind != "bridge" {
		return fmt.Errorf("interface %s is of kind %q, want \"bridge\"", br.Name, br.Kind)
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(!br.Up, "%w", attach.LinkProblem(a.host, br, "up", "down").Errorf("bridge %s is down", br.Name))
	promisc := attach.LinkProblem(a.host, br, "promisc on", "promisc off")
	reportIf(a.conf.promisc && !br.Promisc, "%w", promisc.Errorf("bridge %s is not in promiscuous mode", br.Name))
	missing := a.conf.forwarding.Without(br.Forwarding)
	reportIf(missing != (nl.BridgeForwarding{}), "%w", attach.LinkProblem(a.host, br, "type bridge "+missing.String(), "").Errorf("bridge %s does not have %s", br.Name, missing))
	reportIf(a.conf.filtering && !br.VLANFiltering, "bridge %s does not filter VLANs", br.Name)
	errs = append(errs, a.diffUplink())
	if a.findErr != nil {
		return errors.Join(append(errs, a.findErr)...)
	}
	errs = append(errs, a.diffPort(), a.diffGateway())
	if attach.CreatedByPlumb(a.hostEnd) {
		errs = append(errs, a.diffRules())
	}
	if a.conf.masquerade.Enabled {
		errs = append(errs, masq.Check(a.conf.masq(a.r), attach.Prefixes(a.ips())))
	}
	return errors.Join(errs...)
}

// findHost returns the container's port, which is the host end of the attachment's pair or an
// interface that an earlier plugin created.
func (a *attachment) findHost() (nl.Link, error) {
	hostEnd, err := attach.HostEnd(a.host, a.r.Attachment(), a.prev)
	if err == nil {
		return hostEnd, nil
	}
	name, found := hostInterface(a.prev, a.conf.bridge)
	if !found {
		return nl.Link{}, err
	}
	return a.host.Link(name)
}

// diffMaster returns an error if l is not a port of the bridge. REPAIR does not take it from another interface.
func (a *attachment) diffMaster(l nl.Link) error {
	if l.Master == a.bridge.Index {
		return nil
	}
	err := attach.LinkProblem(a.host, l, "master "+a.bridge.Name, "").Errorf("interface %s is not a port of bridge %s", l.Name, a.bridge.Name)
	if l.Master != 0 {
		return types.WithRepair(types.RepairNever, err)
	}
	return err
}

// diffPort compares the container's port.
func (a *attachment) diffPort() error {
	hostEnd, want := a.hostEnd, a.conf.port
	if err := a.diffMaster(hostEnd); err != nil {
		// the kernel clears the flags of a port that gets another master
		lost := errors.Join(err, a.diffFlag("hairpin", want.Hairpin, false), a.diffFlag("isolated", want.Isolated, false))
		if hostEnd.Master != 0 {
			return types.WithRepair(types.RepairNever, lost)
		}
		return lost
	}
	got, err := a.host.Port(hostEnd)
	if err != nil {
		return err
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(!hostEnd.Up, "%w", attach.LinkProblem(a.host, hostEnd, "up", "down").Errorf("port %s is down", hostEnd.Name))
	errs = append(errs, a.diffFlag("hairpin", want.Hairpin, got.Hairpin), a.diffFlag("isolated", want.Isolated, got.Isolated))
	return errors.Join(append(errs, a.diffVLANs())...)
}

func (a *attachment) diffFlag(flag string, want, got bool) error {
	if want == got {
		return nil
	}
	words := map[bool]string{true: "type bridge_slave " + flag + " on", false: "type bridge_slave " + flag + " off"}
	return attach.LinkProblem(a.host, a.hostEnd, words[want], words[got]).Errorf("port %s has %s %t, want %t", a.hostEnd.Name, flag, got, want)
}

func (a *attachment) diffVLANs() error {
	want := portVLANs(a.conf)
	if len(want) == 0 {
		return nil
	}
	got, err := a.host.VLANs(a.hostEnd)
	if err != nil {
		return err
	}
	errs := []error{missingVLANs(a.hostEnd, want, got)}
	reportIf := types.ProblemsInto(&errs)
	for _, v := range a.extraVLANs(got) {
		reportIf(true, "port %s is in %s", a.hostEnd.Name, v)
	}
	return errors.Join(errs...)
}

// extraVLANs returns the VLANs of got in which the port must not be.
func (a *attachment) extraVLANs(got []nl.VLAN) []nl.VLAN {
	want := portVLANs(a.conf)
	return slices.DeleteFunc(slices.Clone(got), func(v nl.VLAN) bool {
		wanted := slices.ContainsFunc(want, func(w nl.VLAN) bool { return w.ID == v.ID })
		return wanted || a.conf.keepDefaultVLAN && v.ID == a.bridge.DefaultPVID
	})
}

// missingVLANs returns an error that names each VLAN of want that is not in got.
func missingVLANs(port nl.Link, want, got []nl.VLAN) error {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	for _, v := range want {
		reportIf(!slices.Contains(got, v), "port %s is not in %s", port.Name, v)
	}
	return errors.Join(errs...)
}

// diffGateway compares the gateway addresses, the host's forwarding and its routes to the container.
func (a *attachment) diffGateway() error {
	if !a.conf.isGateway {
		return nil
	}
	dev := a.bridge
	if a.conf.vlan != 0 {
		var err error
		if dev, err = a.host.Link(a.conf.gatewayName()); err != nil {
			return err
		}
	}
	got, err := a.host.Addrs(dev)
	if err != nil {
		return err
	}
	errs := []error{a.diffGatewayPort(dev), attach.DiffForwarding(a.host, dev, a.ips()), sysctl.Diff(a.r.HostNS, a.conf.gatewaySysctls(dev)...)}
	reportIf := types.ProblemsInto(&errs)
	for _, gw := range gatewaysOf(a.ips()) {
		missing := attach.MissingAddr(a.host, dev, nl.Addr{Prefix: gw})
		reportIf(!hasGateway(got, gw.Addr()), "%w", missing.Errorf("interface %s has no gateway address %s", dev.Name, gw))
	}
	if dev.Up && a.bridge.Up && errors.Join(errs...) == nil { // otherwise the kernel has deleted the routes as well
		errs = append(errs, a.diffHostRoutes(dev))
	}
	return errors.Join(errs...)
}

// diffHostRoutes compares the routes that the kernel added for the gateway addresses. It compares nothing if the gateway's
// interface belongs to a VRF, whose routes are in another table.
func (a *attachment) diffHostRoutes(dev nl.Link) error {
	var errs []error
	for _, ip := range a.routedIPs(dev) {
		errs = append(errs, attach.DiffRoute(a.host, dev, ip.Address.Masked(), ip.Address.Addr()))
	}
	return errors.Join(errs...)
}

// routedIPs returns the IPs to which the host's packets must leave through dev, the gateway's interface.
func (a *attachment) routedIPs(dev nl.Link) []types.IP {
	return slices.DeleteFunc(slices.Clone(a.ips()), func(ip types.IP) bool {
		return dev.Master != 0 || !ip.HasGateway() || !ip.Address.Masked().Contains(ip.Gateway)
	})
}

// diffGatewayPort compares the gateway's port if the gateway is in a VLAN. It ignores additional
// VLANs, because another network that shares the port may have added them.
func (a *attachment) diffGatewayPort(dev nl.Link) error {
	if a.conf.vlan == 0 {
		return nil
	}
	port, err := a.host.VethPeer(dev, a.host)
	if err != nil {
		return err
	}
	if err := a.diffMaster(port); err != nil {
		return err
	}
	got, err := a.host.VLANs(port)
	return errors.Join(attach.Diff(a.host, dev, attach.Spec{}), attach.Diff(a.host, port, attach.Spec{}),
		err, missingVLANs(port, portVLANs(a.conf.gatewayPort()), got))
}

// diffRules compares the sysctls and the MAC spoof check on the host, which only plumb creates in this form.
func (a *attachment) diffRules() error {
	settings, err := existingSysctls(a.host, a.bridge)
	return errors.Join(err, sysctl.Diff(a.r.HostNS, append(settings, attach.IgnoreRouters(a.hostEnd.Name))...), a.withSpoofCheck(checkMACSpoofCheck))
}

// withSpoofCheck calls f with the MAC spoof check, if the configuration contains it. If prevResult lacks the container's
// interface, which diffContainer reports, withSpoofCheck does nothing.
func (a *attachment) withSpoofCheck(f func(macSpoofCheck) error) error {
	index, found := a.prev.ContainerInterface(a.r.IfName)
	if !found || !a.conf.macSpoofCheck {
		return nil
	}
	mac, err := types.UnicastMAC(a.prev.Interfaces[index].MAC)
	if err != nil {
		return err
	}
	return f(a.spoofCheck(mac))
}
