package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/types"
)

// The error codes of this plugin. README.md explains them.
const (
	codeNotReserved = 100 // CHECK: the reservations differ from the addresses of prevResult
	codeDuplicate   = 101 // ADD: the attachment already has an address
)

// ownerOf returns the attachment of the request as an owner.
func ownerOf(r *skel.Request) owner { return owner{r.ContainerID, r.IfName} }

// store returns the store of the network of the request.
func (h host) store(r *skel.Request, c storeConf) store {
	return store{
		machine: h.machine, cooldown: c.cooldown, trace: r.Trace,
		dir:        filepath.Join(c.dataDir, r.Conf.Name),
		privateDir: filepath.Join(c.dataDir, ".plumb", r.Conf.Name),
	}
}

func (h host) add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	dns, err := readResolvConf(conf.resolvConf)
	if err != nil {
		return nil, err
	}
	wanted, err := conf.requestedPerSet()
	if err != nil {
		return nil, err
	}
	st := h.store(r, conf.storeConf)
	var ips []types.IP
	err = st.createAndLock(func(se *session) error {
		ips, err = allocate(se, r, conf.sets, wanted)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &types.Result{IPs: ips, Routes: conf.routes, DNS: dns}, nil
}

// requestedPerSet returns, for each range set, the requested address that is in the set, or an
// invalid address if none is requested from it. It returns an error if a requested address cannot
// be allocated, is in no set, or is in the same set as another one.
func (c *config) requestedPerSet() ([]netip.Addr, error) {
	wanted := make([]netip.Addr, len(c.sets))
	var unassigned []string
	for _, ip := range c.requested {
		n := findSet(c.sets, ip)
		if n < 0 || wanted[n].IsValid() {
			unassigned = append(unassigned, ip.String())
			continue
		}
		wanted[n] = ip
		pool := c.sets[n][c.sets[n].find(ip)]
		if ip == pool.gateway {
			return nil, types.Errorf(types.CodeConfig, "failed to allocate for range %d: requested ip %s is subnet's gateway", n, ip)
		}
		if pool.findExcluded(ip) >= 0 {
			return nil, types.Errorf(types.CodeConfig, "failed to allocate for range %d: requested IP address %s is excluded by \"exclude\"", n, ip)
		}
	}
	if err := c.checkUsable(); err != nil {
		return nil, err
	}
	if len(unassigned) > 0 {
		return nil, types.Errorf(types.CodeConfig, "failed to allocate all requested IPs: %s", strings.Join(unassigned, " "))
	}
	return wanted, nil
}

// checkUsable returns an error for the first range set whose addresses are all excluded.
func (c *config) checkUsable() error {
	for n, set := range c.sets {
		if !set.hasUsable() {
			return types.Errorf(types.CodeConfig, "%s has no usable address: all are excluded (the gateway always is); make the range larger or \"exclude\" smaller", set.name(n))
		}
	}
	return nil
}

// allocate reserves one address of each set. Only after the last reservation, it writes the
// cursors, which are the addresses where the next searches begin: a failed ADD does not move them.
func allocate(se *session, r *skel.Request, sets []rangeSet, wanted []netip.Addr) ([]types.IP, error) {
	if err := checkDuplicate(se, ownerOf(r), sets); err != nil {
		return nil, err
	}
	var ips []types.IP
	for n, set := range sets {
		ip, err := wanted[n], error(nil)
		if ip.IsValid() {
			err = reserveRequested(se, r, set, ip)
		} else {
			ip, err = reserveFree(se, r, set, se.cursor(n))
		}
		if err != nil {
			return nil, fmt.Errorf("failed to allocate for range %d: %w", n, err)
		}
		pool := set[set.find(ip)]
		ips = append(ips, types.IP{Interface: types.NoInterface, Address: netip.PrefixFrom(ip, pool.subnet.Bits()), Gateway: pool.gateway})
	}
	for n, ip := range ips {
		if err := se.setCursor(n, ip.Address.Addr()); err != nil {
			return nil, err
		}
	}
	return ips, nil
}

// checkDuplicate returns an error if the attachment already has an address in the network, in
// these ranges or not: the runtime must call DEL before it calls ADD again. A legacy reservation
// may belong to another interface of the container, so it counts only if it is in these ranges.
func checkDuplicate(se *session, o owner, sets []rangeSet) error {
	held, err := se.heldBy(o)
	if err != nil {
		return err
	}
	legacy, err := se.heldBy(o.legacy())
	if err != nil {
		return err
	}
	legacy = slices.DeleteFunc(legacy, func(res reservation) bool { return findSet(sets, res.addr) < 0 })
	for _, res := range append(held, legacy...) {
		return types.Errorf(codeDuplicate, "failed to allocate for range %d: %s has been allocated to %s, duplicate allocation is not allowed",
			max(findSet(sets, res.addr), 0), res.addr, o.containerID)
	}
	return nil
}

// reserveRequested reserves the requested address of a range set.
func reserveRequested(se *session, r *skel.Request, set rangeSet, ip netip.Addr) error {
	err := se.reserve(&r.Undo, ip, ownerOf(r))
	if errors.Is(err, fs.ErrExist) {
		return types.Errorf(types.CodeTryAgain, "requested IP address %s is not available in range set %s: %s", ip, set, se.describeHolder(ip))
	}
	return err
}

// reserveFree reserves a free address of a range set. The search begins after last, the address that was
// allocated last, or at the start of the set if last is invalid.
func reserveFree(se *session, r *skel.Request, set rangeSet, last netip.Addr) (netip.Addr, error) {
	for ip, err := range se.free(set, last) {
		if err == nil {
			err = se.reserve(&r.Undo, ip, ownerOf(r))
		}
		if !errors.Is(err, fs.ErrExist) { // else another program has reserved it, without the lock
			return ip, err
		}
	}
	return netip.Addr{}, se.exhausted(set)
}

// del releases the addresses of the attachment. It ignores errors in the parts of the configuration
// that it does not need.
func (h host) del(r *skel.Request) error {
	conf, err := parseStoreConf(r)
	if err != nil {
		return err
	}
	st := h.store(r, conf)
	return st.ignoreNoReservations(st.withLock(func(se *session) error { return se.releaseAll(ownerOf(r)) }))
}

// check compares the reservations of the attachment with the addresses of prevResult. It ignores
// addresses outside of the ranges, because the ranges may have been changed since ADD.
func (h host) check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	prev, err := r.Prev()
	if err != nil {
		return err
	}
	var held []reservation
	err = h.store(r, conf.storeConf).withLock(func(se *session) error {
		held, err = se.heldByOrLegacy(ownerOf(r))
		return err
	})
	if types.IgnoreNotExist(err) != nil {
		return err
	}
	return conf.checkReservations(r, held, prev)
}

// checkReservations returns an error if held, which has the reservations of the attachment, is empty
// or differs from the addresses of prev. prev may be nil.
func (c *config) checkReservations(r *skel.Request, held []reservation, prev *types.Result) error {
	inRanges := func(ip netip.Addr) bool { return findSet(c.sets, ip) >= 0 }
	if len(held) == 0 {
		return types.Errorf(codeNotReserved, "no address is reserved for %s in %s", r.Attachment(), c.dataDir)
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
	return types.Coded(codeNotReserved, errors.Join(errs...))
}

// statusWait limits how long STATUS waits for the lock. It is shorter than the interval at which
// runtimes call STATUS.
const statusWait = 2 * time.Second

// status returns an error if ADD could not write a reservation or, with failStatusWhenFull, if ADD
// would find no free address. Without failStatusWhenFull, an exhausted pool is no error: containerd
// reports a network whose STATUS fails as not ready, and Kubernetes then evicts the pods of the
// node, although they run well.
func (h host) status(r *skel.Request) error {
	return types.NotAvailable(h.checkAvailable(r))
}

// checkAvailable is status without the error code of STATUS.
func (h host) checkAvailable(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	if err := conf.checkUsable(); err != nil {
		return err
	}
	h.wait = min(h.wait, statusWait)
	st := h.store(r, conf.storeConf)
	if err := statefile.CheckWritable(st.dir); err != nil {
		return err
	}
	return types.IgnoreNotExist(st.withLock(func(se *session) error { // without a folder, no address is reserved
		if !conf.failStatusWhenFull {
			return nil
		}
		return checkNotExhausted(se, conf.sets)
	}))
}

// checkNotExhausted returns an error that names all range sets without a free address.
func checkNotExhausted(se *session, sets []rangeSet) error {
	var errs []error
	for n, set := range sets {
		if err := se.checkFree(set, se.cursor(n)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", set.name(n), err))
		}
	}
	return errors.Join(errs...)
}

// gc removes the reservations of attachments that are not valid, and incomplete reservations. A
// legacy reservation stays if any interface of its container is valid. Files that are not regular
// or too large stay. Reservations that cannot be read stay, too; gc returns the first of their
// errors after it has handled all others.
func (h host) gc(r *skel.Request) error {
	conf, err := parseStoreConf(r)
	if err != nil {
		return err
	}
	valid := map[owner]bool{}
	for a := range r.Valid() {
		o := owner{a.ContainerID, a.IfName}
		valid[o], valid[o.legacy()] = true, true
	}
	st := h.store(r, conf)
	return st.ignoreNoReservations(st.withLock(func(se *session) error {
		failed, err := se.readAll(func(res reservation) bool { return valid[res.owner] || res.owner == owner{} })
		return errors.Join(failed, se.readErr, err)
	}))
}
