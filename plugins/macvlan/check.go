package main

import (
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// check compares what ADD made with what is there, and names every difference. What
// a later plugin of the chain may change (MAC, MTU, sysctls) is not compared.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	prev, err := r.MustPrev()
	if err != nil {
		return err
	}
	where, pod, err := open(r, conf)
	if err != nil {
		return err
	}
	reserved := ipam.CheckAside(r)
	spec, err := attach.FromResult(prev, r.IfName, r.NetNS)
	spec.Kind = kind
	eth, missing := pod.Link(r.IfName)
	if !attach.Ours(eth) {
		spec = spec.ReferenceMade()
	}
	errs := []error{err, attach.Diff(pod, r.IfName, spec)}
	if missing == nil && eth.Kind == kind {
		errs = append(errs, diffMode(eth, conf), diffMaster(where, eth, conf))
	}
	return types.Coded(codeChanged, errors.Join(append([]error{reserved()}, errs...)...))
}

func diffMode(eth nl.Link, conf *config) error {
	if eth.Macvlan.Mode != conf.mode {
		return fmt.Errorf("interface %s has mode %s, not %s", eth.Name, eth.Macvlan.Mode, conf.mode)
	}
	return nil
}

// diffMaster compares a master that was named. One that was found by the default
// route need not be where that leads today.
func diffMaster(where *nl.Conn, eth nl.Link, conf *config) error {
	if conf.master == "" {
		return nil
	}
	master, err := where.Link(conf.master)
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	if eth.Peer != lower(master) {
		return fmt.Errorf("interface %s is on link %d, not on master %s, which is %d", eth.Name, eth.Peer, master.Name, lower(master))
	}
	return nil
}
