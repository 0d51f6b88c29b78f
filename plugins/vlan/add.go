package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

const kind = "vlan"

// add makes the VLAN interface, while the IPAM plugin works, and configures it for the lease.
func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	on, err := conf.master.Prepare(r, conf.mtu)
	if err != nil {
		return nil, err
	}
	eth, err := on.MasterConn.AddVLANLink(&r.Undo, nl.VLANLink{
		Name: r.IfName, In: on.Pod, Parent: on.Master, ID: conf.id, Protocol: conf.protocol, MAC: conf.mac, MTU: conf.mtu,
	})
	if err != nil {
		return nil, explainRefusal(err, on, conf)
	}
	return on.Configure(r, eth, conf.dad)
}

// explainRefusal explains the error of a kernel that makes no VLAN interface on the master
// (vlan_check_real_dev): EEXIST means that the VLAN already has an interface there, EOPNOTSUPP that
// the kernel has no VLANs, or the master cannot carry any.
func explainRefusal(err error, on *attach.OnMaster, conf *config) error {
	switch {
	case errors.Is(err, fs.ErrExist):
		return types.Errorf(types.CodeConfig, "VLAN %d (%s) of master %s already has an interface, %s; the kernel makes only one: %w", conf.id, conf.protocol, on.Master.Name, holder(on, conf), err)
	case errors.Is(err, errors.ErrUnsupported):
		return types.Errorf(types.CodeConfig, "the kernel has no VLAN interfaces (CONFIG_VLAN_8021Q), or master %s can carry none: %w", on.Master.Name, err)
	}
	return err
}

// holder says where the interface is that the VLAN of the master already has.
func holder(on *attach.OnMaster, conf *config) string {
	l, err := on.MasterConn.FindVLANLink(on.Master, conf.protocol, conf.id)
	switch {
	case err != nil:
		return "probably in another container"
	case l.Alias != "":
		return fmt.Sprintf("%s with the alias %q", l.Name, l.Alias)
	}
	return l.Name
}
