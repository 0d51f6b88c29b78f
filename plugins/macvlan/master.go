package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// findMaster finds the interface to stand on and checks what the configuration asks
// of it. where is the namespace it is in.
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

// refusal says in words why the kernel would not put a macvlan on the master. It
// tells two reasons by their numbers alone (drivers/net/macvlan.c: EBUSY when
// somebody else takes the packets of the master, EINVAL when passthru would have to
// share it).
func refusal(err error, master nl.Link, mode nl.MacvlanMode) error {
	switch {
	case errors.Is(err, syscall.EBUSY):
		return types.Errorf(types.CodeConfig, "master %s is a port already, of a bridge or a bond, say; name that as the master: %w", master.Name, err)
	case errors.Is(err, syscall.EINVAL) && mode == nl.MacvlanPassthru:
		return types.Errorf(types.CodeConfig, "mode passthru needs master %s for itself, and another macvlan is on it: %w", master.Name, err)
	case errors.Is(err, syscall.EINVAL):
		return types.Errorf(types.CodeConfig, "master %s can carry no macvlan of mode %s; one of mode passthru may have it for itself: %w", master.Name, mode, err)
	}
	return err
}

// lower is the index that the kernel notes with a macvlan on the master: it puts
// one on a macvlan beside it, on the same interface (macvlan_common_newlink).
func lower(master nl.Link) int {
	if master.Kind == kind {
		return master.Peer
	}
	return master.Index
}
