package nft

import (
	"errors"
	"slices"
	"strings"
)

// This file stores the claims that other owners took over. Store describes claims and their
// displaced elements, and ClaimKind describes owner maps and primary elements. "The displaced
// claims to a primary element" have numbers: 0 is the oldest.

// maxDisplaced is the maximum number of displaced claims to one primary element. If one more is
// displaced, the oldest is deleted: a runtime that never calls DEL must not make ADD slower and
// slower.
const maxDisplaced = 256

// displacedSuffix is the end of the name of a map for displaced elements. The map's name begins
// with the name of the set whose elements were displaced.
const displacedSuffix = "-displaced"

// displacedSet describes the map for displaced elements of a set. The layout must have the set.
func (l Layout) displacedSet(set string) Set {
	i := slices.IndexFunc(l.Sets, func(s Set) bool { return s.Name == set })
	s := l.Sets[i]
	return Set{Name: set + displacedSuffix, Key: append(s.Key[:len(s.Key):len(s.Key)], InetService), Data: s.Data}
}

// displacedRef returns where the element at r is stored if it belongs to displaced claim n. The
// key there is the key of r, followed by n as an inet_service (the type of ports).
func displacedRef(r ElementRef, n int) ElementRef {
	return ElementRef{r.Set + displacedSuffix, Concat(r.Key, PortKey(uint16(n)))}
}

// displacedFrom returns where the displaced element at r was: it is the inverse of displacedRef.
// ok is false if r is not in a map for displaced elements.
func displacedFrom(r ElementRef) (original ElementRef, ok bool) {
	set, ok := strings.CutSuffix(r.Set, displacedSuffix)
	if !ok || len(r.Key) < 4 {
		return ElementRef{}, false
	}
	return ElementRef{set, r.Key[:len(r.Key)-4]}, true
}

// A displacedClaim is a claim that another owner took over. If the claim is not in an owner map,
// refs and elements have only its primary element.
type displacedClaim struct {
	owner      string
	inOwnerMap bool
	refs       []ElementRef // where its elements were, the primary one first
	elements   []Element    // that were at refs; the zero Element: the claim had none there
}

// displacedOwners returns the owners of the displaced claims to a primary element, the oldest
// claim first. It does not know the number of claims, which usually is 0. It therefore reads 1
// claim, then the next 2, 4, … up to 32 at a time, until one does not exist.
func (e *edit) displacedOwners(primary ElementRef) (owners []string, err error) {
	for first, count := 0, 1; first < 2*maxDisplaced; first, count = first+count, min(2*count, 32) {
		var refs []ElementRef
		for i := range count {
			refs = append(refs, displacedRef(primary, first+i))
		}
		if err := e.read(refs...); err != nil {
			return nil, err
		}
		for _, r := range refs {
			if e.after[r].Key == "" {
				return owners, nil
			}
			owners = append(owners, e.after[r].Comment)
		}
	}
	return owners, nil
}

// readDisplaced returns the displaced claims 0 to count-1 to a primary element.
func (e *edit) readDisplaced(primary ElementRef, count int) (claims []displacedClaim, err error) {
	for n := range count {
		c, err := e.readDisplacedAt(primary, n)
		if err != nil {
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// readDisplacedAt returns displaced claim n to a primary element.
func (e *edit) readDisplacedAt(primary ElementRef, n int) (displacedClaim, error) {
	c := displacedClaim{owner: e.after[displacedRef(primary, n)].Comment}
	refs, err := e.claimInOwnerMap(c.owner, primary)
	c.refs, c.inOwnerMap = refs, refs != nil
	if !c.inOwnerMap {
		c.refs = []ElementRef{primary}
	}
	for _, r := range c.refs {
		err = errors.Join(err, e.read(displacedRef(r, n)))
		c.elements = append(c.elements, e.after[displacedRef(r, n)])
	}
	return c, err
}

// replaceDisplaced replaces the displaced claims to a primary element. old must be all of them.
func (e *edit) replaceDisplaced(old, replacement []displacedClaim) error {
	for n, c := range old {
		for _, r := range c.refs {
			e.remove(displacedRef(r, n))
		}
	}
	for n, c := range replacement {
		for i, r := range c.refs {
			if err := e.read(displacedRef(r, n)); err != nil {
				return err
			}
			e.put(displacedRef(r, n), c.elements[i])
		}
	}
	return nil
}

// restoreNewest moves the elements of the newest displaced claim back, if the primary element
// does not exist. count is the number of displaced claims. A claim that is not in an owner map is
// deleted instead, and then the next older claim is restored.
func (e *edit) restoreNewest(primary ElementRef, count int) error {
	for n := count - 1; n >= 0 && e.after[primary].Key == ""; n-- {
		c, err := e.readDisplacedAt(primary, n)
		if err != nil {
			return err
		}
		for i, r := range c.refs {
			e.remove(displacedRef(r, n))
			if c.inOwnerMap {
				e.put(r, c.elements[i])
			}
		}
	}
	return nil
}

// displaceHolder displaces the claim of the holder, which is the owner of the primary element. It
// does nothing if the element does not exist, or if the claim is not in an owner map. An older
// displaced claim of the same owner is deleted.
func (e *edit) displaceHolder(primary ElementRef) error {
	holder := e.after[primary].Comment
	if e.after[primary].Key == "" {
		return nil
	}
	refs, err := e.claimInOwnerMap(holder, primary)
	if err != nil || refs == nil {
		return err
	}
	owners, err := e.displacedOwners(primary)
	if err != nil {
		return err
	}
	count := len(owners)
	if count >= maxDisplaced || slices.Contains(owners, holder) {
		claims, err := e.readDisplaced(primary, count)
		if err != nil {
			return err
		}
		kept := slices.DeleteFunc(slices.Clone(claims), func(c displacedClaim) bool { return c.owner == holder })
		kept = kept[max(0, len(kept)-maxDisplaced+1):]
		if err := e.replaceDisplaced(claims, kept); err != nil {
			return err
		}
		count = len(kept)
	}
	return e.moveToDisplaced(holder, refs, count)
}

// moveToDisplaced moves the owner's elements at refs to displaced claim n. It deletes elements of
// other owners at refs.
func (e *edit) moveToDisplaced(owner string, refs []ElementRef, n int) error {
	for _, r := range refs {
		if err := e.read(displacedRef(r, n)); err != nil {
			return err
		}
		element := e.after[r]
		if element.Comment != owner {
			element = Element{}
		}
		e.put(displacedRef(r, n), element)
		e.remove(r)
	}
	return nil
}
