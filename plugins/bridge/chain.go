package main

import (
	"errors"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// connectExisting attaches an interface of the host to the bridge, for example a tap device. An
// earlier plugin in the chain created the interface and listed it in prevResult under this name
// (CONVENTIONS.md, "Chained Plugins"). The interface in the container belongs to that plugin.
// connectExisting adds addresses to it only if this configuration contains an IPAM plugin.
func (a *attachment) connectExisting(name string) (*types.Result, error) {
	var err error
	if a.hostEnd, err = a.host.Link(name); err != nil {
		return nil, err
	}
	if err := a.ensureBridge(); err != nil {
		return nil, err
	}
	if err := a.checkMaster(); err != nil {
		return nil, err
	}
	a.pending.AllowAllocation()
	if a.hostEnd.Master == 0 {
		a.r.Undo.Push("remove port "+a.hostEnd.Name+" from "+a.bridge.Name, func() error {
			return types.IgnoreNotExist(a.host.ClearMaster(a.hostEnd))
		})
	}
	if err := a.addPort(); err != nil {
		return nil, err
	}
	result := *a.prev
	result.IPs, result.Routes = slices.Clone(result.IPs), slices.Clone(result.Routes)
	result.Interfaces = append(slices.Clone(result.Interfaces), attach.Interface(a.bridge, ""))
	if err := a.configureExisting(&result); err != nil {
		return nil, err
	}
	return &result, a.host.AwaitRunning(a.hostEnd, portDeadline)
}

// checkMaster returns an error if the host end is a port of an interface other than the bridge.
func (a *attachment) checkMaster() error {
	hostEnd, br := a.hostEnd, a.bridge
	if hostEnd.Master == 0 || hostEnd.Master == br.Index {
		return nil
	}
	return types.Coded(types.CodeConfig, attach.LinkProblem(a.host, hostEnd, "master "+br.Name, "").
		Errorf("interface %q cannot become a port of %s: it is already a port of another interface; remove it there", hostEnd.Name, br.Name))
}

// configureExisting configures the container's interface for the lease, if there is an IPAM
// plugin, and configures the host for all addresses in the result.
func (a *attachment) configureExisting(result *types.Result) (err error) {
	index, inContainer := result.ContainerInterface(a.r.IfName)
	if inContainer && (a.pending != nil || a.conf.macSpoofCheck) {
		if a.eth, err = a.container.Link(a.r.IfName); err != nil {
			return err
		}
	}
	if a.pending != nil {
		if err := a.configureContainer(result, index); err != nil {
			return err
		}
	}
	if inContainer && a.conf.macSpoofCheck {
		if err := addMACSpoofCheck(&a.r.Undo, a.spoofCheck(a.eth.MAC)); err != nil {
			return err
		}
	}
	return a.configureHost(result)
}

// hostInterface returns the first interface in prev that is on the host and is not the bridge.
// ADD attaches that interface to the bridge. found is false if all interfaces are in the
// container, as in the result of loopback, which is the first plugin in Nomad's chain. prev may
// be nil.
func hostInterface(prev *types.Result, bridge string) (name string, found bool) {
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

// removeExistingPorts undoes connectExisting in DEL. It detaches the interfaces in prev from the
// bridge, but does not delete them, because they belong to the plugin that created them.
// attach.DelVeth deletes veth interfaces.
func removeExistingPorts(host *nl.Conn, prev *types.Result, bridge string) error {
	if prev == nil {
		return nil
	}
	var errs []error
	for _, in := range prev.Interfaces {
		if in.Sandbox != "" || in.Name == bridge {
			continue
		}
		l, err := host.Link(in.Name)
		if err == nil && l.Master != 0 && l.Kind != "veth" {
			var br nl.Link
			if br, err = host.LinkByIndex(l.Master); br.Name == bridge {
				err = host.ClearMaster(l)
			}
		}
		errs = append(errs, types.IgnoreNotExist(err))
	}
	return errors.Join(errs...)
}
