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
	c, err := newChecker(r, conf)
	if err != nil {
		return err
	}
	reserved := ipam.StartCheck(r)
	changed := errors.Join(c.diffContainer(), c.diffHost())
	return types.Coded(types.CodeChanged, errors.Join(reserved(), changed))
}

// A checker is the state of one CHECK or REPAIR.
type checker struct {
	r               *skel.Request
	conf            *config
	host, container *nl.Conn
	prev            *types.Result
	hostEnd         nl.Link // the container's port; it is the zero Link if the port was not found
	findErr         error   // why hostEnd was not found
}

func newChecker(r *skel.Request, conf *config) (*checker, error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, err
	}
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return nil, err
	}
	c := &checker{r: r, conf: conf, host: host, container: container, prev: prev}
	c.hostEnd, c.findErr = c.findHost()
	return c, nil
}

func (c *checker) ips() []types.IP {
	return attach.IPsOf(c.prev, c.r.IfName)
}

func (c *checker) diffContainer() error {
	if c.conf.containerDown {
		_, err := c.container.RequireLink(c.r.IfName)
		return err
	}
	_, err := attach.DiffContainer(c.r, c.container, c.containerSpec(), c.hostEnd)
	return err
}

// containerSpec returns the Spec of the container's interface for prevResult.
func (c *checker) containerSpec() attach.Spec {
	return attach.ContainerSpec(c.r.IfName, c.conf.dadMode(), c.ips(), c.prev.Routes)
}

// diffHost compares the bridge, the port, the gateway and the rules.
func (c *checker) diffHost() error {
	br, err := c.host.LinkByAnyName(c.conf.bridge)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("bridge %s does not exist", c.conf.bridge), c.findErr)
	}
	if err != nil {
		return err
	}
	if br.Kind != "bridge" {
		return fmt.Errorf("interface %s is of kind %q, want \"bridge\"", br.Name, br.Kind)
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(!br.Up, "%w", attach.LinkProblem(c.host, br, "up", "down").Errorf("bridge %s is down", br.Name))
	promisc := attach.LinkProblem(c.host, br, "promisc on", "promisc off")
	reportIf(c.conf.promisc && !br.Promisc, "%w", promisc.Errorf("bridge %s is not in promiscuous mode", br.Name))
	missing := c.conf.forwarding.Without(br.Forwarding)
	reportIf(missing != (nl.BridgeForwarding{}), "%w", attach.LinkProblem(c.host, br, "type bridge "+missing.String(), "").Errorf("bridge %s does not have %s", br.Name, missing))
	reportIf(c.conf.filtering && !br.VLANFiltering, "bridge %s does not filter VLANs", br.Name)
	errs = append(errs, c.diffUplink(br))
	if c.findErr != nil {
		return errors.Join(append(errs, c.findErr)...)
	}
	errs = append(errs, c.diffPort(br), c.diffGateway(br))
	if attach.CreatedByPlumb(c.hostEnd) {
		errs = append(errs, c.diffRules(br))
	}
	if c.conf.masquerade.Enabled {
		errs = append(errs, masq.Check(c.conf.masq(c.r), attach.Prefixes(c.ips())))
	}
	return errors.Join(errs...)
}

// findHost returns the container's port, which is the host end of the attachment's pair or an
// interface that an earlier plugin created.
func (c *checker) findHost() (nl.Link, error) {
	hostEnd, err := attach.HostEnd(c.host, c.r.Attachment(), c.prev)
	if err == nil {
		return hostEnd, nil
	}
	name, found := hostInterface(c.prev, c.conf.bridge)
	if !found {
		return nl.Link{}, err
	}
	return c.host.Link(name)
}

// diffPort compares the container's port.
func (c *checker) diffPort(br nl.Link) error {
	hostEnd, want := c.hostEnd, c.conf.port
	if hostEnd.Master != br.Index {
		return attach.LinkProblem(c.host, hostEnd, "master "+br.Name, "").Errorf("interface %s is not a port of bridge %s", hostEnd.Name, br.Name)
	}
	got, err := c.host.Port(hostEnd)
	if err != nil {
		return err
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(!hostEnd.Up, "%w", attach.LinkProblem(c.host, hostEnd, "up", "down").Errorf("port %s is down", hostEnd.Name))
	errs = append(errs, c.diffFlag("hairpin", want.Hairpin, got.Hairpin), c.diffFlag("isolated", want.Isolated, got.Isolated))
	return errors.Join(append(errs, c.diffVLANs(br))...)
}

func (c *checker) diffFlag(flag string, want, got bool) error {
	if want == got {
		return nil
	}
	words := map[bool]string{true: "type bridge_slave " + flag + " on", false: "type bridge_slave " + flag + " off"}
	return attach.LinkProblem(c.host, c.hostEnd, words[want], words[got]).Errorf("port %s has %s %t, want %t", c.hostEnd.Name, flag, got, want)
}

func (c *checker) diffVLANs(br nl.Link) error {
	want := portVLANs(c.conf)
	if len(want) == 0 {
		return nil
	}
	got, err := c.host.VLANs(c.hostEnd)
	if err != nil {
		return err
	}
	errs := []error{missingVLANs(c.hostEnd, want, got)}
	reportIf := types.ProblemsInto(&errs)
	for _, v := range c.extraVLANs(br, got) {
		reportIf(true, "port %s is in %s", c.hostEnd.Name, v)
	}
	return errors.Join(errs...)
}

// extraVLANs returns the VLANs of got in which the port must not be.
func (c *checker) extraVLANs(br nl.Link, got []nl.VLAN) []nl.VLAN {
	want := portVLANs(c.conf)
	return slices.DeleteFunc(slices.Clone(got), func(v nl.VLAN) bool {
		wanted := slices.ContainsFunc(want, func(w nl.VLAN) bool { return w.ID == v.ID })
		return wanted || c.conf.keepDefaultVLAN && v.ID == br.DefaultPVID
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
func (c *checker) diffGateway(br nl.Link) error {
	if !c.conf.isGateway {
		return nil
	}
	dev := br
	if c.conf.vlan != 0 {
		var err error
		if dev, err = c.host.Link(c.conf.gatewayName()); err != nil {
			return err
		}
	}
	got, err := c.host.Addrs(dev)
	if err != nil {
		return err
	}
	errs := []error{c.diffGatewayPort(dev, br), attach.DiffForwarding(c.host, dev, c.ips()), sysctl.Diff(c.r.HostNS, c.conf.gatewaySysctls(dev)...)}
	reportIf := types.ProblemsInto(&errs)
	for _, gw := range gatewaysOf(c.ips()) {
		missing := attach.MissingAddr(c.host, dev, nl.Addr{Prefix: gw})
		reportIf(!hasGateway(got, gw.Addr()), "%w", missing.Errorf("interface %s has no gateway address %s", dev.Name, gw))
	}
	if dev.Up && br.Up && errors.Join(errs...) == nil { // otherwise the kernel has deleted the routes as well
		errs = append(errs, c.diffHostRoutes(dev))
	}
	return errors.Join(errs...)
}

// diffHostRoutes compares the routes that the kernel added for the gateway addresses. It compares nothing if the gateway's
// interface belongs to a VRF, whose routes are in another table.
func (c *checker) diffHostRoutes(dev nl.Link) error {
	var errs []error
	for _, ip := range c.routedIPs(dev) {
		errs = append(errs, attach.DiffRoute(c.host, dev, ip.Address.Masked(), ip.Address.Addr()))
	}
	return errors.Join(errs...)
}

// routedIPs returns the IPs to which the host's packets must leave through dev, the gateway's interface.
func (c *checker) routedIPs(dev nl.Link) []types.IP {
	return slices.DeleteFunc(slices.Clone(c.ips()), func(ip types.IP) bool {
		return dev.Master != 0 || !ip.HasGateway() || !ip.Address.Masked().Contains(ip.Gateway)
	})
}

// diffGatewayPort compares the gateway's port if the gateway is in a VLAN. It ignores additional
// VLANs, because another network that shares the port may have added them.
func (c *checker) diffGatewayPort(dev, br nl.Link) error {
	if c.conf.vlan == 0 {
		return nil
	}
	port, err := c.host.VethPeer(dev, c.host)
	if err != nil {
		return err
	}
	if port.Master != br.Index {
		return attach.LinkProblem(c.host, port, "master "+br.Name, "").Errorf("interface %s is not a port of bridge %s", port.Name, br.Name)
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	for _, l := range []nl.Link{dev, port} {
		reportIf(!l.Up, "%w", attach.LinkProblem(c.host, l, "up", "down").Errorf("interface %s is down", l.Name))
	}
	got, err := c.host.VLANs(port)
	return errors.Join(append(errs, err, missingVLANs(port, portVLANs(c.conf.gatewayPort()), got))...)
}

// diffRules compares the sysctls and the MAC spoof check on the host, which only plumb creates in this form.
func (c *checker) diffRules(br nl.Link) error {
	settings, err := existingSysctls(c.host, br)
	return errors.Join(err, sysctl.Diff(c.r.HostNS, append(attach.HostSysctls(c.hostEnd.Name), settings...)...), c.withSpoofCheck(checkMACSpoofCheck))
}

// withSpoofCheck calls f with the MAC spoof check, if the configuration contains it. If prevResult lacks the container's
// interface, which diffContainer reports, withSpoofCheck does nothing.
func (c *checker) withSpoofCheck(f func(macSpoofCheck) error) error {
	index, found := c.prev.ContainerInterface(c.r.IfName)
	if !found || !c.conf.macSpoofCheck {
		return nil
	}
	mac, err := types.UnicastMAC(c.prev.Interfaces[index].MAC)
	if err != nil {
		return err
	}
	return f(macSpoofCheck{host: c.r.HostNS, owner: c.r.Attachment(), port: c.hostEnd.Name, mac: mac, onlyFree: c.r.IsRepair()})
}
