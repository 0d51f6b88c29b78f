package main

import (
	"errors"
	"slices"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// chain puts an interface on the bridge that an earlier plugin made: the host side
// of its result, a tap device say (CONVENTIONS.md, "Chained Plugins"). The
// container's side is that plugin's; it gets addresses only if this configuration
// has an IPAM plugin.
func (a *attachment) chain(prev *types.Result, port string) (*types.Result, error) {
	var err error
	if a.host, err = a.node.Link(port); err != nil {
		return nil, err
	}
	if a.bridge, err = ensureBridge(a.node, a.conf); err != nil {
		return nil, err
	}
	if err := a.warnOfBridge(); err != nil {
		return nil, err
	}
	if a.host.Master != 0 && a.host.Master != a.bridge.Index {
		return nil, types.Errorf(types.CodeConfig, "interface %q has a master already: it cannot be a port of %s too", a.host.Name, a.bridge.Name)
	}
	if !ipam.OverLink(a.r) {
		a.lease.SendConfig()
	}
	if a.host.Master == 0 {
		a.r.Undo.Push("take "+a.host.Name+" out of "+a.bridge.Name, func() error { return a.node.Apply(a.host.ClearMaster().IfPresent()) })
	}
	if err := plug(a.node, a.host, a.bridge, a.conf); err != nil {
		return nil, err
	}
	result := *prev
	result.Interfaces = append(slices.Clone(prev.Interfaces), types.Interface{Name: a.bridge.Name, MAC: a.bridge.MAC, MTU: a.bridge.MTU})
	if err := a.chainLayer3(&result); err != nil {
		return nil, err
	}
	return &result, a.node.AwaitRunning(a.host, portDeadline)
}

// chainLayer3 gives the container's interface what IPAM says, or takes the
// addresses of the earlier plugin as they are.
func (a *attachment) chainLayer3(result *types.Result) error {
	index, inPod := result.Container(a.r.IfName)
	if a.lease != nil {
		if inPod {
			if err := a.prepareChained(); err != nil {
				return err
			}
		}
		lease, err := a.awaitLease()
		if err != nil {
			return err
		}
		ips, err := withGateways(lease.IPs, a.conf, index)
		if err != nil {
			return err
		}
		routes := withDefaults(ips, lease.Routes, a.conf)
		if inPod {
			spec := attach.PodSpec(a.eth.Name, a.conf.segment(), ips, routes)
			if err := attach.Apply(a.pod, a.eth, spec); err != nil {
				return err
			}
		}
		result.IPs, result.Routes = append(slices.Clone(result.IPs), ips...), append(slices.Clone(result.Routes), routes...)
		if result.DNS.IsZero() {
			result.DNS = lease.DNS
		}
	}
	if inPod && a.conf.macSpoofCheck {
		eth, err := a.pod.Link(a.r.IfName)
		if err != nil {
			return err
		}
		if err := addMACSpoofCheck(&a.r.Undo, a.spoofCheck(eth.MAC)); err != nil {
			return err
		}
	}
	return a.serve(result)
}

// prepareChained sets the container's interface up that an earlier plugin made.
func (a *attachment) prepareChained() (err error) {
	if a.eth, err = a.pod.Link(a.r.IfName); err != nil {
		return err
	}
	return attach.Prepare(a.pod, a.eth, attach.Baseline(a.eth.Name, a.conf.segment())...)
}

// portOf finds the interface of prev, which may be nil, that is to be a port of the
// bridge: the first one on the node. A prev with interfaces in the container only
// (loopback stands first in the chain that Nomad brings) names none.
func portOf(prev *types.Result, bridge string) (name string, found bool) {
	if prev == nil {
		return "", false
	}
	for _, in := range prev.Interfaces {
		if in.Sandbox == "" && in.Name != "" && in.Name != bridge {
			return in.Name, true
		}
	}
	return "", false
}

// withPrevious adds what prev, which may be nil, tells to the result of an ADD that made
// a pair. The own interfaces and addresses stand first: firewall of the reference plugins
// takes the first interface for the bridge, and its portmap the first address of a family
// that is in a sandbox for the container's. Addresses of prev that name no interface are
// dropped: the plugins behind would take them for the container's, too.
func withPrevious(own, prev *types.Result) *types.Result {
	if prev == nil {
		return own
	}
	offset := len(own.Interfaces)
	own.Interfaces = append(own.Interfaces, prev.Interfaces...)
	for _, ip := range prev.IPs {
		if ip.Interface != types.NoInterface {
			ip.Interface += offset
			own.IPs = append(own.IPs, ip)
		}
	}
	own.Routes = append(slices.Clone(own.Routes), prev.Routes...)
	if own.DNS.IsZero() {
		own.DNS = prev.DNS
	}
	return own
}

// unplug takes what chain plugged out of the bridge. The interface itself belongs to
// the plugin that made it; a veth that HostEnd would find is gone by now.
func unplug(node *nl.Conn, prev *types.Result, bridge string) error {
	if prev == nil {
		return nil
	}
	br, err := node.Link(bridge)
	if err != nil {
		return ignoreNotExist(err)
	}
	var errs []error
	for _, in := range prev.Interfaces {
		if in.Sandbox != "" || in.Name == bridge {
			continue
		}
		l, err := node.Link(in.Name)
		if err == nil && l.Master == br.Index && l.Kind != "veth" {
			err = node.Apply(l.ClearMaster().IfPresent())
		}
		errs = append(errs, ignoreNotExist(err))
	}
	return errors.Join(errs...)
}
