package nft

import (
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

// readDisplaced returns the displaced claims to a primary element, the oldest first.
func (e *edit) readDisplaced(primary ElementRef) (claims []displacedClaim, err error) {
	for n := 0; ; n++ {
		at := displacedRef(primary, n)
		if err := e.read(at); err != nil {
			return nil, err
		}
		if e.after[at].Key == "" {
			return claims, nil
		}
		c := displacedClaim{owner: e.after[at].Comment}
		if c.refs, err = e.claimInOwnerMap(c.owner, primary); err != nil {
			return nil, err
		}
		if c.inOwnerMap = c.refs != nil; !c.inOwnerMap {
			c.refs = []ElementRef{primary}
		}
		for _, r := range c.refs {
			if err := e.read(displacedRef(r, n)); err != nil {
				return nil, err
			}
			c.elements = append(c.elements, e.after[displacedRef(r, n)])
		}
		claims = append(claims, c)
	}
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

// restore puts the elements of a displaced claim back, if the claim is in an owner map.
func (e *edit) restore(c displacedClaim) {
	if !c.inOwnerMap {
		return
	}
	for i, r := range c.refs {
		e.put(r, c.elements[i])
	}
}

// displaceHolder displaces the claim of the holder, which is the owner of the primary element. It
// does nothing if the element does not exist, or if the claim is not in an owner map. An older
// displaced claim of the same owner is deleted.
func (e *edit) displaceHolder(primary ElementRef) error {
	if e.after[primary].Key == "" {
		return nil
	}
	holder := displacedClaim{owner: e.after[primary].Comment}
	var err error
	holder.refs, err = e.claimInOwnerMap(holder.owner, primary)
	if err != nil || holder.refs == nil {
		return err
	}
	for _, r := range holder.refs {
		element := e.after[r]
		if element.Comment != holder.owner {
			element = Element{}
		}
		holder.elements = append(holder.elements, element)
		e.remove(r)
	}
	old, err := e.readDisplaced(primary)
	if err != nil {
		return err
	}
	kept := withoutOwners(old, func(owner string) bool { return owner == holder.owner })
	kept = kept[max(0, len(kept)-maxDisplaced+1):]
	return e.replaceDisplaced(old, append(kept, holder))
}

// withoutOwners returns a copy of claims without those of the owners for which leaves is true.
func withoutOwners(claims []displacedClaim, leaves func(owner string) bool) []displacedClaim {
	return slices.DeleteFunc(slices.Clone(claims), func(c displacedClaim) bool { return leaves(c.owner) })
}
