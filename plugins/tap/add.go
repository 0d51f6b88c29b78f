package main

import (
	"errors"
	"io/fs"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// add creates the tap while the IPAM plugin runs, and then configures it for the lease. The tap has no
// carrier until a program attaches to it, so add does not wait for duplicate address detection.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	p, err := attach.Begin(r)
	if err != nil {
		return nil, err
	}
	bridge, err := conf.findBridge(p.Container)
	if err != nil {
		return nil, err
	}
	p.Pending.AllowAllocation()
	if p.Link, err = conf.addTap(r, p.Container); err != nil {
		return nil, err
	}
	if conf.bridge != "" {
		if err := p.Container.SetMaster(p.Link, bridge); err != nil {
			return nil, err
		}
	}
	p.DAD, p.NoCarrier, p.NoRouter = attach.DADOn, true, true
	return p.Configure(r)
}

// addTap creates the tap and sets its MAC and MTU, which the request that creates a tap cannot contain.
func (conf *config) addTap(r *skel.Request, container *nl.Conn) (eth nl.Link, err error) {
	if conf.context == "" {
		eth, err = container.AddTap(&r.Undo, conf.tap)
	} else {
		eth, err = container.AddTapFunc(&r.Undo, r.IfName, func() error { return runInContext(execContextPath, conf.context, ipArgs(conf.tap)) })
	}
	if err == nil && conf.mac != "" {
		eth.MAC = conf.mac
		err = container.SetMAC(eth, conf.mac)
	}
	if err == nil && conf.mtu != 0 {
		eth.MTU = conf.mtu
		err = container.SetMTU(eth, conf.mtu)
	}
	return eth, err
}

// findBridge returns the configured bridge, or the zero Link if none is configured.
func (conf *config) findBridge(container *nl.Conn) (nl.Link, error) {
	if conf.bridge == "" {
		return nl.Link{}, nil
	}
	bridge, err := container.LinkByAnyName(conf.bridge)
	if errors.Is(err, fs.ErrNotExist) {
		return nl.Link{}, types.Errorf(types.CodeConfig, "the container has no bridge %s: %w", conf.bridge, err)
	}
	if err != nil {
		return nl.Link{}, types.Coded(types.CodeConfig, err)
	}
	if bridge.Kind != "bridge" {
		return nl.Link{}, types.Errorf(types.CodeConfig, "interface %s in the container is of kind %q, want \"bridge\"", conf.bridge, bridge.Kind)
	}
	return bridge, nil
}
