// host-local is an IPAM plugin that allocates addresses from configured ranges, and stores the
// reservations in files on the host. See README.md.
package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func main() { skel.Main(plugin()) }

func plugin() skel.Plugin { return machine{pool.ThisMachine()}.plugin() }

// A machine implements the plugin's verbs.
type machine struct{ pool.Machine }

func (h machine) plugin() skel.Plugin {
	repair := skel.Checked(h.parse, func(r *skel.Request, p *pool.Pool) error { return p.Repair(r, pool.All) })
	return skel.WithConfig(skel.Plugin{Name: "host-local", IPAM: true, Del: h.del, Status: h.status, GC: h.gc, Repair: repair}, h.parse, h.add, h.check)
}

// add reserves one address from each range set.
func (h machine) add(r *skel.Request, p *pool.Pool) (*types.Result, error) {
	return p.Allocate(r, pool.All)
}

// del releases the attachment's addresses. It ignores errors in the parts of the configuration that
// it does not need.
func (h machine) del(r *skel.Request) error {
	store, err := h.NewStore(r)
	if err != nil {
		return err
	}
	_, err = store.Release(r)
	return err
}

// check compares the attachment's reservations with the addresses in prevResult.
func (h machine) check(r *skel.Request, p *pool.Pool) error {
	return p.Check(r)
}

// status returns an error if ADD could not write a reservation or, with failStatusWhenFull, if ADD
// would find no free address.
func (h machine) status(r *skel.Request) error {
	p, err := h.parse(r)
	if err != nil {
		return types.NotAvailable(err)
	}
	return p.Status(pool.All)
}

// gc releases the reservations of attachments that are not valid.
func (h machine) gc(r *skel.Request) error {
	store, err := h.NewStore(r)
	if err != nil {
		return err
	}
	return store.ReleaseInvalid(r)
}
