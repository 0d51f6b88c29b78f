package main

import (
	"errors"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

const kind = "ipvlan"

// add creates the ipvlan while the IPAM plugin runs, and then configures it for the lease.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	if err := conf.master.UsePrev(r); err != nil {
		return nil, err
	}
	setup, err := conf.master.Prepare(r, conf.mtu)
	if err != nil {
		return nil, err
	}
	setup.AnyGateway = conf.mode.Mode != "l2" // in l3 and l3s the kernel routes by destination only (ipvlan_xmit_mode_l3)
	if err := claimMode(r, setup, conf); err != nil {
		return nil, err
	}
	eth, err := setup.MasterConn.AddIPVlan(&r.Undo, nl.NewLink{Name: r.IfName, In: setup.Container, Parent: setup.Master, MTU: conf.mtu, TxQueues: conf.queues.TxQueues, RxQueues: conf.queues.RxQueues}, conf.mode)
	if err != nil {
		return nil, explainRefusal(err, setup.Master)
	}
	result, err := setup.Configure(r, eth, conf.dad)
	return result, explainSameAddress(err, setup.Master)
}

// claimMode records the mode of the attachment, and returns an error if ipvlans of another mode exist on the master.
func claimMode(r *skel.Request, setup *attach.MasterSetup, conf *config) error {
	visible, err := setup.MasterConn.IPVlansOn(setup.Master)
	if err != nil {
		return err
	}
	if setup.Master.Kind == kind { // the kernel creates the new ipvlan on the parent of the master
		visible = append(visible, setup.Master)
	}
	for _, l := range visible {
		mode, err := setup.MasterConn.IPVlanMode(l)
		if err != nil {
			return err
		}
		if mode != conf.mode {
			return types.Errorf(types.CodeConfig, "the master has %s for the interface %s; all ipvlans of a master have the same mode and flag, so a new ipvlan with %s would change those of that interface", mode, l.Name, conf.mode)
		}
	}
	rec := record{Attachment: r.Attachment(), Parent: parentID(r, setup.MasterConn, setup.Master), Mode: conf.mode.Mode, Flag: conf.mode.Flag}
	if err := rec.write(r, conf.dataDir); err != nil {
		return err
	}
	return rec.checkConflict(r, conf.dataDir)
}

// explainRefusal explains why the kernel did not create the ipvlan. EBUSY means that another device receives
// the master's packets (ipvlan_port_create).
func explainRefusal(err error, master nl.Link) error {
	switch {
	case errors.Is(err, syscall.EBUSY):
		return types.Errorf(types.CodeConfig, "master %s has macvlans, or is a port of a bridge or a bond: %w; use another master", master.Name, err)
	case errors.Is(err, errors.ErrUnsupported):
		return types.Errorf(types.CodeConfig, "the kernel does not support ipvlan interfaces (CONFIG_IPVLAN): %w", err)
	}
	return err
}

// explainSameAddress explains EADDRINUSE, with which the kernel rejects an address of another ipvlan on the
// same master (ipvlan_addr4_validator_event).
func explainSameAddress(err error, master nl.Link) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return types.Errorf(attach.CodeDuplicate, "another ipvlan of master %s, in this or another container of the host, already uses the address: %w", master.Name, err)
	}
	return err
}
