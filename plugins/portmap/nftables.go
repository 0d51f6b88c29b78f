package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// addNFT ensures what is shared and adds the elements in one transaction. A chain may
// vanish in between, by a GC that found it unused: then once more.
func (p *portMap) addNFT(c *nft.Conn) error {
	const attempts = 10
	entries := p.entries()
	if len(entries) == 0 {
		return nil
	}
	var err error
	for range attempts {
		if err := p.ensureChains(c); err != nil {
			return fmt.Errorf("port map: %w", err)
		}
		if err = p.addElements(c, entries); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return err
}

func (p *portMap) ensureChains(c *nft.Conn) error {
	if err := c.Ensure(p.layout()); err != nil {
		return err
	}
	for _, ip := range p.ips {
		if cond, ok := p.conditions(ip); ok {
			if err := c.EnsureConditions(p.layout(), cond); err != nil {
				return fmt.Errorf("%s: %w", conditionsKey(familyOf(ip.Addr())), err)
			}
		}
	}
	return nil
}

// addElements takes it that nobody else has the ports.
func (p *portMap) addElements(c *nft.Conn, entries []entry) error {
	what := "nft add " + p.String()
	var tx nft.Tx
	for _, e := range entries {
		tx.AddElement(table(), e.set, e.Element)
	}
	err := c.Commit(what, &tx)
	if errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return p.takeOver(c, entries)
	}
	if err == nil {
		p.r.Undo.Push("delete "+p.String(), func() error { return p.undoNFT(c, nil) })
	}
	return err
}

// takeOver puts the elements in the place of those of former holders: a node is not
// to be wedged by one that died. What they lose is named, and given back when this
// ADD fails.
func (p *portMap) takeOver(c *nft.Conn, entries []entry) error {
	var lost []entry
	err := c.Atomically("nft add "+p.String(), func(tx *nft.Tx) (err error) {
		lost, err = p.replace(c, tx, entries)
		return err
	})
	if err != nil {
		return err
	}
	p.r.Undo.Push("delete "+p.String(), func() error { return p.undoNFT(c, lost) })
	p.warnOfTakeOver(lost)
	return nil
}

// replace gives the elements of others that were in the way.
func (p *portMap) replace(c *nft.Conn, tx *nft.Tx, entries []entry) (lost []entry, err error) {
	wanted := map[nft.Ref]bool{}
	var refs []nft.Ref
	for _, e := range entries {
		wanted[e.ref()] = true
		refs = append(refs, e.ref())
	}
	for _, s := range p.slots() { // a policy that the former holder had, and we have not
		if _, policy := s.refs(); !wanted[policy] {
			refs = append(refs, policy)
		}
	}
	have, err := c.Lookup(table(), refs)
	if err != nil {
		return nil, err
	}
	owner := nft.Owner(p.owner())
	var missing []entry
	for i, old := range have {
		ours := i < len(entries)
		if ours && old == entries[i].Element {
			continue
		}
		if ours {
			missing = append(missing, entries[i])
		}
		if old.Key != "" {
			tx.DelElement(table(), refs[i].Set, refs[i].Key)
		}
		if old.Key != "" && old.Comment != owner {
			lost = append(lost, entry{refs[i].Set, old})
		}
	}
	for _, e := range missing {
		tx.AddElement(table(), e.set, e.Element)
	}
	return lost, nil
}

// slots are those of all mappings.
func (p *portMap) slots() []slot {
	var all []slot
	for _, ip := range p.ips {
		f := familyOf(ip.Addr())
		for _, m := range p.conf.forFamily(f) {
			all = append(all, m.slot(f))
		}
	}
	return all
}

func (p *portMap) warnOfTakeOver(lost []entry) {
	former := map[nft.Ref]string{}
	for _, e := range lost {
		former[e.ref()] = e.Comment
	}
	for _, s := range p.slots() {
		target, _ := s.refs()
		if comment, ok := former[target]; ok {
			p.r.Warn("%s was held by %s, and is taken over", s, attachmentName(comment))
		}
	}
}

func (s slot) String() string {
	if s.hostIP.IsUnspecified() {
		return fmt.Sprintf("host port %d/%s of IP version %s", s.port, s.proto, version(s.family))
	}
	return fmt.Sprintf("host port %s/%s", netip.AddrPortFrom(s.hostIP, s.port), s.proto)
}

func version(f nft.Family) string {
	if f == nft.IPv6 {
		return "6"
	}
	return "4"
}

// undoNFT deletes what an ADD added, and gives back what others lost by it.
func (p *portMap) undoNFT(c *nft.Conn, lost []entry) error {
	return c.Atomically("nft delete "+p.String(), func(tx *nft.Tx) error {
		if _, err := p.delElements(c, tx); err != nil {
			return err
		}
		for _, e := range lost {
			tx.AddElement(table(), e.set, e.Element)
		}
		return nil
	})
}

// A flowEnd is what the connections through a mapping have in common.
type flowEnd struct {
	slot
	to   netip.Addr
	port uint16
}

// delElements deletes the elements that the owner lists, and those under the keys of
// the mappings that are known. An element goes only while it is the owner's own.
func (p *portMap) delElements(c *nft.Conn, tx *nft.Tx) (gone []flowEnd, err error) {
	own, slots, err := p.listed(c)
	if err != nil {
		return nil, err
	}
	for _, e := range own {
		tx.DelElement(table(), e.set, e.Key)
	}
	refs := make([]nft.Ref, 0, 2*len(slots))
	for _, s := range slots {
		target, policy := s.refs()
		refs = append(refs, target, policy)
	}
	have, err := c.Lookup(table(), refs)
	if err != nil {
		return nil, err
	}
	owner := nft.Owner(p.owner())
	for i, e := range have {
		if e.Key == "" || e.Comment != owner {
			continue
		}
		tx.DelElement(table(), refs[i].Set, refs[i].Key)
		if s := slots[i/2]; i%2 == 0 {
			gone = append(gone, flowEnd{s, targetOf(s.family, e.Data).Addr(), targetOf(s.family, e.Data).Port()})
		}
	}
	return gone, nil
}

// targetOf reads the data of a target element.
func targetOf(f nft.Family, k nft.Key) netip.AddrPort {
	size := 4
	if f == nft.IPv6 {
		size = 16
	}
	if len(k) < size+2 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(k[:size].Addr(), uint16(k[size])<<8|uint16(k[size+1]))
}

// listed reads the owner's lists of slots, and adds those of the mappings that the call
// names. Of a family that the call gives the container no address of, only what is
// listed counts.
func (p *portMap) listed(c *nft.Conn) (own []entry, slots []slot, err error) {
	owner, key := nft.Owner(p.owner()), nft.OwnerKeys(p.owner())
	for _, f := range families() {
		known := map[slot]bool{}
		if p.mayHave(f) {
			for _, m := range p.conf.forFamily(f) {
				known[m.slot(f)] = true
				slots = append(slots, m.slot(f))
			}
		}
		together := max(2, len(known)+1) // the list is expected to be that long, and to end
		for n, ended := 0, false; !ended; n, together = n+together, 2*together {
			refs := make([]nft.Ref, together)
			for i := range refs {
				refs[i] = nft.Ref{Set: nft.HostportOwners(f), Key: key(n + i)}
			}
			have, err := c.Lookup(table(), refs)
			if err != nil {
				return nil, nil, err
			}
			for _, e := range have {
				s, fits := parseListed(f, e.Data)
				if !fits || e.Comment != owner {
					continue
				}
				own = append(own, entry{nft.HostportOwners(f), e})
				if !known[s] {
					known[s] = true
					slots = append(slots, s)
				}
			}
			ended = have[together-1].Key == ""
		}
	}
	return own, slots, nil
}

// mayHave is false where the call gives addresses of the container, none of them of the
// family.
func (p *portMap) mayHave(f nft.Family) bool {
	return len(p.ips) == 0 || slices.ContainsFunc(p.ips, func(ip netip.Prefix) bool { return familyOf(ip.Addr()) == f })
}

// checkNFT names what is missing, damaged or in other hands.
func (p *portMap) checkNFT(c *nft.Conn) error {
	entries := p.entries()
	refs := make([]nft.Ref, len(entries))
	for i, e := range entries {
		refs[i] = e.ref()
	}
	have, err := c.Lookup(table(), refs)
	if err != nil {
		return err
	}
	var errs []error
	lost := map[string]bool{} // what was told already: an element and its policy go together
	for i, want := range entries {
		if have[i] == want.Element {
			continue
		}
		about := p.describe(want)
		where := fmt.Sprintf("map %s of table %s", want.set, table())
		switch {
		case have[i].Key == "":
			errs = append(errs, fmt.Errorf("%s has no element for %s", where, about))
		case have[i].Comment == want.Comment:
			errs = append(errs, fmt.Errorf("in %s, %s leads elsewhere", where, about))
		case !lost[about]:
			lost[about] = true
			errs = append(errs, fmt.Errorf("%s belongs to %s now", about, attachmentName(have[i].Comment)))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return p.checkChains(c)
}

// describe says what an entry is about.
func (p *portMap) describe(e entry) string {
	for _, s := range p.slots() {
		if target, policy := s.refs(); e.ref() == target || e.ref() == policy {
			return s.String()
		}
	}
	return "its list of ports"
}

func (p *portMap) checkChains(c *nft.Conn) error {
	damaged, err := c.Damaged(p.layout())
	if err != nil {
		return err
	}
	var errs []error
	for _, ch := range damaged {
		errs = append(errs, fmt.Errorf("chain %s of table %s is gone or lacks rules", ch.Name, table()))
	}
	for _, ip := range p.ips {
		cond, ok := p.conditions(ip)
		if !ok {
			continue
		}
		if whole, err := c.HasConditions(p.layout(), cond); err != nil || !whole {
			errs = append(errs, err, fmt.Errorf("chain %s of table %s is gone or lacks rules", cond.Chain(), table()))
		}
	}
	return errors.Join(errs...)
}

// gcElements deletes all elements of the network that are not to be kept.
func gcElements(c *nft.Conn, tx *nft.Tx, network string, keep types.Set) error {
	kept := map[string]bool{}
	for a := range keep {
		kept[nft.Owner(a)] = true
	}
	for _, set := range mapSets() {
		elements, err := c.Elements(table(), set)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range elements {
			if strings.HasPrefix(e.Comment, nft.NetworkPrefix(network)) && !kept[e.Comment] {
				tx.DelElement(table(), set, e.Key)
			}
		}
	}
	return nil
}

// gcChains removes the network's chains that nothing jumps to any more.
func gcChains(c *nft.Conn, network string) error {
	return errors.Join(
		c.DelUnused(table(), nft.ConditionsChainPrefix(network)), // they jump to the others
		c.DelUnused(table(), nft.SNATChainPrefix(network)),
	)
}
