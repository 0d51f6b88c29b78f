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

// kind is the kernel's name for tun and tap devices.
const kind = "tun"

// check compares the device with what ADD created, and returns an error that names every difference. It
// ignores the MAC, the MTU and the sysctls, which a later plugin of the chain may change.
func check(r *skel.Request, conf *config) error {
	return attach.CheckContainerLink(r, kind, func(container *nl.Conn, eth nl.Link) error {
		return errors.Join(conf.diffTap(eth), conf.diffBridge(container, eth))
	})
}

// diffTap returns an error that names each difference between the device and the configuration. It compares
// the owner and the group only if they are configured.
func (conf *config) diffTap(eth nl.Link) error {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(!eth.Tun.Tap, "interface %s is a tun device, want a tap device", eth.Name)
	reportIf(eth.Tun.MultiQueue != conf.tap.MultiQueue, "interface %s has multiQueue %t, want %t", eth.Name, eth.Tun.MultiQueue, conf.tap.MultiQueue)
	if want := conf.tap.Owner; want != nil {
		reportIf(eth.Tun.Owner != *want, "interface %s has owner %d, want %d", eth.Name, eth.Tun.Owner, *want)
	}
	if want := conf.tap.Group; want != nil {
		reportIf(eth.Tun.Group != *want, "interface %s has group %d, want %d", eth.Name, eth.Tun.Group, *want)
	}
	return errors.Join(errs...)
}

// diffBridge returns an error if the device is not a port of the configured bridge.
func (conf *config) diffBridge(container *nl.Conn, eth nl.Link) error {
	if conf.bridge == "" {
		return nil
	}
	bridge, err := container.LinkByAnyName(conf.bridge)
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if eth.Master != bridge.Index {
		return fmt.Errorf("interface %s is not a port of bridge %s", eth.Name, bridge.Name)
	}
	return nil
}

func repair(r *skel.Request, _ *config) error {
	return attach.RepairContainerLink(r, kind, attach.DADOn)
}

// del does not read the configuration of the plugin, which may have changed since ADD.
func del(r *skel.Request) error { return attach.DelContainerLink(r, kind) }

// status returns an error if an ADD would fail.
func status(r *skel.Request) error {
	_, err := parse(r)
	if err == nil {
		err = nl.CheckTun(r.HostNS)
	}
	return ipam.Status(r, err)
}
