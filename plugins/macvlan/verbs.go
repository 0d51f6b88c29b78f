package main

import (
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// check compares the interface with what ADD created, and returns an error that names every difference. It
// ignores the MAC, the MTU and the sysctls, which a later plugin of the chain may change.
func check(r *skel.Request, conf *config) error {
	return conf.master.Check(r, kind, func(container *nl.Conn, eth nl.Link) error {
		err := conf.access.Diff(r, container)
		if eth.MacvlanMode != conf.mode {
			mode := fmt.Errorf("interface %s has mode %s, want %s", eth.Name, eth.MacvlanMode, conf.mode)
			err = errors.Join(err, types.WithRepair(types.RepairNever, mode))
		}
		return err
	})
}

func repair(r *skel.Request, conf *config) error {
	return errors.Join(attach.RepairContainerLink(r, kind, conf.dad), conf.access.Repair(r))
}

// del does not read the configuration of the plugin, because the master may have been deleted since ADD, and
// the configuration may have changed.
func del(r *skel.Request) error { return attach.DelWithHostAccess(r, kind) }

// status returns an error if an ADD would fail.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil {
		err = conf.master.Status(r, conf.mtu)
	}
	if err == nil {
		err = conf.access.Status(r)
	}
	return ipam.Status(r, err)
}
