// Package pool allocates addresses from the pool of a network. A pool has range sets and reservations. An
// ADD allocates one address from each range set. A reservation is a file in a folder on the node. The
// package has what IPAM plugins with such a folder share: the configuration keys, the lock, allocation,
// release, and the checks of CHECK and STATUS. The files of the folder and its lock are the same as those
// of the reference plugin host-local.
//
// host-local allocates any address of its ranges (All). If several nodes allocate from the same ranges, a
// plugin may allocate only the addresses that its node owns (Among):
//
//	lease, err := p.Allocate(r, func(*pool.Session) (pool.Choice, error) {
//		owned, err := readOwned(p.PrivatePath("owned")) // while the folder is locked
//		return pool.Among(owned), err
//	})
//	if none := (*pool.NoneFreeError)(nil); errors.As(err, &none) {
//		// Roll back r.Undo, make the node the owner of an address of p.Sets()[none.Set], and call Allocate again.
//	}
//
// plugins/cluster-local is such a plugin.
package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A Pool has the configuration that ADD, CHECK and STATUS need, and the store of its network. A Pool need
// not be closed, because each method closes the files that it opens.
type Pool struct {
	Store
	conf *config
}

// NewPool returns the pool that the configuration of an ADD, CHECK or STATUS describes. ipam is nil if the
// configuration has no key ipam. The error names all wrong values and has types.CodeConfig. If CNI_ARGS
// cannot be parsed, the error has another code.
func (m Machine) NewPool(r *skel.Request, ipam *Keys, runtime RuntimeKeys) (*Pool, error) {
	conf, err := parse(r, ipam, runtime)
	if err != nil {
		return nil, err
	}
	return &Pool{m.newStore(r, conf.storeConf), conf}, nil
}

// Check compares the reservations of the attachment with the addresses of prevResult. If they differ, the
// error has types.CodeChanged. Check ignores addresses outside of the ranges, because the ranges may have
// been changed since ADD.
func (p *Pool) Check(r *skel.Request) error {
	prev, err := r.Prev()
	if err != nil {
		return err
	}
	var held []reservation
	err = p.Lock(func(se *Session) error {
		held, err = se.held(ownerOf(r), nil)
		return err
	})
	if types.IgnoreNotExist(err) != nil {
		return err
	}
	return p.conf.checkReservations(r, held, prev)
}

// checkReservations returns an error if the attachment has no reservation, or if its reservations, held,
// differ from the addresses of prev. If prev is nil, any reservation is enough.
func (c *config) checkReservations(r *skel.Request, held []reservation, prev *types.Result) error {
	inRanges := func(ip netip.Addr) bool { return findSet(c.sets, ip) >= 0 }
	if len(held) == 0 {
		return types.Errorf(types.CodeChanged, "no address is reserved for %s in %s", r.Attachment(), c.dataDir)
	}
	if prev == nil {
		return nil
	}
	var want []netip.Addr
	for _, ip := range prev.IPs {
		if inRanges(ip.Address.Addr()) {
			want = append(want, ip.Address.Addr())
		}
	}
	var errs []error
	for _, ip := range want {
		if !slices.ContainsFunc(held, func(res reservation) bool { return res.addr == ip }) {
			errs = append(errs, fmt.Errorf("address %s is not reserved for %s in %s", ip, r.Attachment(), c.dataDir))
		}
	}
	for _, res := range held {
		if len(want) > 0 && inRanges(res.addr) && !slices.Contains(want, res.addr) {
			errs = append(errs, fmt.Errorf("address %s is reserved for %s but not in its result", res.addr, r.Attachment()))
		}
	}
	return types.Coded(types.CodeChanged, errors.Join(errs...))
}

// statusWait is the longest time that STATUS waits for the lock. It is shorter than the interval at which
// runtimes call STATUS.
const statusWait = 2 * time.Second

// Status returns an error with types.CodeNotAvailable if ADD could not write a reservation. If the key
// failStatusWhenFull is set, it also returns an error if a range set has no free address among those that
// choose returns. By default, an exhausted pool is no error: containerd reports a network whose STATUS
// fails as not ready, and Kubernetes then evicts the pods of the node, although they run well.
func (p *Pool) Status(choose func(*Session) (Choice, error)) error {
	return types.NotAvailable(p.checkAvailable(choose))
}

// checkAvailable does the checks of Status. Its errors do not have types.CodeNotAvailable yet.
func (p *Pool) checkAvailable(choose func(*Session) (Choice, error)) error {
	if err := p.conf.checkUsable(); err != nil {
		return err
	}
	st := p.Store
	st.machine.Wait = min(st.machine.Wait, statusWait)
	if err := statefile.CheckWritable(st.dir); err != nil {
		return err
	}
	return types.IgnoreNotExist(st.Lock(func(se *Session) error { // without a folder, all addresses are free
		if !p.conf.failStatusWhenFull {
			return nil
		}
		choice, err := choose(se)
		if err != nil {
			return err
		}
		return se.checkNotExhausted(p.conf.sets, choice)
	}))
}

// checkNotExhausted returns an error that names all range sets without a free address.
func (se *Session) checkNotExhausted(sets []rangeSet, choice Choice) error {
	var errs []error
	for n, set := range sets {
		if err := se.checkFree(n, set, choice); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", set.name(n), err))
		}
	}
	return errors.Join(errs...)
}

// checkFree returns an error if range set n has no free address.
func (se *Session) checkFree(n int, set rangeSet, choice Choice) error {
	for _, err := range se.free(choice.usableAfter(set, se.cursor(n))) {
		return err // nil: the first element is a free address
	}
	return se.exhausted(n, set)
}
