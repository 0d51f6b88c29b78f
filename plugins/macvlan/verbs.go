package main

import (
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

// check compares the interface with what ADD created, and returns an error that names every difference. It
// ignores the MAC, the MTU and the sysctls, which a later plugin of the chain may change.
func check(r *skel.Request, conf *config) error {
	return conf.master.Check(r, kind, func(_ *nl.Conn, eth nl.Link) error {
		if eth.MacvlanMode == conf.mode {
			return nil
		}
		return fmt.Errorf("interface %s has mode %s, want %s", eth.Name, eth.MacvlanMode, conf.mode)
	})
}

func repair(r *skel.Request, conf *config) error {
	return attach.RepairContainerLink(r, kind, conf.dad)
}

// del does not read the configuration of the plugin, because the master may have been deleted since ADD, and
// the configuration may have changed.
func del(r *skel.Request) error { return attach.DelContainerLink(r, kind) }

// status returns an error if an ADD would fail.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil {
		err = conf.master.Status(r, conf.mtu)
	}
	return ipam.Status(r, err)
}
