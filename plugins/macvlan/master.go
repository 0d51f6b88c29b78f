package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// findMaster finds the master, in the namespace of where, and checks that the configured
// MTU is not larger than its.
func findMaster(where *nl.Conn, conf *config) (nl.Link, error) {
	master, err := namedOrDefault(where, conf)
	if err != nil {
		return nl.Link{}, types.Errorf(types.CodeConfig, "master: %w", err)
	}
	if conf.mtu > master.MTU {
		return nl.Link{}, types.Errorf(types.CodeConfig, "invalid MTU %d, must be [0, master MTU(%d)]: it cannot be larger than that of %s", conf.mtu, master.MTU, master.Name)
	}
	return master, nil
}

// namedOrDefault returns the configured link, or that of the default route.
func namedOrDefault(where *nl.Conn, conf *config) (nl.Link, error) {
	if conf.master != "" {
		return where.Link(conf.master)
	}
	index, err := where.DefaultDevice()
	if err != nil {
		return nl.Link{}, err
	}
	if index == 0 {
		place := "on the node"
		if conf.inContainer {
			place = "in the container"
		}
		return nl.Link{}, fmt.Errorf("no default route interface found %s; name one by the key \"master\"", place)
	}
	return where.LinkByIndex(index)
}

// explainRefusal adds to the kernel's error why it makes no macvlan on the master
// (drivers/net/macvlan.c): EBUSY means that another device takes the master's packets,
// EINVAL that a macvlan of mode passthru would have to share it.
func explainRefusal(err error, master nl.Link, mode string) error {
	switch {
	case errors.Is(err, syscall.EBUSY):
		return types.Errorf(types.CodeConfig, "master %s is already a port, for example of a bridge or a bond; name that as the master: %w", master.Name, err)
	case errors.Is(err, syscall.EINVAL) && mode == modePassthru:
		return types.Errorf(types.CodeConfig, "mode passthru needs master %s for itself, but it has another macvlan: %w", master.Name, err)
	case errors.Is(err, syscall.EINVAL):
		return types.Errorf(types.CodeConfig, "master %s can carry no macvlan of mode %s; one of mode passthru may have it for itself: %w", master.Name, mode, err)
	}
	return err
}

const modePassthru = "passthru"

// parentIndex returns the index of the parent that a macvlan on the master has. If the
// master is a macvlan itself, that is the master's own parent (macvlan_common_newlink).
func parentIndex(master nl.Link) int {
	if master.Kind == kind {
		return master.Peer
	}
	return master.Index
}
