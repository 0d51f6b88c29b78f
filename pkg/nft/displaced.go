package nft

import (
	"errors"
	"slices"
	"strings"
)

// maxDisplaced is the maximum number of displaced claims to one element. If there is one more,
// the oldest is deleted: a runtime that never calls DEL must not make ADD slower and slower.
const maxDisplaced = 256

// displacedSuffix ends the name of the map for displaced elements of a set.
const displacedSuffix = "-displaced"

// displacedSet describes the map for displaced elements of a set.
func (l Layout) displacedSet(set string) Set {
	i := slices.IndexFunc(l.Sets, func(s Set) bool { return s.Name == set })
	s := l.Sets[i]
	return Set{Name: set + displacedSuffix, Key: append(s.Key[:len(s.Key):len(s.Key)], InetService), Data: s.Data}
}

// displacedRef returns where the n-th displaced element of r is. Its key is that of r with a
// number after it, of which the type is that of a port.
func displacedRef(r ElementRef, n int) ElementRef {
	return ElementRef{r.Set + displacedSuffix, Concat(r.Key, PortKey(uint16(n)))}
}

// displacedFrom is the inverse of displacedRef. ok is false if r is not in a map for displaced
// elements.
func displacedFrom(r ElementRef) (original ElementRef, ok bool) {
	set, ok := strings.CutSuffix(r.Set, displacedSuffix)
	if !ok || len(r.Key) < 4 {
		return ElementRef{}, false
	}
	return ElementRef{set, r.Key[:len(r.Key)-4]}, true
}

// A displacedClaim is a claim that another owner took over. If it is not in an owner map, only
// its primary element is known.
type displacedClaim struct {
	owner    string
	listed   bool         // in an owner map
	refs     []ElementRef // where its elements were, the primary one first
	elements []Element    // for each of refs; the zero Element: the claim has none there
}

// displacedOwners returns the owners of the displaced claims to a primary element, the oldest
// first.
func (e *edit) displacedOwners(primary ElementRef) (owners []string, err error) {
	for n, count := 0, 1; n < 2*maxDisplaced; n, count = n+count, min(2*count, 32) {
		var refs []ElementRef
		for i := range count {
			refs = append(refs, displacedRef(primary, n+i))
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

// readDisplaced returns the count oldest displaced claims to a primary element.
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

// readDisplacedAt returns the n-th displaced claim to a primary element.
func (e *edit) readDisplacedAt(primary ElementRef, n int) (displacedClaim, error) {
	c := displacedClaim{owner: e.after[displacedRef(primary, n)].Comment}
	refs, err := e.listedClaim(c.owner, primary)
	c.refs, c.listed = refs, refs != nil
	if !c.listed {
		c.refs = []ElementRef{primary}
	}
	for _, r := range c.refs {
		err = errors.Join(err, e.read(displacedRef(r, n)))
		c.elements = append(c.elements, e.after[displacedRef(r, n)])
	}
	return c, err
}

// replaceDisplaced replaces all displaced claims to a primary element, which are the old ones.
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

// restoreNewest gives a primary element that nobody has to the newest of its count displaced
// claims. Claims that are not in an owner map are deleted instead.
func (e *edit) restoreNewest(primary ElementRef, count int) error {
	for n := count - 1; n >= 0 && e.after[primary].Key == ""; n-- {
		c, err := e.readDisplacedAt(primary, n)
		if err != nil {
			return err
		}
		for i, r := range c.refs {
			e.remove(displacedRef(r, n))
			if c.listed {
				e.put(r, c.elements[i])
			}
		}
	}
	return nil
}

// displaceHolder displaces the claim of the owner that has a primary element. If that claim is
// not in an owner map, it does nothing.
func (e *edit) displaceHolder(primary ElementRef) error {
	holder := e.after[primary].Comment
	if e.after[primary].Key == "" {
		return nil
	}
	refs, err := e.listedClaim(holder, primary)
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

// moveToDisplaced makes the owner's elements at refs the n-th displaced ones.
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
