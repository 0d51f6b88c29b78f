package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// CodeDuplicate is the error code of an ADD for an attachment that already owns an address.
const CodeDuplicate = 101

// A NoneFreeError is the error for a range set without a free address that may be allocated, and for a requested
// address of the set that may not be allocated. In errors of this package, it has types.CodeTryAgain.
type NoneFreeError struct {
	Set  int        // the index of the range set, from 0
	Addr netip.Addr // the requested address, or the zero Addr if none was requested from the set
	text string
}

func (e *NoneFreeError) Error() string { return e.text }

// A Choice contains the addresses of the range sets that may be allocated. The zero Choice contains none.
type Choice struct {
	all       bool
	addresses []netip.Addr // the choice if all is false
}

// All is the choice of a plugin that may allocate every address of the range sets.
func All(*Session) (Choice, error) { return Choice{all: true}, nil }

// OnlyAddresses returns the choice of these addresses. Addresses that are excluded or in no range are not allocated.
func OnlyAddresses(addrs []netip.Addr) Choice { return Choice{addresses: addrs} }

// usableAfter returns the addresses of a set that may be allocated, in the order of rangeSet.usableAfter.
func (c Choice) usableAfter(set rangeSet, last netip.Addr) iter.Seq[netip.Addr] {
	if c.all {
		return set.usableAfter(last)
	}
	return slices.Values(set.usableAmong(c.addresses, last))
}

func (c Choice) contains(ip netip.Addr) bool { return c.all || slices.Contains(c.addresses, ip) }

// Allocate reserves the addresses of an ADD and returns its result. It creates the directory of the network and locks
// it, calls choose, reserves one address of each range set, and pushes the releases to r.Undo. From each set, it
// reserves the requested address or, without a request, the first free address of the choice after the address that
// was allocated last. choose must return quickly, because it runs while the directory is locked.
//
// If no address of the choice is free, the error matches *NoneFreeError. After an error, Allocate may have reserved
// addresses of other sets. Roll back r.Undo before you call Allocate again.
func (p *Pool) Allocate(r *skel.Request, choose func(*Session) (Choice, error)) (*types.Result, error) {
	dns, err := p.checkAdd()
	if err != nil {
		return nil, err
	}
	wanted, err := p.requestedPerSet()
	if err != nil {
		return nil, err
	}
	if err := p.createDir(); err != nil {
		return nil, err
	}
	var ips []types.IP
	err = p.Lock(func(se *Session) error {
		choice, err := choose(se)
		if err == nil {
			ips, err = allocation{se, r, choice}.allocate(p.sets, wanted)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &types.Result{IPs: ips, Routes: p.routes, DNS: dns}, nil
}

// requestedPerSet returns, for each range set, the requested address that is in the set, or an
// invalid address if none is requested from it. It returns an error if a requested address cannot
// be allocated, is in no set, or is in the same set as another one.
func (p *Pool) requestedPerSet() ([]netip.Addr, error) {
	wanted := make([]netip.Addr, len(p.sets))
	var unassigned []string
	for _, ip := range p.Requested {
		n := findSet(p.sets, ip)
		if n < 0 {
			unassigned = append(unassigned, ip.String()+" is in no range")
			continue
		}
		if wanted[n].IsValid() {
			unassigned = append(unassigned, fmt.Sprintf("%s is in the same range set as %s, and ADD allocates one address from each", ip, wanted[n]))
			continue
		}
		wanted[n] = ip
		found := p.sets[n][p.sets[n].find(ip)]
		if ip == found.gateway {
			return nil, types.Errorf(types.CodeConfig, "failed to allocate for range %d: requested ip %s is subnet's gateway", n, ip)
		}
		if found.excludes(ip) {
			return nil, types.Errorf(types.CodeConfig, "failed to allocate for range %d: requested IP address %s is excluded by \"exclude\"", n, ip)
		}
	}
	if len(unassigned) > 0 {
		return nil, types.Errorf(types.CodeConfig, "failed to allocate all requested IPs: %s", strings.Join(unassigned, "; "))
	}
	return wanted, nil
}

// checkAdd executes the checks of ADD that do not depend on the attachment, before ADD changes anything. STATUS executes
// the same checks. checkAdd returns the DNS of the result.
func (p *Pool) checkAdd() (types.DNS, error) {
	dns, err := readResolvConf(p.resolvConf)
	if err != nil {
		return types.DNS{}, err
	}
	return dns, p.checkUsable()
}

// checkUsable returns an error for the first range set whose addresses are all excluded.
func (p *Pool) checkUsable() error {
	for n, set := range p.sets {
		if !set.hasUsable() {
			return types.Errorf(types.CodeConfig, "%s has no usable address: all are excluded (the gateway always is); make the range larger or \"exclude\" smaller", p.setKeys[n])
		}
	}
	return nil
}

// An allocation is an ADD whose process holds the lock.
type allocation struct {
	*Session
	request *skel.Request
	choice  Choice
}

// allocate reserves one address of each set. It writes the cursors after the last reservation, so that a failed ADD
// does not move them.
func (a allocation) allocate(sets []rangeSet, wanted []netip.Addr) ([]types.IP, error) {
	if err := a.checkDuplicate(ownerOf(a.request), sets); err != nil {
		return nil, err
	}
	a.pruneIfDue(sets)
	remembered := a.remembered()
	isRemembered := make([]bool, len(sets))
	var ips []types.IP
	for n, set := range sets {
		ip, err := wanted[n], error(nil)
		if ip.IsValid() {
			err = a.reserveRequested(n, set, ip)
		} else if ip, err = a.reserveRemembered(set, remembered); err == nil && !ip.IsValid() {
			ip, err = a.reserveFree(n, set)
		} else {
			isRemembered[n] = true
		}
		if err != nil {
			return nil, fmt.Errorf("failed to allocate for range %d: %w", n, err)
		}
		pool := set[set.find(ip)]
		ips = append(ips, types.IP{Interface: types.NoInterface, Address: netip.PrefixFrom(ip, pool.subnet.Bits()), Gateway: pool.gateway})
	}
	for n, ip := range ips {
		if isRemembered[n] { // the next search continues after the last address that a search found
			continue
		}
		if err := a.setCursor(n, ip.Address.Addr()); err != nil {
			return nil, err
		}
	}
	return ips, nil
}

// checkDuplicate returns an error if the attachment already has an address in the network, even outside these ranges,
// because the runtime must call DEL before it calls ADD again. It reads only the addresses in the attachment's address
// file, and removes the file if none of them belongs to the attachment.
func (se *Session) checkDuplicate(o owner, sets []rangeSet) error {
	namedAddrs := se.namedAddrs(o)
	held, _, err := se.confirm(o, namedAddrs)
	for _, res := range held {
		return types.Errorf(CodeDuplicate, "failed to allocate for range %d: %s has been allocated to %s, duplicate allocation is not allowed",
			max(findSet(sets, res.addr), 0), res.addr, o.containerID)
	}
	if err == nil && len(namedAddrs) > 0 {
		err = se.removeAddressFile(o)
	}
	return err
}

func (a allocation) reserveRequested(n int, set rangeSet, ip netip.Addr) error {
	if !a.choice.contains(ip) {
		return types.Coded(types.CodeTryAgain, &NoneFreeError{n, ip, fmt.Sprintf(
			"requested IP address %s is not available in range set %s: it is not one of the addresses of this node", ip, set)})
	}
	err := error(fs.ErrExist)
	if !a.isTaken(ip) {
		err = a.reserve(&a.request.Undo, ip, ownerOf(a.request))
	}
	if errors.Is(err, fs.ErrExist) {
		return types.Errorf(types.CodeTryAgain, "requested IP address %s is not available in range set %s: %[1]s is allocated to %[3]s", ip, set, a.ContainerID(ip))
	}
	return err
}

// reserveRemembered reserves the first of these addresses that is in the set, may be allocated, and is free. It ignores the
// cooldown. If there is none, the address is the zero Addr.
func (a allocation) reserveRemembered(set rangeSet, addrs []netip.Addr) (netip.Addr, error) {
	for _, ip := range addrs {
		if i := set.find(ip); i < 0 || set[i].excludes(ip) || !a.choice.contains(ip) || a.isTaken(ip) {
			continue
		}
		if err := a.reserve(&a.request.Undo, ip, ownerOf(a.request)); !errors.Is(err, fs.ErrExist) {
			return ip, err
		}
	}
	return netip.Addr{}, nil
}

// reserveFree reserves a free address of range set n. The search begins after the address that was
// allocated last, or at the start of the set if that is unknown. If no address is free, reserveFree reads all
// reservations, which releases incomplete ones, and searches again if there were some.
func (a allocation) reserveFree(n int, set rangeSet) (netip.Addr, error) {
	for ip, err := range a.unrememberedFirst(a.free(a.choice.usableAfter(set, a.cursor(n)))) {
		if err == nil {
			err = a.reserve(&a.request.Undo, ip, ownerOf(a.request))
		}
		if !errors.Is(err, fs.ErrExist) { // otherwise another program has reserved it without the lock
			return ip, err
		}
	}
	before := len(a.released)
	if a.choice.all { // with OnlyAddresses, the plugin gets other addresses instead
		if err := a.readAll(func(reservation, error) {}); err != nil {
			return netip.Addr{}, err
		}
	}
	if len(a.released) > before {
		return a.reserveFree(n, set)
	}
	return netip.Addr{}, a.exhausted(n, set)
}

// exhausted returns the error for range set n, which has no free address.
func (se *Session) exhausted(n int, set rangeSet) error {
	text := fmt.Sprintf("no IP addresses available in range set: %s%s", set, se.describeCooling(set))
	return types.Coded(types.CodeTryAgain, &NoneFreeError{Set: n, text: text})
}
