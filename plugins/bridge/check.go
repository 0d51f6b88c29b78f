package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// check compares what ADD made with what is there, and names every difference. What
// a later plugin of the chain may change (MAC, MTU, the container's sysctls) is not
// compared; what only plumb makes is looked for only where plumb made the pair.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	prev, err := r.MustPrev()
	if err != nil {
		return err
	}
	node, pod, err := nl.OpenBoth(r.Node, r.Pod)
	if err != nil {
		return err
	}
	reserved := ipam.StartCheck(r)
	c := &checker{r: r, conf: conf, node: node, pod: pod, prev: prev}
	host, missing := c.findHost()
	c.host = host
	changed := errors.Join(c.container(), c.bridge(missing))
	return types.Coded(codeChanged, errors.Join(reserved(), changed))
}

// codeChanged is the code of a CHECK that found a difference.
const codeChanged = 100

type checker struct {
	r         *skel.Request
	conf      *config
	node, pod *nl.Conn
	prev      *types.Result
	host      nl.Link // the port; zero: it was not found
}

func (c *checker) ips() []types.IP {
	return attach.IPsOf(c.prev, c.r.IfName)
}

func (c *checker) container() error {
	if c.conf.podDown {
		_, err := c.pod.Link(c.r.IfName)
		return err
	}
	spec, err := attach.FromResult(c.prev, c.r.IfName, c.r.NetNS)
	if err != nil {
		return err
	}
	if !attach.Ours(c.host) {
		spec = spec.ReferenceMade()
	}
	return attach.Diff(c.pod, c.r.IfName, spec)
}

// bridge looks at the node's side: the bridge, the port, which missing says could not be
// found, and what serves the addresses.
func (c *checker) bridge(missing error) error {
	br, err := c.node.Link(c.conf.bridge)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("bridge %s is gone", c.conf.bridge), missing)
	}
	if err != nil {
		return err
	}
	if br.Kind != "bridge" {
		return fmt.Errorf("interface %s is of kind %q, not a bridge", br.Name, br.Kind)
	}
	var errs []error
	if !br.Up {
		errs = append(errs, fmt.Errorf("bridge %s is down", br.Name))
	}
	if c.conf.promisc && !br.Promisc {
		errs = append(errs, fmt.Errorf("bridge %s is not in promiscuous mode", br.Name))
	}
	if c.conf.filtering && !br.Bridge.VLANFiltering {
		errs = append(errs, fmt.Errorf("bridge %s does not filter VLANs", br.Name))
	}
	if missing != nil {
		return errors.Join(append(errs, missing)...)
	}
	errs = append(errs, c.port(c.host, br), c.gateway(br))
	if attach.Ours(c.host) {
		errs = append(errs, c.rules(c.host))
	}
	return errors.Join(errs...)
}

// findHost finds the port: the host end of our pair, or what an earlier plugin made.
func (c *checker) findHost() (nl.Link, error) {
	host, err := attach.HostEnd(c.node, c.r.Attachment(), c.prev)
	if err == nil {
		return host, nil
	}
	port, found := portOf(c.prev, c.conf.bridge)
	if !found {
		return nl.Link{}, err
	}
	return c.node.Link(port)
}

func (c *checker) port(host, br nl.Link) error {
	var errs []error
	if host.Master != br.Index {
		return fmt.Errorf("interface %s is no port of bridge %s", host.Name, br.Name)
	}
	if !host.Up {
		errs = append(errs, fmt.Errorf("port %s is down", host.Name))
	}
	have, err := c.node.Port(host)
	if err != nil {
		return err
	}
	if have.Hairpin != c.conf.port.Hairpin {
		errs = append(errs, fmt.Errorf("port %s has hairpin %t, not %t", host.Name, have.Hairpin, c.conf.port.Hairpin))
	}
	if have.Isolated != c.conf.port.Isolated {
		errs = append(errs, fmt.Errorf("port %s has isolated %t, not %t", host.Name, have.Isolated, c.conf.port.Isolated))
	}
	return errors.Join(append(errs, c.vlans(host, br))...)
}

// vlans compares the VLANs of the container's port.
func (c *checker) vlans(host, br nl.Link) error {
	want := vlansOf(c.conf)
	if len(want) == 0 {
		return nil
	}
	have, err := c.node.VLANs(host)
	if err != nil {
		return err
	}
	errs := []error{missingVLANs(host, want, have)}
	for _, v := range have {
		wanted := slices.ContainsFunc(want, func(w nl.VLAN) bool { return w.ID == v.ID })
		kept := c.conf.keepDefaultVLAN && v.ID == br.Bridge.DefaultPVID
		if !wanted && !kept {
			errs = append(errs, fmt.Errorf("port %s is in %s", host.Name, v))
		}
	}
	return errors.Join(errs...)
}

func missingVLANs(port nl.Link, want, have []nl.VLAN) error {
	var errs []error
	for _, v := range want {
		if !slices.Contains(have, v) {
			errs = append(errs, fmt.Errorf("port %s is not in %s", port.Name, v))
		}
	}
	return errors.Join(errs...)
}

func (c *checker) gateway(br nl.Link) error {
	if !c.conf.isGateway {
		return nil
	}
	dev := br
	if c.conf.vlan != 0 {
		var err error
		if dev, err = c.node.Link(c.conf.gatewayDevice()); err != nil {
			return err
		}
	}
	have, err := c.node.Addrs(dev)
	if err != nil {
		return err
	}
	errs := []error{c.gatewayPort(dev, br), attach.DiffForwarding(c.node, c.ips())}
	for _, gw := range gatewaysOf(c.ips()) {
		if !holds(have, gw) {
			errs = append(errs, fmt.Errorf("interface %s has no gateway address %s", dev.Name, gw))
		}
	}
	return errors.Join(errs...)
}

// gatewayPort looks at how the gateway of a VLAN is plugged in. The port is shared:
// another network may have left it more VLANs.
func (c *checker) gatewayPort(dev, br nl.Link) error {
	if c.conf.vlan == 0 {
		return nil
	}
	port, err := c.node.VethPeer(dev, c.node)
	if err != nil {
		return err
	}
	if port.Master != br.Index {
		return fmt.Errorf("interface %s is no port of bridge %s", port.Name, br.Name)
	}
	var errs []error
	for _, l := range []nl.Link{dev, port} {
		if !l.Up {
			errs = append(errs, fmt.Errorf("interface %s is down", l.Name))
		}
	}
	have, err := c.node.VLANs(port)
	return errors.Join(append(errs, err, missingVLANs(port, vlansOf(c.conf.gatewayPort()), have))...)
}

// rules looks for what plumb alone leaves on the node for the attachment.
func (c *checker) rules(host nl.Link) error {
	errs := []error{sysctl.Diff(c.r.Node, append(attach.HostSysctls(host.Name), attach.HostSysctls(c.conf.bridge)...)...)}
	if c.conf.masquerade {
		owner := masq.Masq{Node: c.r.Node, Owner: c.r.Attachment(), Backend: c.conf.masqBackend}
		errs = append(errs, masq.Check(owner, attach.Prefixes(c.ips())))
	}
	// A prevResult without the container's interface is a difference that container names.
	if index, found := c.prev.Container(c.r.IfName); found && c.conf.macSpoofCheck {
		errs = append(errs, checkMACSpoofCheck(macSpoofCheck{
			node: c.r.Node, owner: c.r.Attachment(), port: host.Name, mac: c.prev.Interfaces[index].MAC,
		}))
	}
	return errors.Join(errs...)
}
