package main

import (
	"errors"
	"slices"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// connectExisting makes an interface of the host a port of the bridge: an earlier plugin of the
// chain made that interface, such as a tap device, and prev lists it under that name
// (CONVENTIONS.md, "Chained Plugins"). The interface in the container belongs to that plugin.
// It gets addresses here only if this configuration has an IPAM plugin.
func (a *attachment) connectExisting(prev *types.Result, name string) (*types.Result, error) {
	var err error
	if a.hostEnd, err = a.host.Link(name); err != nil {
		return nil, err
	}
	if a.bridge, err = ensureBridge(a.host, a.conf); err != nil {
		return nil, err
	}
	if a.hostEnd.Master != 0 && a.hostEnd.Master != a.bridge.Index {
		return nil, types.Errorf(types.CodeConfig, "interface %q already has a master, so that it cannot be a port of %s", a.hostEnd.Name, a.bridge.Name)
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
	result := *prev
	result.IPs, result.Routes = slices.Clone(prev.IPs), slices.Clone(prev.Routes)
	result.Interfaces = append(slices.Clone(prev.Interfaces), attach.Interface(a.bridge, ""))
	if err := a.configureExisting(&result); err != nil {
		return nil, err
	}
	return &result, a.host.AwaitRunning(a.hostEnd, portDeadline)
}

// configureExisting configures the interface of the container for the lease, if there is an
// IPAM plugin, and the host for all addresses of the result.
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
		if err := addMACSpoofCheck(&a.r.Undo, a.spoofCheck()); err != nil {
			return err
		}
	}
	return a.configureHost(result)
}

// hostInterface returns the first interface of prev that is on the host and is not the
// bridge: it becomes a port of the bridge. prev may be nil. A prev of loopback, which is the
// first plugin in the chain of Nomad, has interfaces in the container only.
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

// removeExistingPorts undoes connectExisting in DEL: the interfaces of prev are no longer
// ports of the bridge. It does not delete them, because they belong to the plugin that created
// them. It leaves veth interfaces to attach.DelVeth.
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
