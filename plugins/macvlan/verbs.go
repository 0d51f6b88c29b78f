package main

import (
	"fmt"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// check compares the present state with what ADD created, and names every difference in one
// error. It does not compare what a later plugin of the chain may change: MAC, MTU, sysctls.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	return conf.master.Check(r, kind, func(_ *nl.Conn, eth nl.Link) error {
		if eth.MacvlanMode != conf.mode {
			return fmt.Errorf("interface %s has mode %s, not %s", eth.Name, eth.MacvlanMode, conf.mode)
		}
		return nil
	})
}

// del does not read the configuration of the plugin: the master may have been deleted since
// ADD, and the configuration may have changed.
func del(r *skel.Request) error { return attach.DelContainerLink(r, kind) }

// status returns an error if an ADD would fail.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil {
		err = conf.master.Status(r, conf.mtu)
	}
	if err != nil {
		return types.NotAvailable(err)
	}
	return ipam.Status(r)
}
