package nft

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
)

// An edit reads elements of a store's table, records which elements the table shall have, and
// adds the differences to a transaction. The zero Element stands for one that does not exist.
type edit struct {
	store   *Store
	before  map[Ref]Element // as they were read
	after   map[Ref]Element // as they shall be
	order   []Ref           // all that was read, the oldest first
	allRead map[string]bool // the sets of which all elements were read
	// claims has the claims of some owners, by owner and primary element.
	claims map[string]map[Ref]claimRefs
}

// claimRefs says where the elements of a claim are.
type claimRefs struct {
	ownerEntry Ref   // in the owner map; the zero Ref: it may have no element there
	elements   []Ref // the primary element first
}

func (s *Store) newEdit() *edit {
	return &edit{store: s, before: map[Ref]Element{}, after: map[Ref]Element{}, allRead: map[string]bool{}, claims: map[string]map[Ref]claimRefs{}}
}

// read reads the elements that were not read before.
func (e *edit) read(refs ...Ref) error {
	var unread []Ref
	for _, r := range refs {
		if _, known := e.before[r]; known {
			continue
		}
		e.record(r, Element{})
		if !e.allRead[r.Set] {
			unread = append(unread, r)
		}
	}
	elements, err := e.store.Conn.Lookup(e.store.Layout.Table, unread)
	for i, element := range elements {
		e.before[unread[i]], e.after[unread[i]] = element, element
	}
	return err
}

// record notes an element that was read.
func (e *edit) record(r Ref, element Element) {
	e.before[r], e.after[r] = element, element
	e.order = append(e.order, r)
}

// readSet reads all elements of a set. The set need not exist.
func (e *edit) readSet(set string) error {
	elements, err := e.store.Conn.Elements(e.store.Layout.Table, set)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	e.allRead[set] = true
	for _, element := range elements {
		e.record(Ref{set, element.Key}, element)
	}
	return nil
}

// put sets the element at r, which must have been read. The zero Element deletes it.
func (e *edit) put(r Ref, element Element) {
	if element != (Element{}) {
		element.Key = r.Key
	}
	e.after[r] = element
}

// remove deletes the element at r, if there is one.
func (e *edit) remove(r Ref) { e.put(r, Element{}) }

// addTo adds the differences to the transaction: first deletions, then maps for displaced
// elements, then new elements.
func (e *edit) addTo(tx *Tx) {
	table := e.store.Layout.Table
	var deleted, added []Ref
	for _, r := range e.order {
		if e.before[r] == e.after[r] {
			continue
		}
		if e.before[r].Key != "" {
			deleted = append(deleted, r)
		}
		if e.after[r].Key != "" {
			added = append(added, r)
		}
	}
	for _, r := range deleted {
		tx.DelElement(table, r.Set, r.Key)
	}
	ensured := map[string]bool{}
	for _, r := range added {
		if set, ok := strings.CutSuffix(r.Set, displacedSuffix); ok && !ensured[r.Set] {
			ensured[r.Set] = true
			tx.EnsureSet(table, e.store.Layout.displacedSet(set))
		}
	}
	for _, r := range added {
		tx.AddElement(table, r.Set, e.after[r])
	}
}

// deleteOwned deletes all claims of the store's owner. It returns the elements that were
// deleted, without those in owner maps and those that were displaced.
func (e *edit) deleteOwned() (deleted []Entry, err error) {
	owner := Owner(e.store.Owner)
	listed, err := e.readOwnerMaps(owner)
	if err != nil {
		return nil, err
	}
	claims, err := e.readClaims(e.withHints(listed))
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		for _, r := range c.elements {
			if element := e.after[r]; element.Comment == owner {
				deleted = append(deleted, Entry{r.Set, element})
				e.remove(r)
			}
		}
		if err := e.deleteClaims(c.elements[0], func(o string) bool { return o == owner }); err != nil {
			return nil, err
		}
	}
	for _, c := range listed {
		e.remove(c.ownerEntry)
	}
	return deleted, nil
}

// withHints returns the claims in owner maps and those of the store, each once. It leaves out
// claims without elements.
func (e *edit) withHints(listed []claimRefs) (claims []claimRefs) {
	seen := map[Ref]bool{}
	add := func(c claimRefs) {
		if len(c.elements) > 0 && !seen[c.elements[0]] {
			seen[c.elements[0]] = true
			claims = append(claims, c)
		}
	}
	for _, c := range listed {
		add(c)
	}
	for _, c := range e.store.Claims {
		add(claimRefs{elements: e.elementRefs(c)})
	}
	return claims
}

// readClaims reads the elements of claims. It returns the claims that are in an owner map or
// whose primary element exists.
func (e *edit) readClaims(claims []claimRefs) (existing []claimRefs, err error) {
	var refs []Ref
	for _, c := range claims {
		refs = append(refs, c.elements...)
		if c.ownerEntry != (Ref{}) {
			refs = append(refs, displacedRef(c.elements[0], 0)) // deleteClaims needs it
		}
	}
	if err := e.read(refs...); err != nil {
		return nil, err
	}
	for _, c := range claims {
		if c.ownerEntry != (Ref{}) || e.after[c.elements[0]].Key != "" {
			existing = append(existing, c)
		}
	}
	return existing, nil
}

// readOwnerMaps returns the claims of an owner that are in the owner maps. The keys of an owner
// are numbered, and all numbers up to the highest are in use. So readOwnerMaps reads more and
// more keys until the last one does not exist. It begins with as many as the store has claims.
func (e *edit) readOwnerMaps(owner string) (claims []claimRefs, err error) {
	key, keysRead, claimCount := ownerKeys(owner), map[string]int{}, map[string]int{}
	for _, c := range e.store.Claims {
		claimCount[c.Owners]++
	}
	for kinds := e.store.Kinds; len(kinds) > 0; {
		var all []Ref
		refs := make([][]Ref, len(kinds))
		for i, k := range kinds {
			first := keysRead[k.Owners]
			for n := range max(2, claimCount[k.Owners]+1, first) {
				refs[i] = append(refs[i], Ref{k.Owners, key(first + n)})
			}
			keysRead[k.Owners] += len(refs[i])
			all = append(all, refs[i]...)
		}
		if err := e.read(all...); err != nil {
			return nil, err
		}
		var incomplete []Kind
		for i, k := range kinds {
			claims = append(claims, e.claimsIn(k, owner, refs[i])...)
			if last := refs[i][len(refs[i])-1]; e.before[last].Key != "" {
				incomplete = append(incomplete, k)
			}
		}
		kinds = incomplete
	}
	return claims, nil
}

// claimsIn returns the claims of the owner in these elements of its owner map.
func (e *edit) claimsIn(k Kind, owner string, ownerEntries []Ref) (claims []claimRefs) {
	for _, r := range ownerEntries {
		if element := e.after[r]; element.Comment == owner {
			claims = append(claims, claimRefs{r, k.elementRefs(element.Data)})
		}
	}
	return claims
}

// listedClaim reads the elements of the owner's claim to a primary element, and returns where
// they are. It returns nil if the claim is not in an owner map.
func (e *edit) listedClaim(owner string, primary Ref) ([]Ref, error) {
	if e.claims[owner] == nil {
		listed, err := e.readOwnerMaps(owner)
		if err != nil {
			return nil, err
		}
		e.claims[owner] = map[Ref]claimRefs{}
		for _, c := range listed {
			if len(c.elements) > 0 {
				e.claims[owner][c.elements[0]] = c
			}
		}
	}
	c, ok := e.claims[owner][primary]
	if !ok || e.after[c.ownerEntry].Comment != owner {
		return nil, nil
	}
	return c.elements, e.read(c.elements...)
}

// deleteClaims deletes the claims to a primary element whose owners shall lose them, displaced
// claims included. If nobody has the element then, it goes to a displaced claim.
func (e *edit) deleteClaims(primary Ref, loses func(owner string) bool) error {
	if loses(e.after[primary].Comment) {
		e.remove(primary)
	}
	owners, err := e.displacedOwners(primary)
	if err != nil {
		return err
	}
	count := len(owners)
	if slices.ContainsFunc(owners, loses) {
		claims, err := e.readDisplaced(primary, count)
		if err != nil {
			return err
		}
		kept := slices.DeleteFunc(slices.Clone(claims), func(c displacedClaim) bool { return loses(c.owner) })
		if err := e.replaceDisplaced(claims, kept); err != nil {
			return err
		}
		count = len(kept)
	}
	return e.restoreNewest(primary, count)
}

// addClaims adds the claims of the store. It returns the primary elements that other owners had.
func (e *edit) addClaims() (replaced []Entry, err error) {
	owner, claims := Owner(e.store.Owner), e.store.completeClaims()
	var refs []Ref
	for _, c := range claims {
		refs = append(refs, Ref{c.Owners, c.Listed.Key})
		refs = append(refs, e.elementRefs(c)...)
	}
	if err := e.read(refs...); err != nil {
		return nil, err
	}
	for _, c := range claims {
		e.put(Ref{c.Owners, c.Listed.Key}, c.Listed)
		refs := e.elementRefs(c)
		if len(refs) == 0 {
			continue
		}
		if primary := e.before[refs[0]]; primary.Key != "" && primary.Comment != owner {
			replaced = append(replaced, Entry{refs[0].Set, primary})
		}
		if err := e.displaceHolder(refs[0]); err != nil {
			return nil, err
		}
		for _, r := range refs { // the former holder may have elements that this claim does not need
			e.remove(r)
		}
		for _, element := range c.Elements {
			e.put(element.Ref(), element.Element)
		}
	}
	return replaced, nil
}

// elementRefs returns where the elements of a claim of the store are.
func (e *edit) elementRefs(c Claim) []Ref {
	i := slices.IndexFunc(e.store.Kinds, func(k Kind) bool { return k.Owners == c.Owners })
	return e.store.Kinds[i].elementRefs(c.Listed.Data)
}

// deleteStale deletes all claims of owners that are stale. It reads all elements.
func (e *edit) deleteStale(stale func(owner string) bool) error {
	isPrimary, err := e.readAllSets()
	if err != nil {
		return err
	}
	var staleRefs, primaries []Ref
	for _, r := range e.order {
		if !stale(e.after[r].Comment) {
			continue
		}
		staleRefs = append(staleRefs, r)
		claimed, ok := displacedFrom(r)
		if !ok {
			claimed = r
		}
		if isPrimary[claimed.Set] {
			primaries = append(primaries, claimed)
		}
	}
	for _, r := range primaries {
		if err := e.deleteClaims(r, stale); err != nil {
			return err
		}
	}
	// At last, because deleteClaims finds the elements of displaced claims by the owner maps.
	for _, r := range staleRefs {
		if stale(e.after[r].Comment) {
			e.remove(r)
		}
	}
	return nil
}

// readAllSets reads all sets of all kinds of claims. It returns which have primary elements.
func (e *edit) readAllSets() (isPrimary map[string]bool, err error) {
	isPrimary = map[string]bool{}
	var errs []error
	for _, k := range e.store.Kinds {
		errs = append(errs, e.readSet(k.Owners))
		for _, set := range k.Held {
			isPrimary[set] = true
		}
		for _, set := range slices.Concat(k.Held, k.With) {
			errs = append(errs, e.readSet(set), e.readSet(set+displacedSuffix))
		}
	}
	return isPrimary, errors.Join(errs...)
}
