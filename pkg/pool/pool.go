// Package pool allocates addresses from the pool of a network. A pool consists of range sets and reservations. An ADD
// allocates one address from each range set. A reservation is a file in a directory on the host. The package contains what
// IPAM plugins with such a directory share: the configuration keys, the lock, allocation, release, and the checks of CHECK
// and STATUS. The reservations and their lock are the same as in the reference plugin host-local.
//
// host-local allocates any address of its ranges (All). If several nodes allocate from the same ranges, a plugin such as
// cluster-local allocates only the addresses that its node owns (OnlyAddresses). If none of them is free, the error of
// Allocate matches *NoneFreeError, and the plugin gets another address.
package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Pool is the checked configuration of an ADD, CHECK or STATUS, and the store of its network. A Pool need
// not be closed, because each method closes the files that it opens.
type Pool struct {
	Store
	Requested          []netip.Addr // addresses that ADD must allocate, without duplicates
	FailStatusWhenFull bool         // STATUS fails if a range set is exhausted

	// ADD allocates one address from each range set, and returns the addresses in the order of sets. The index of a set is
	// the N of its file last_reserved_ip.N.
	sets       []rangeSet
	setKeys    []string // the keys of the range sets in the configuration
	routes     []types.Route
	resolvConf string // path of a file for the key dns of the result, or ""
}

// Check compares the reservations of the attachment with the addresses of prevResult. If they differ, or if the
// attachment has no reservation, the error has types.CodeChanged. Check ignores addresses outside of the ranges,
// because the ranges may have been changed since ADD.
func (p *Pool) Check(r *skel.Request) error {
	prev, err := r.Prev()
	if err != nil {
		return err
	}
	want := p.inRanges(prevAddrs(prev)) // empty without prevResult, so that any reservation is enough
	var held []netip.Addr
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	err = p.Lock(func(se *Session) error {
		held, err = se.Held(r)
		for _, ip := range want {
			other := se.ContainerID(ip)
			taken := types.Conflict("address "+ip.String(), other).Errorf("address %s is allocated to %s", ip, other)
			reportIf(!slices.Contains(held, ip) && se.isTaken(ip), "%w", taken)
		}
		return err
	})
	if types.IgnoreNotExist(err) != nil {
		return err
	}
	reportIf(len(held) == 0, "no address is reserved for %s in %s", r.Attachment(), p.dataDir)
	for _, ip := range want {
		reportIf(len(held) > 0 && !slices.Contains(held, ip), "address %s is not reserved for %s in %s", ip, r.Attachment(), p.dataDir)
	}
	for _, ip := range p.inRanges(held) {
		reportIf(len(want) > 0 && !slices.Contains(want, ip), "address %s is reserved for %s but not in its result", ip, r.Attachment())
	}
	return types.Coded(types.CodeChanged, errors.Join(errs...))
}

// inRanges returns the addresses that are in a range of the configuration.
func (p *Pool) inRanges(addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(ip netip.Addr) bool { return findSet(p.sets, ip) < 0 })
}

// Repair reserves the addresses of prevResult that are in the ranges, in the choice, and not reserved. It calls choose
// as Allocate does. It takes no address from another attachment, because Check reports such an address. Check has
// released incomplete reservations.
func (p *Pool) Repair(r *skel.Request, choose func(*Session) (Choice, error)) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	if err := p.createDir(); err != nil {
		return err
	}
	return p.Lock(func(se *Session) error {
		choice, err := choose(se)
		errs := []error{err}
		for _, ip := range p.inRanges(prevAddrs(prev)) {
			if choice.contains(ip) && !se.isTaken(ip) {
				errs = append(errs, se.reserve(&r.Undo, ip, ownerOf(r)))
			}
		}
		return errors.Join(errs...)
	})
}

// createDir creates the directory of the network. No call undoes this, because all containers of the network share it.
func (p *Pool) createDir() error {
	err := p.trace.Do("create directory "+p.dir, func() error { return os.MkdirAll(p.dir, 0o755) })
	return types.Coded(types.CodeIO, err)
}

// statusWait is the longest time that STATUS waits for the lock. It is shorter than the interval at which
// runtimes call STATUS.
const statusWait = 2 * time.Second

// Status returns an error with types.CodeNotAvailable if ADD could not write a reservation. If the key
// failStatusWhenFull is set, it also returns an error if a range set has no free address among the addresses that
// choose returns. By default, an exhausted pool is not an error, because containerd reports a network whose STATUS
// fails as not ready, and Kubernetes then evicts running pods from the node.
func (p *Pool) Status(choose func(*Session) (Choice, error)) error {
	return types.NotAvailable(p.checkAvailable(choose))
}

func (p *Pool) checkAvailable(choose func(*Session) (Choice, error)) error {
	if _, err := p.checkAdd(); err != nil {
		return err
	}
	st := p.Store
	st.machine.Wait = min(st.machine.Wait, statusWait)
	if err := statefile.CheckWritable(st.dir); err != nil {
		return err
	}
	return types.IgnoreNotExist(st.Lock(func(se *Session) error { // without a directory, all addresses are free
		if !p.FailStatusWhenFull {
			return nil
		}
		choice, err := choose(se)
		if err != nil {
			return err
		}
		var errs []error
		for n, set := range p.sets {
			if err := se.checkFree(n, set, choice); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", p.setKeys[n], err))
			}
		}
		return errors.Join(errs...)
	}))
}

func (se *Session) checkFree(n int, set rangeSet, choice Choice) error {
	for _, err := range se.free(choice.usableAfter(set, se.cursor(n))) {
		return err // nil if the first element is a free address
	}
	return se.exhausted(n, set)
}

// An Imported address was assigned to an attachment by another IPAM plugin.
type Imported struct {
	ContainerID string     `json:"containerID"`
	IfName      string     `json:"ifName"`
	Address     netip.Addr `json:"address"`
}

func (i Imported) owner() owner { return owner{i.ContainerID, i.IfName} }

func (i Imported) String() string {
	return fmt.Sprintf("%v of %s/%s", i.Address, i.ContainerID, i.IfName)
}

// Import reserves addresses for the attachments that already use them. It returns the addresses that it has reserved, without
// those that were reserved for their attachment before, and an error for each address that is in no range or that another
// attachment has reserved.
func (p *Pool) Import(all []Imported) (reserved []Imported, err error) {
	if err := p.createDir(); err != nil {
		return nil, err
	}
	err = p.Lock(func(se *Session) error {
		var errs []error
		for _, i := range all {
			res, readErr := se.dir.reservation(i.Address)
			switch {
			case len(p.inRanges([]netip.Addr{i.Address})) == 0:
				errs = append(errs, types.Errorf(types.CodeConfig, "%v is in no range of the configuration", i))
			case readErr == nil && res.owner == i.owner():
			case readErr == nil:
				errs = append(errs, types.Errorf(types.CodeTryAgain, "%v is reserved for %s/%s", i, res.owner.containerID, res.owner.ifName))
			case !errors.Is(readErr, fs.ErrNotExist):
				errs = append(errs, readErr)
			default:
				if err := se.write(i.Address, i.owner()); err != nil {
					errs = append(errs, err)
					continue
				}
				reserved = append(reserved, i)
			}
		}
		return errors.Join(errs...)
	})
	return reserved, err
}

// Undo releases addresses that Import has reserved.
func (p *Pool) Undo(reserved []Imported) error {
	return p.Lock(func(se *Session) error {
		var errs []error
		for _, i := range reserved {
			errs = append(errs, se.release(i.Address, i.owner()))
		}
		return errors.Join(errs...)
	})
}
