package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

const kind = "vlan"

// add creates the VLAN interface while the IPAM plugin runs, and then configures it for the lease.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	if conf.inChain {
		return addInChain(r, conf)
	}
	setup, err := conf.master.Prepare(r, conf.mtu)
	if err != nil {
		return nil, err
	}
	eth, err := conf.addLink(r, setup)
	if err != nil {
		return nil, err
	}
	return setup.Configure(r, eth, conf.dad)
}

func (conf *config) addLink(r *skel.Request, setup *attach.MasterSetup) (nl.Link, error) {
	eth, err := setup.MasterConn.AddVLANLink(&r.Undo, nl.VLANLink{
		NewLink: nl.NewLink{Name: conf.name, In: setup.Container, Parent: setup.Master, MAC: conf.mac, MTU: conf.mtu}, ID: conf.id, Protocol: conf.protocol,
	})
	return eth, explainRefusal(err, setup, conf)
}

// explainRefusal explains why the kernel did not create the VLAN interface (vlan_check_real_dev). EEXIST
// means that the master already has an interface for the VLAN. EOPNOTSUPP means that the kernel does not
// support VLAN interfaces, or that the master cannot carry them.
func explainRefusal(err error, setup *attach.MasterSetup, conf *config) error {
	switch {
	case errors.Is(err, fs.ErrExist):
		return types.Errorf(types.CodeConfig, "VLAN %d (%s) of master %s already has an interface, %s: %w; the kernel allows only one", conf.id, conf.protocol, setup.Master.Name, describeExisting(setup, conf), err)
	case errors.Is(err, errors.ErrUnsupported):
		return types.Errorf(types.CodeConfig, "the kernel does not support VLAN interfaces (CONFIG_VLAN_8021Q), or master %s cannot carry them: %w", setup.Master.Name, err)
	}
	return err
}

// describeExisting returns the name and the alias of the master's existing interface for the VLAN, or a text
// without them if that interface is in another namespace.
func describeExisting(setup *attach.MasterSetup, conf *config) string {
	l, err := setup.MasterConn.FindVLANLink(setup.Master, conf.protocol, conf.id)
	switch {
	case err != nil:
		return "probably in another container"
	case l.Alias != "":
		return fmt.Sprintf("%s with the alias %q", l.Name, l.Alias)
	}
	return l.Name
}
