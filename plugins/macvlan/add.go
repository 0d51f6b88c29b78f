package main

import (
	"errors"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

const (
	kind         = "macvlan"
	modePassthru = "passthru"
)

// usePrev uses the only interface of prevResult as the master in the container, with its addresses, unless it is lo. It
// does nothing otherwise. On the host, and if prevResult lists several interfaces, the master is the interface of the
// default route, because lists with macvlan after another plugin have always used it.
func (c *config) usePrev(r *skel.Request) error {
	if !c.master.InContainer || c.master.Name != "" {
		return nil
	}
	prev, err := r.Prev()
	if err != nil || prev == nil || len(prev.Interfaces) != 1 || prev.Interfaces[0].Name == "lo" {
		return err
	}
	return c.master.UsePrev(r)
}

// add creates the macvlan while the IPAM plugin runs, and then configures it for the lease.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	if err := conf.usePrev(r); err != nil {
		return nil, err
	}
	setup, err := conf.master.Prepare(r, conf.mtu)
	if err != nil {
		return nil, err
	}
	eth, err := setup.MasterConn.AddMacvlan(&r.Undo, nl.Macvlan{
		NewLink: nl.NewLink{
			Name: r.IfName, In: setup.Container, Parent: setup.Master, MAC: conf.mac, MTU: conf.mtu,
			TxQueues: conf.queues.TxQueues, RxQueues: conf.queues.RxQueues,
		}, Mode: conf.mode, QueueLen: conf.queueLen,
	})
	if err != nil {
		return nil, explainRefusal(err, setup.Master, conf.mode)
	}
	if conf.mac != "" && eth.MAC != conf.mac {
		// In mode passthru the kernel ignores the configured MAC and uses the master's. Setting the MAC
		// afterwards also changes the master's, until the macvlan is deleted.
		eth.MAC = conf.mac
		if err := setup.Container.SetMAC(eth, conf.mac); err != nil {
			return nil, err
		}
	}
	result, err := setup.Configure(r, eth, conf.dad)
	return result, explainSameMAC(err, eth, setup.Master)
}

// explainRefusal explains why the kernel did not create the macvlan (drivers/net/macvlan.c). EBUSY means that
// another device receives the master's packets, such as a bridge or ipvlans. EINVAL means that a macvlan of mode passthru would have to
// share the master.
func explainRefusal(err error, master nl.Link, mode string) error {
	switch {
	case errors.Is(err, syscall.EBUSY):
		return types.Errorf(types.CodeConfig, "master %s is already a port, for example of a bridge or a bond, or has ipvlans: %w; use that bridge or bond as the master, or another master", master.Name, err)
	case errors.Is(err, syscall.EINVAL) && mode == modePassthru:
		return types.Errorf(types.CodeConfig, "mode passthru needs master %s for itself, but it has another macvlan: %w", master.Name, err)
	case errors.Is(err, syscall.EINVAL):
		return types.Errorf(types.CodeConfig, "master %s cannot carry a macvlan of mode %s, perhaps because a macvlan of mode passthru uses it alone: %w", master.Name, mode, err)
	}
	return err
}

// explainSameMAC explains EADDRINUSE, which means that the master or another macvlan on it uses the same MAC
// (macvlan_open).
func explainSameMAC(err error, eth, master nl.Link) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return types.Errorf(types.CodeConfig, "master %s, or another macvlan on it, already uses the MAC address %s: %w", master.Name, eth.MAC, err)
	}
	return err
}
