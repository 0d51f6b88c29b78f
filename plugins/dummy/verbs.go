package main

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

const kind = "dummy"

// add creates the dummy interface while the IPAM plugin runs, and configures it for the lease. Duplicate
// address detection is off, because there is no other host on the link.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	p, err := attach.Begin(r)
	if err != nil {
		return nil, err
	}
	p.Pending.AllowAllocation()
	p.DAD = attach.DADOff
	p.Link, err = p.Container.AddDummy(&r.Undo, nl.NewLink{Name: r.IfName, MAC: conf.mac, MTU: conf.mtu})
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, types.Errorf(types.CodeConfig, "this kernel does not support dummy interfaces: %w; load the module dummy (CONFIG_DUMMY)", err)
	}
	if err != nil {
		return nil, err
	}
	return p.Configure(r)
}

// check compares the current state with what ADD created, and names every difference in one
// error. It does not compare MAC, MTU and sysctls, because a later plugin in the chain may change
// them.
func check(r *skel.Request, _ *config) error {
	return attach.CheckContainerLink(r, kind, nil)
}

func repair(r *skel.Request, _ *config) error {
	return attach.RepairContainerLink(r, kind, attach.DADOff)
}

// del deletes the interface. It does not read the plugin's configuration, which may have changed
// since ADD.
func del(r *skel.Request) error { return attach.DelContainerLink(r, kind) }

// status returns an error if an ADD would fail. It does not test whether the kernel supports dummy
// interfaces, because the kernel loads the module only when the first interface is created.
func status(r *skel.Request) error {
	_, err := parse(r)
	return ipam.Status(r, err)
}
