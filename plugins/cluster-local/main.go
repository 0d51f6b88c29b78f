// cluster-local is an IPAM plugin that allocates addresses that are unique among all nodes of a segment. A
// node allocates only addresses that it owns. The datastore, which is a separate executable, records in its
// store which node owns each address. README.md explains the configuration.
package main

import (
	"errors"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/invoke"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin { return thisHost().plugin() }

// A host contains what the plugin's handlers need from the machine.
type host struct {
	pool.Machine
	identity []string               // paths of the files whose contents identify the machine
	hostname func() (string, error) // returns the default of the key node
	run      runProgram             // runs the datastore
}

// A runProgram is a function like invoke.RunProgram. Tests replace it.
type runProgram func(r *skel.Request, program string, input []byte, limit time.Duration) ([]byte, error)

func (h host) plugin() skel.Plugin {
	return skel.WithConfig(skel.Plugin{
		Name: "cluster-local", IPAM: true, Del: h.del, Status: h.status, GC: h.gc, Repair: skel.Checked(h.parse, repair),
		Commands: map[string]func(*skel.Request, []string) error{"resync": h.resync, "import": h.importAddresses},
	}, h.parse, h.add, h.check)
}

// add reserves one address of each range set, from the addresses that the node owns. If none of these is
// free in a range set, add first claims addresses from the datastore.
func (h host) add(r *skel.Request, n *network) (*types.Result, error) {
	lease, err := n.Allocate(r, n.choose)
	if isNoneFree(err) {
		return n.allocateWithDatastore(r)
	}
	return lease, err
}

// isNoneFree reports whether err says that no address of the node is free in a range set.
func isNoneFree(err error) bool {
	var none *pool.NoneFreeError
	return errors.As(err, &none)
}

// del releases the reservations of the attachment. If the node then has more free addresses than it needs, del
// returns some to the datastore, even if it has released nothing, because an earlier call may have failed to
// return them. If the datastore fails, the node keeps the addresses, and del only warns.
func (h host) del(r *skel.Request) error {
	store, err := h.NewStore(r)
	if err != nil {
		return err
	}
	released, err := store.Release(r)
	if err != nil {
		return err
	}
	n, err := h.parse(r)
	if err == nil {
		err = n.returnSurplus(released)
	}
	warnOfSurplus(r, err)
	return nil
}

// check compares the reservations of the attachment with the addresses of prevResult and with the
// addresses that the node owns.
func (h host) check(r *skel.Request, n *network) error {
	return errors.Join(n.Check(r), n.checkOwned(r))
}

// repair reserves the addresses of prevResult again if they are free and the node still owns them.
func repair(r *skel.Request, n *network) error { return n.Repair(r, n.choose) }

// status returns an error if ADD could not write a reservation, if the datastore is not in CNI_PATH, or if a second
// machine has the identity of this one. If the key failStatusWhenFull is set, it also returns an error if ADD would find no free address.
func (h host) status(r *skel.Request) error { return types.NotAvailable(h.checkAvailable(r)) }

func (h host) checkAvailable(r *skel.Request) error {
	n, err := h.parse(r)
	if err != nil {
		return err
	}
	if _, err := invoke.Find(n.program, r.Path); err != nil {
		return err
	}
	if err := n.checkFree(); err != nil {
		return err
	}
	return n.checkNoSecondMachine()
}

// gc releases the reservations of all attachments that are not valid. Then it synchronizes the owned addresses with
// the datastore, and returns the addresses that the node does not need.
func (h host) gc(r *skel.Request) error {
	store, err := h.NewStore(r)
	if err != nil {
		return err
	}
	releaseErr := store.ReleaseInvalid(r)
	n, err := h.parse(r)
	if err == nil {
		err = n.synchronize(false)
	}
	return errors.Join(releaseErr, err)
}

// resync synchronizes the owned addresses with the datastore, as gc does, but releases no reservation.
// Operators call it after they have restored the store from a backup.
func (h host) resync(r *skel.Request, args []string) error {
	if len(args) > 0 {
		return types.Errorf(types.CodeConfig, "resync takes no arguments; pass the configuration on stdin")
	}
	if err := r.ReadConfig(); err != nil {
		return err
	}
	n, err := h.parse(r)
	if err != nil {
		return err
	}
	return n.synchronize(true)
}
