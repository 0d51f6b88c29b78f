// cluster-local allocates addresses that are unique among all nodes of a segment. A node allocates only
// addresses that it owns; an engine, which is an executable of its own, keeps which node owns which
// address. README.md explains the configuration.
package main

import (
	"errors"
	"time"

	"github.com/plumb-cni/plumb/pkg/invoke"
	"github.com/plumb-cni/plumb/pkg/pool"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin { return thisHost().plugin() }

// A host has the verbs of the plugin.
type host struct {
	pool.Machine
	identity []string               // paths of the files that identify the machine
	hostname func() (string, error) // the default of the key node
	run      runProgram             // runs the engine
}

// A runProgram is invoke.RunProgram, or what a test has instead.
type runProgram func(r *skel.Request, program string, input []byte, limit time.Duration) ([]byte, error)

func (h host) plugin() skel.Plugin {
	return skel.Plugin{
		Name: "cluster-local", IPAM: true, Add: h.add, Del: h.del, Check: h.check, Status: h.status, GC: h.gc,
		Commands: map[string]func(*skel.Request, []string) error{"reassert": h.reassert},
	}
}

// add reserves one address of each range set, among those that the node owns. If the node owns none
// that is free, add gets some from the engine.
func (h host) add(r *skel.Request) (*types.Result, error) {
	n, err := h.parse(r)
	if err != nil {
		return nil, err
	}
	lease, err := n.Allocate(r, n.choose)
	if isNoneFree(err) {
		return n.allocateWithEngine(r)
	}
	return lease, err
}

// isNoneFree reports whether err says that none of the node's addresses is free.
func isNoneFree(err error) bool {
	var none *pool.NoneFreeError
	return errors.As(err, &none)
}

// del releases the reservations of the attachment. If the node then has more free addresses than it
// needs, del returns some to the engine. That may fail: the node then keeps them.
func (h host) del(r *skel.Request) error {
	store, err := h.NewStore(r)
	if err != nil {
		return err
	}
	released, err := store.Release(r)
	if err != nil || len(released) == 0 {
		return err
	}
	n, err := h.parse(r)
	if err == nil {
		err = n.returnSurplus(released)
	}
	if err != nil {
		r.Warn("the node keeps addresses that it does not need: %v", err)
	}
	return nil
}

// check compares the reservations of the attachment with the addresses of prevResult, and with the
// addresses that the node owns.
func (h host) check(r *skel.Request) error {
	n, err := h.parse(r)
	if err != nil {
		return err
	}
	return errors.Join(n.Check(r), n.checkOwned(r))
}

// status returns an error if ADD could not write a reservation, or if CNI_PATH has no engine. With
// failStatusWhenFull, it also returns an error if ADD would find no address.
func (h host) status(r *skel.Request) error {
	n, err := h.parse(r)
	if err == nil {
		_, err = invoke.Find(n.program, r.Path)
	}
	if err == nil {
		err = n.checkFree()
	}
	return types.NotAvailable(err)
}

// gc releases the reservations of attachments that are not valid. Then it makes the owned addresses
// agree with the engine, and returns those that the node does not need.
func (h host) gc(r *skel.Request) error {
	store, err := h.NewStore(r)
	if err != nil {
		return err
	}
	_, released := store.ReleaseInvalid(r)
	n, err := h.parse(r)
	if err == nil {
		err = n.agree()
	}
	return errors.Join(released, err)
}

// reassert makes the engine and the owned addresses agree, as gc does. Operators call it after they have
// restored the engine from a backup.
func (h host) reassert(r *skel.Request, args []string) error {
	if len(args) > 0 {
		return types.Errorf(types.CodeConfig, "reassert has no arguments; it reads the configuration from stdin")
	}
	if err := r.ReadConfig(); err != nil {
		return err
	}
	n, err := h.parse(r)
	if err != nil {
		return err
	}
	return n.agree()
}
