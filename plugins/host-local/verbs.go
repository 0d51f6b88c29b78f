package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// The error codes of this plugin. README.md explains them.
const (
	codeNotReserved = 100 // CHECK: the reservations differ from the addresses of prevResult
	codeDuplicate   = 101 // ADD: the attachment already has an address
)

// ownerOf returns the attachment of the request as an owner.
func ownerOf(r *skel.Request) owner { return owner{r.ContainerID, r.IfName} }

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
		ips, err = se.allocate(r, conf.sets, wanted)
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
		n := slices.IndexFunc(c.sets, func(s rangeSet) bool { return s.find(ip) >= 0 })
		if n < 0 || wanted[n].IsValid() {
			unassigned = append(unassigned, ip.String())
			continue
		}
		wanted[n] = ip
		pool := c.sets[n][c.sets[n].find(ip)]
		if ip == pool.gateway {
			return nil, types.Errorf(types.CodeConfig, "failed to allocate for range %d: requested ip %s is subnet's gateway", n, ip)
		}
		if pool.isExcluded(ip) {
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
func (se *session) allocate(r *skel.Request, sets []rangeSet, wanted []netip.Addr) ([]types.IP, error) {
	if err := se.checkDuplicate(ownerOf(r), sets); err != nil {
		return nil, err
	}
	var ips []types.IP
	for n, set := range sets {
		ip, err := se.reserveOne(r, search{set: set, last: se.cursor(n), wanted: wanted[n]})
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
func (se *session) checkDuplicate(o owner, sets []rangeSet) error {
	held, err := se.heldBy(o)
	if err != nil {
		return err
	}
	legacy, err := se.heldBy(o.legacy())
	if err != nil {
		return err
	}
	setOf := func(ip netip.Addr) int {
		return slices.IndexFunc(sets, func(s rangeSet) bool { return s.find(ip) >= 0 })
	}
	legacy = slices.DeleteFunc(legacy, func(res reservation) bool { return setOf(res.addr) < 0 })
	for _, res := range append(held, legacy...) {
		return types.Errorf(codeDuplicate, "failed to allocate for range %d: %s has been allocated to %s, duplicate allocation is not allowed",
			max(setOf(res.addr), 0), res.addr, o.containerID)
	}
	return nil
}

// A search describes which address of a range set to reserve.
type search struct {
	set    rangeSet
	last   netip.Addr // the address that was allocated last; invalid: not known
	wanted netip.Addr // the requested address; invalid: any free address
}

// reserveOne reserves one address of the set.
func (se *session) reserveOne(r *skel.Request, s search) (netip.Addr, error) {
	for {
		ip, err := s.wanted, error(nil)
		if !ip.IsValid() {
			ip, err = se.nextFree(s)
		}
		if err != nil {
			return ip, err
		}
		err = se.reserve(&r.Undo, ip, ownerOf(r))
		var taken *takenError
		if !errors.As(err, &taken) {
			return ip, err
		}
		if s.wanted.IsValid() {
			return ip, types.Errorf(types.CodeTryAgain, "requested IP address %s is not available in range set %s: %w", ip, s.set, err)
		}
		se.taken.add(ip) // another program has reserved it, without the lock: try the next one
	}
}

const (
	// maxTries is the number of addresses that firstFree looks up one by one, before it lists all
	// reservations.
	maxTries = 64
	// smallPool is the largest number of reservations that are always read if no address is free:
	// to read them is fast.
	smallPool = 512
	// readInterval is the time after which more reservations than that are read again.
	readInterval = 30 * time.Second
)

// nextFree returns the first free address after the one that was allocated last. If every address
// has a reservation, nextFree reads all reservations, because the address of an incomplete one is
// free. This is rare.
func (se *session) nextFree(s search) (netip.Addr, error) {
	cooling := se.readCooling()
	ip, err := se.firstFree(s, cooling)
	if err == nil && !ip.IsValid() && se.shouldReadAll() {
		if err = se.readAndKeepAll(); err == nil {
			ip, err = se.firstFree(s, cooling)
		}
	}
	if err != nil || ip.IsValid() {
		return ip, err
	}
	return ip, types.Errorf(types.CodeTryAgain, "no IP addresses available in range set: %s%s", s.set, se.describeCooling(s.set, cooling))
}

// shouldReadAll reports whether nextFree should read all reservations: this session has not read
// them yet, and either they are few, or no session has read them for the readInterval.
func (se *session) shouldReadAll() bool {
	if se.complete || !se.listed && se.listTaken() != nil {
		return false
	}
	since := se.host.now() - se.lastRead
	return se.names <= smallPool || since > readInterval || since < 0
}

// firstFree returns the first address that is neither taken nor cooling down, or an invalid address
// if there is none. How many addresses it looks at depends on how many are taken or cooling down,
// not on the size of the ranges.
func (se *session) firstFree(s search, cooling map[netip.Addr]time.Duration) (netip.Addr, error) {
	tries := 0
	for r := range s.set.usableAfter(s.last) {
		for ip := r.from; ip.IsValid() && !r.to.Less(ip); ip = ip.Next() {
			if _, cools := cooling[ip]; cools {
				continue
			}
			if tries++; tries > maxTries && !se.listed {
				if err := se.listTaken(); err != nil {
					return netip.Addr{}, err
				}
			}
			if se.isFree(ip) {
				return ip, nil
			}
		}
	}
	return netip.Addr{}, nil
}

// isFree reports whether an address has no reservation, or an incomplete one.
func (se *session) isFree(ip netip.Addr) bool {
	if se.listed || se.taken.has(ip) {
		return !se.taken.has(ip)
	}
	res, err := se.read(ip)
	return errors.Is(err, fs.ErrNotExist) || err == nil && res.incomplete
}

// describeCooling returns a text for an error: how many addresses of the set cool down, and when
// the first of them is free. The text is empty if no address cools down. cooling has the times
// when the addresses were released.
func (se *session) describeCooling(set rangeSet, cooling map[netip.Addr]time.Duration) string {
	n, first := 0, time.Duration(0)
	for ip, releasedAt := range cooling {
		if set.find(ip) < 0 {
			continue
		}
		if left := releasedAt + se.cooldown - se.host.now(); n == 0 || left < first {
			first = left
		}
		n++
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (released addresses that cool down: %d; the first is free in %s)", n, first.Round(time.Second))
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

// ignoreNoReservations returns nil instead of an error that means that the network has no
// reservations: its folder does not exist, or cannot exist because the name is too long, or the
// folder is empty and the disk has no space for the lock file. It returns other errors unchanged.
func (s store) ignoreNoReservations(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENAMETOOLONG) {
		return nil
	}
	if isDiskFull(err) {
		if files, readErr := os.ReadDir(s.dir); readErr == nil && len(files) == 0 {
			return nil
		}
	}
	return err
}

// releaseAll removes the reservations of the owner or, if there are none, the legacy reservations
// of the same container.
func (se *session) releaseAll(o owner) error {
	held, err := se.heldByOrLegacy(o)
	errs := []error{err}
	for _, res := range held {
		errs = append(errs, se.remove(res))
	}
	return errors.Join(errs...)
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
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return conf.checkReservations(r, held, prev)
}

// checkReservations returns an error if held, which has the reservations of the attachment, is empty
// or differs from the addresses of prev. prev may be nil.
func (c *config) checkReservations(r *skel.Request, held []reservation, prev *types.Result) error {
	inRanges := func(ip netip.Addr) bool {
		return slices.ContainsFunc(c.sets, func(s rangeSet) bool { return s.find(ip) >= 0 })
	}
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
	if err := checkWritable(st.dir); err != nil {
		return err
	}
	checkFree := func(se *session) error {
		if !conf.failStatusWhenFull {
			return nil
		}
		return se.checkNotExhausted(conf.sets)
	}
	err = st.withLock(checkFree)
	if errors.Is(err, fs.ErrNotExist) { // the network has no reservations yet
		se := st.newSession()
		se.complete, se.listed = true, true
		return checkFree(se)
	}
	return err
}

// checkNotExhausted returns an error that names all range sets without a free address.
func (se *session) checkNotExhausted(sets []rangeSet) error {
	var errs []error
	for n, set := range sets {
		if _, err := se.nextFree(search{set: set, last: se.cursor(n)}); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", set.name(n), err))
		}
	}
	return errors.Join(errs...)
}

// checkWritable returns an error if no file can be written in dir. If dir does not exist, it checks
// the nearest parent folder that exists.
func checkWritable(dir string) error {
	for unix.Access(dir, unix.F_OK) != nil && dir != "/" {
		dir = filepath.Dir(dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && (st.Bavail == 0 || st.Files > 0 && st.Ffree == 0) {
		return &fs.PathError{Op: "write to", Path: dir, Err: unix.ENOSPC}
	}
	return nil
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
		failed, err := se.readAll(func(res reservation) bool { return valid[res.owner] || res.owner == owner{} && !res.incomplete })
		return errors.Join(failed, se.readErr, err)
	}))
}
