package main

import (
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
)

// check compares the interface with what ADD created, and returns an error that names every difference. It
// ignores the MTU and the sysctls, which a later plugin of the chain may change.
func check(r *skel.Request, conf *config) error {
	return conf.master.Check(r, kind, func(container *nl.Conn, eth nl.Link) error {
		mode, err := container.IPVlanMode(eth)
		if err == nil && mode != conf.mode {
			err = fmt.Errorf("interface %s has %s, want %s", eth.Name, mode, conf.mode)
		}
		return err
	})
}

func repair(r *skel.Request, conf *config) error {
	return attach.RepairContainerLink(r, kind, conf.dad)
}

// del reads no key of the plugin but dataDir, because the master may have been deleted since ADD, and the
// configuration may have changed.
func del(r *skel.Request) error {
	if err := attach.DelContainerLink(r, kind); err != nil {
		return err
	}
	return recordFile(r, r.SavedStateDir(defaultDataDir), r.Attachment()).Remove()
}

// gc deletes no links, because runtimes do not pass it the paths of the containers. The kernel deletes the links with the
// containers.
func gc(r *skel.Request) error { return errors.Join(ipam.GC(r), collectRecords(r)) }

// status returns an error if an ADD would fail. If neither "master" nor "ipam" is set, status does not look
// for a master, because ADD may find it in the result of an earlier plugin.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil {
		err = statefile.CheckWritable(conf.dataDir)
	}
	if err == nil && (conf.master.Name != "" || r.Conf.IPAM.Type != "") {
		err = conf.master.Status(r, conf.mtu)
	}
	return ipam.Status(r, err)
}
