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

// The codes of this plugin; the README explains them.
const (
	codeNotReserved = 100 // CHECK: the reservations are not those of the result
	codeDuplicate   = 101 // ADD: the attachment holds an address already
)

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
	wanted, err := conf.assign()
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

// assign gives each requested address to the set that it is in; invalid: the set
// may choose. All requests must find a set before anything is reserved.
func (c *config) assign() ([]netip.Addr, error) {
	wanted := make([]netip.Addr, len(c.sets))
	var left []string
	for _, ip := range c.requested {
		n := slices.IndexFunc(c.sets, func(s rangeSet) bool { return s.find(ip) >= 0 })
		if n < 0 || wanted[n].IsValid() {
			left = append(left, ip.String())
			continue
		}
		wanted[n] = ip
		in := c.sets[n][c.sets[n].find(ip)]
		if ip == in.gateway {
			return nil, types.Errorf(types.CodeConfig, "failed to allocate for range %d: requested ip %s is subnet's gateway", n, ip)
		}
		if in.bars(ip) {
			return nil, types.Errorf(types.CodeConfig, "failed to allocate for range %d: requested IP address %s is one that \"exclude\" keeps back", n, ip)
		}
	}
	if err := c.canGive(); err != nil {
		return nil, err
	}
	if len(left) > 0 {
		return nil, types.Errorf(types.CodeConfig, "failed to allocate all requested IPs: %s", strings.Join(left, " "))
	}
	return wanted, nil
}

// canGive names a set of which no address may ever be given out.
func (c *config) canGive() error {
	for n, set := range c.sets {
		if !set.gives() {
			return types.Errorf(types.CodeConfig, "%s has no address to give: the gateway and \"exclude\" keep back all", set.name(n))
		}
	}
	return nil
}

// allocate takes an address of each set. The cursors are written when all are
// taken: a failed ADD leaves them where they were.
func (se *session) allocate(r *skel.Request, sets []rangeSet, wanted []netip.Addr) ([]types.IP, error) {
	if err := se.checkDuplicate(ownerOf(r), sets); err != nil {
		return nil, err
	}
	var ips []types.IP
	for n, set := range sets {
		ip, err := se.take(r, search{set: set, last: se.cursor(n), wanted: wanted[n]})
		if err != nil {
			return nil, fmt.Errorf("failed to allocate for range %d: %w", n, err)
		}
		in := set[set.find(ip)]
		ips = append(ips, types.IP{Interface: types.NoInterface, Address: netip.PrefixFrom(ip, in.subnet.Bits()), Gateway: in.gateway})
	}
	for n, ip := range ips {
		if err := se.setCursor(n, ip.Address.Addr()); err != nil {
			return nil, err
		}
	}
	return ips, nil
}

// checkDuplicate refuses an attachment that holds an address of this network, in
// these ranges or not: it lives, and DEL comes first. A legacy reservation may be
// of another interface, so only one in these ranges counts.
func (se *session) checkDuplicate(o owner, sets []rangeSet) error {
	exact, err := se.heldBy(o)
	if err != nil {
		return err
	}
	old, err := se.heldBy(o.legacy())
	if err != nil {
		return err
	}
	in := func(ip netip.Addr) int {
		return slices.IndexFunc(sets, func(s rangeSet) bool { return s.find(ip) >= 0 })
	}
	old = slices.DeleteFunc(old, func(h holding) bool { return in(h.addr) < 0 })
	for _, h := range append(exact, old...) {
		return types.Errorf(codeDuplicate, "failed to allocate for range %d: %s has been allocated to %s, duplicate allocation is not allowed",
			max(in(h.addr), 0), h.addr, o.containerID)
	}
	return nil
}

// A search is what decides which address of a set is next.
type search struct {
	set    rangeSet
	last   netip.Addr // given out before; invalid: not known
	wanted netip.Addr // invalid: any
}

// take reserves one address of the set.
func (se *session) take(r *skel.Request, s search) (netip.Addr, error) {
	for {
		ip, err := s.wanted, error(nil)
		if !ip.IsValid() {
			ip, err = se.next(s)
		}
		if err != nil {
			return ip, err
		}
		err = se.reserve(&r.Undo, ip, ownerOf(r))
		var taken *errTaken
		if !errors.As(err, &taken) {
			return ip, err
		}
		if s.wanted.IsValid() {
			return ip, types.Errorf(types.CodeTryAgain, "requested IP address %s is not available in range set %s: %w", ip, s.set, err)
		}
		se.taken.add(ip) // by somebody who does not take the lock
	}
}

const (
	// maxTries is how many addresses are looked at one by one before the folder is listed.
	maxTries = 64
	// smallPool is a number of reservations that are read in no time.
	smallPool = 512
	// readInterval is how long a large pool that is exhausted is not read again.
	readInterval = 30 * time.Second
)

// next finds the first free address after the one that was given out last. When none is
// free by the names of the reservations, those without an owner are looked for: that is
// rare, and takes a reading of all.
func (se *session) next(s search) (netip.Addr, error) {
	cooling := se.cooling()
	ip, err := se.free(s, cooling)
	if err == nil && !ip.IsValid() && se.mayRead() {
		if err = se.readAndKeepAll(); err == nil {
			ip, err = se.free(s, cooling)
		}
	}
	if err != nil || ip.IsValid() {
		return ip, err
	}
	return ip, types.Errorf(types.CodeTryAgain, "no IP addresses available in range set: %s%s", s.set, se.waiting(s.set, cooling))
}

// mayRead reports whether the reservations are few, or were not read for a while.
func (se *session) mayRead() bool {
	if se.complete || !se.listed && se.listTaken() != nil {
		return false
	}
	since := se.host.now() - se.lastRead
	return se.names <= smallPool || since > readInterval || since < 0
}

// free finds the first address that is neither taken nor cooling down; invalid: none. It
// goes through no more addresses than are taken or cooling down, however large the ranges.
func (se *session) free(s search, cooling map[netip.Addr]time.Duration) (netip.Addr, error) {
	tries := 0
	for r := range s.set.spans(s.last) {
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

// isFree reports whether an address has no reservation, or one without an owner.
func (se *session) isFree(ip netip.Addr) bool {
	if se.listed || se.taken.has(ip) {
		return !se.taken.has(ip)
	}
	h, err := se.read(ip)
	return errors.Is(err, fs.ErrNotExist) || err == nil && h.torn
}

// waiting says how many addresses of the set will be there soon.
func (se *session) waiting(set rangeSet, cooling map[netip.Addr]time.Duration) string {
	n, first := 0, time.Duration(0)
	for ip, at := range cooling {
		if set.find(ip) < 0 {
			continue
		}
		if left := at + se.cooldown - se.host.now(); n == 0 || left < first {
			first = left
		}
		n++
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d released ones cool down; the first is ready in %s)", n, first.Round(time.Second))
}

// del releases what this attachment holds. It needs nothing of the configuration
// but where to look.
func (h host) del(r *skel.Request) error {
	p, err := parseStoreConf(r)
	if err != nil {
		return err
	}
	st := h.store(r, p)
	return st.ignoreNoneHeld(st.withLock(func(se *session) error { return se.releaseAll(ownerOf(r)) }))
}

// ignoreNoneHeld: where there is no folder, nor could be one, nothing is held. Nor is
// in an empty one, in which a full disk has no room for the lock.
func (s store) ignoreNoneHeld(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENAMETOOLONG) {
		return nil
	}
	if isDiskFull(err) {
		if files, rerr := os.ReadDir(s.dir); rerr == nil && len(files) == 0 {
			return nil
		}
	}
	return err
}

// releaseAll releases what heldByOrLegacy lists.
func (se *session) releaseAll(o owner) error {
	held, err := se.heldByOrLegacy(o)
	errs := []error{err}
	for _, h := range held {
		errs = append(errs, se.unlink(h))
	}
	return errors.Join(errs...)
}

// check compares the reservations with the result of the ADD, as far as it lies in
// the ranges: they may have been changed since.
func (h host) check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	prev, err := r.Prev()
	if err != nil {
		return err
	}
	var held []holding
	err = h.store(r, conf.storeConf).withLock(func(se *session) error {
		held, err = se.heldByOrLegacy(ownerOf(r))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return conf.compare(r, held, prev)
}

func (c *config) compare(r *skel.Request, held []holding, prev *types.Result) error {
	ours := func(ip netip.Addr) bool {
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
		if ours(ip.Address.Addr()) {
			want = append(want, ip.Address.Addr())
		}
	}
	var errs []error
	for _, ip := range want {
		if !slices.ContainsFunc(held, func(h holding) bool { return h.addr == ip }) {
			errs = append(errs, fmt.Errorf("address %s is not reserved for %s in %s", ip, r.Attachment(), c.dataDir))
		}
	}
	for _, h := range held {
		if len(want) > 0 && ours(h.addr) && !slices.Contains(want, h.addr) {
			errs = append(errs, fmt.Errorf("address %s is reserved for %s but not in its result", h.addr, r.Attachment()))
		}
	}
	return types.Coded(codeNotReserved, errors.Join(errs...))
}

// statusWait is shorter than the interval of those who ask.
const statusWait = 2 * time.Second

// status reports whether ADD could keep an address, and with failStatusWhenFull whether
// it would find one. A pool that is full for a while is no failure otherwise: containerd
// reports a network whose STATUS fails as not ready, and Kubernetes then evicts the pods
// of the node, which run well.
func (h host) status(r *skel.Request) error {
	return types.NotAvailable(h.available(r))
}

func (h host) available(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	if err := conf.canGive(); err != nil {
		return err
	}
	h.wait = min(h.wait, statusWait)
	st := h.store(r, conf.storeConf)
	if err := writable(st.dir); err != nil {
		return err
	}
	look := func(se *session) error {
		if !conf.statusFull {
			return nil
		}
		return se.exhausted(conf.sets)
	}
	err = st.withLock(look)
	if errors.Is(err, fs.ErrNotExist) {
		se := st.newSession()
		se.complete, se.listed = true, true
		return look(se)
	}
	return err
}

// exhausted names the sets that have no address to give.
func (se *session) exhausted(sets []rangeSet) error {
	var errs []error
	for n, set := range sets {
		if _, err := se.next(search{set: set, last: se.cursor(n)}); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", set.name(n), err))
		}
	}
	return errors.Join(errs...)
}

// writable reports why no reservation can be kept in dir, which need not be there
// yet.
func writable(dir string) error {
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

// gc releases what belongs to no attachment that lives on. A legacy reservation
// stays as long as any interface of its container does; what is torn or empty is
// nobody's; a thing that is no file is left alone. What cannot be read is left, and
// reported when the rest is done.
func (h host) gc(r *skel.Request) error {
	p, err := parseStoreConf(r)
	if err != nil {
		return err
	}
	valid := map[owner]bool{}
	for a := range r.Valid() {
		o := owner{a.ContainerID, a.IfName}
		valid[o], valid[o.legacy()] = true, true
	}
	st := h.store(r, p)
	return st.ignoreNoneHeld(st.withLock(func(se *session) error {
		failed, err := se.readAll(func(h holding) bool { return valid[h.owner] || h.owner == owner{} && !h.torn })
		return errors.Join(failed, se.readErr, err)
	}))
}
