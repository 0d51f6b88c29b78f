package main

import (
	"errors"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

const kind = "ipvlan"

// add makes the ipvlan, while the IPAM plugin works, and configures it for the lease.
func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	prev, err := conf.useChained(r)
	if err != nil {
		return nil, err
	}
	on, err := conf.master.Prepare(r, conf.mtu)
	if err != nil {
		return nil, err
	}
	on.AnyGateway = conf.mode.Mode != "l2" // the kernel looks at the destination only (ipvlan_xmit_mode_l3)
	if prev != nil {
		on.UseLease(&ipam.Lease{IPs: prev.IPs, Routes: prev.Routes, DNS: prev.DNS})
	}
	if err := claimMode(r, on, conf); err != nil {
		return nil, err
	}
	eth, err := on.MasterConn.AddIPVlan(&r.Undo, nl.IPVlan{Name: r.IfName, In: on.Pod, Parent: on.Master, Mode: conf.mode, MTU: conf.mtu})
	if err != nil {
		return nil, explainRefusal(err, on.Master)
	}
	result, err := on.Configure(r, eth, conf.dad)
	return result, explainSameAddress(err, on.Master)
}

// claimMode returns an error if the master has ipvlans of another mode. It records the mode of the
// attachment.
func claimMode(r *skel.Request, on *attach.OnMaster, conf *config) error {
	visible, err := on.MasterConn.IPVlansOn(on.Master)
	if err != nil {
		return err
	}
	if on.Master.Kind == kind { // the kernel makes the new ipvlan on the parent of the master
		visible = append(visible, on.Master)
	}
	for _, l := range visible {
		mode, err := on.MasterConn.IPVlanMode(l)
		if err != nil {
			return err
		}
		if mode != conf.mode {
			return types.Errorf(types.CodeConfig, "the master has %s for the interface %s; all ipvlans of a master have the same, so that %s would change that", mode, l.Name, conf.mode)
		}
	}
	rec := record{Attachment: r.Attachment(), Parent: parentID(r, on.MasterConn, on.Master), IPVlanMode: conf.mode}
	if err := rec.write(r, conf.dataDir); err != nil {
		return err
	}
	return rec.conflict(r, conf.dataDir)
}

// explainRefusal explains the error of a kernel that makes no ipvlan on the master
// (ipvlan_port_create): EBUSY means that another device receives the master's packets.
func explainRefusal(err error, master nl.Link) error {
	switch {
	case errors.Is(err, syscall.EBUSY):
		return types.Errorf(types.CodeConfig, "master %s has macvlans, or is a port of a bridge or a bond; ipvlans need a master without: %w", master.Name, err)
	case errors.Is(err, errors.ErrUnsupported):
		return types.Errorf(types.CodeConfig, "the kernel has no ipvlan interfaces (CONFIG_IPVLAN): %w", err)
	}
	return err
}

// explainSameAddress explains the error of a kernel that adds no address that another ipvlan of the
// master has (ipvlan_addr4_validator_event).
func explainSameAddress(err error, master nl.Link) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return types.Errorf(attach.CodeDuplicate, "another ipvlan of master %s, in this container or another one of the node, has the address: %w", master.Name, err)
	}
	return err
}
