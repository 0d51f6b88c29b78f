package main

import (
	"errors"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

const kind = "dummy"

// add creates the dummy interface while the IPAM plugin runs, and then configures it for the lease. No
// other host is on the link, so there is no duplicate address detection.
func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	pending, err := ipam.Start(r)
	if err != nil {
		return nil, err
	}
	container, err := nl.Open(r.ContainerNS)
	if err != nil {
		return nil, err
	}
	if err := attach.EnsureNameFree(container, r.IfName); err != nil {
		return nil, err
	}
	pending.AllowAllocation()
	eth, err := container.AddDummy(&r.Undo, nl.NewLink{Name: r.IfName, MAC: conf.mac, MTU: conf.mtu})
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, types.Errorf(types.CodeConfig, "this kernel has no dummy interfaces; it needs the module dummy (CONFIG_DUMMY): %w", err)
	}
	if err != nil {
		return nil, err
	}
	return attach.ContainerLink{Container: container, Link: eth, DAD: attach.DADOff}.Configure(r, pending)
}

// check compares the present state with what ADD created, and names every difference in one
// error. It does not compare what a later plugin of the chain may change: MAC, MTU, sysctls.
func check(r *skel.Request) error {
	if _, err := parse(r); err != nil {
		return err
	}
	container, err := nl.Open(r.ContainerNS)
	if err != nil {
		return err
	}
	return attach.CheckContainerLink(r, container, kind, func(nl.Link) error { return nil })
}

// del does not read the configuration of the plugin, which may have changed since ADD.
func del(r *skel.Request) error { return attach.DelContainerLink(r, kind) }

// status returns an error if an ADD would fail. It cannot find out whether the kernel has dummy
// interfaces: the kernel loads the module when the first one is created.
func status(r *skel.Request) error {
	if _, err := parse(r); err != nil {
		return types.NotAvailable(err)
	}
	return ipam.Status(r)
}
