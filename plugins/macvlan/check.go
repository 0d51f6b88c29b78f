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

// check compares what ADD made with the present state and returns all differences in one
// error. It ignores what a later plugin of the chain may change: MAC, MTU, sysctls.
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
	reserved := ipam.StartCheck(r)
	spec, err := attach.SpecFromResult(prev, r.IfName, r.NetNS)
	spec.Kind = kind
	eth, missing := pod.Link(r.IfName)
	if !attach.MadeByPlumb(eth) {
		spec = spec.ReferenceMade()
	}
	errs := []error{err, attach.Diff(pod, r.IfName, spec)}
	if missing == nil && eth.Kind == kind {
		errs = append(errs, diffMode(eth, conf), diffMaster(where, eth, conf))
	}
	return types.Coded(types.CodeChanged, errors.Join(append([]error{reserved()}, errs...)...))
}

func diffMode(eth nl.Link, conf *config) error {
	if eth.MacvlanMode != conf.mode {
		return fmt.Errorf("interface %s has mode %s, not %s", eth.Name, eth.MacvlanMode, conf.mode)
	}
	return nil
}

// diffMaster compares the master if it is configured. The default route, by which it was
// found otherwise, may have changed since.
func diffMaster(where *nl.Conn, eth nl.Link, conf *config) error {
	if conf.master == "" {
		return nil
	}
	master, err := where.Link(conf.master)
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	if eth.Peer != parentIndex(master) {
		return fmt.Errorf("interface %s is on link %d, not on master %s, which is %d", eth.Name, eth.Peer, master.Name, parentIndex(master))
	}
	return nil
}
