package nft

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// An edit reads elements of a store's table, records which elements the table shall have, and
// adds the differences to a transaction. The zero Element stands for one that does not exist.
type edit struct {
	store   *Store
	before  map[ElementRef]Element // as they were read
	after   map[ElementRef]Element // as they shall be
	order   []ElementRef           // all that was read, the oldest first
	allRead map[string]bool        // the sets of which all elements were read
	// claims has the claims of some owners, by owner and primary element.
	claims map[string]map[ElementRef]claimRefs
}

// claimRefs says where the elements of a claim are.
type claimRefs struct {
	ownerEntry ElementRef   // in the owner map; the zero ElementRef: it may have no element there
	elements   []ElementRef // the primary element first
}

// listed reports whether the claim is in the owner map.
func (c claimRefs) listed() bool { return c.ownerEntry != (ElementRef{}) }

func (s *Store) newEdit() *edit {
	return &edit{store: s, before: map[ElementRef]Element{}, after: map[ElementRef]Element{}, allRead: map[string]bool{}, claims: map[string]map[ElementRef]claimRefs{}}
}

// read reads the elements that were not read before.
func (e *edit) read(refs ...ElementRef) error {
	var unread []ElementRef
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
func (e *edit) record(r ElementRef, element Element) {
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
		e.record(ElementRef{set, element.Key}, element)
	}
	return nil
}

// put sets the element at r, which must have been read. The zero Element deletes it.
func (e *edit) put(r ElementRef, element Element) {
	if element != (Element{}) {
		element.Key = r.Key
	}
	e.after[r] = element
}

// remove deletes the element at r, if there is one.
func (e *edit) remove(r ElementRef) { e.put(r, Element{}) }

// addTo adds the differences to the transaction: first deletions, then maps for displaced
// elements, then new elements.
func (e *edit) addTo(tx *Tx) {
	table := e.store.Layout.Table
	var deleted, added []ElementRef
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

// maxSharedRules is the largest number of rules in a chain that the attachments of a network share. If
// the chain has more uses, it is in use, and its rules need not be listed, which takes most of the time.
const maxSharedRules = 3

// deleteUnusedChains adds the deletion of the chains to tx to which nothing jumps after tx, but an element
// or a deleted chain jumped before. It leaves out chains to which the elements of owner maps jump.
func (e *edit) deleteUnusedChains(tx *Tx) error {
	table, jumps := e.store.Layout.Table, map[string]int{} // the number of jumps that tx adds
	for r := range e.before {
		if !slices.ContainsFunc(e.store.Kinds, func(k ClaimKind) bool { return k.OwnerMap == r.Set }) {
			jumps[e.before[r].Jump]--
			jumps[e.after[r].Jump]++
		}
	}
	deleted := map[string]bool{"": true} // an element or rule without a jump has an empty name
	for chains := slices.Sorted(maps.Keys(jumps)); len(chains) > 0; chains = chains[1:] {
		chain := chains[0]
		if jumps[chain] >= 0 || deleted[chain] {
			continue
		}
		use, err := e.store.Conn.ChainUse(table, chain)
		if err != nil {
			return err
		}
		if use.Count+jumps[chain] > maxSharedRules {
			continue
		}
		rules, err := e.store.Conn.Rules(table, chain)
		if err != nil {
			return err
		}
		if use.Count+jumps[chain] > len(rules) {
			continue
		}
		tx.DelChain(table, chain)
		deleted[chain] = true
		for _, r := range rules {
			jumps[r.Jump]--
			chains = append(chains, r.Jump)
		}
	}
	return nil
}

// deleteOwned deletes all claims of the store's owner. It returns the elements that were
// deleted, without those in owner maps and those that were displaced.
func (e *edit) deleteOwned() (deleted []SetElement, err error) {
	owner := Owner(e.store.Owner)
	listed, err := e.readOwnerMaps(owner)
	if err != nil {
		return nil, err
	}
	claims := e.withHints(listed)
	if err := e.readClaims(claims); err != nil {
		return nil, err
	}
	for _, c := range claims {
		if !c.listed() && e.after[c.elements[0]].Key == "" {
			continue // nobody has the claim
		}
		for _, r := range c.elements {
			if element := e.after[r]; element.Comment == owner {
				deleted = append(deleted, SetElement{r.Set, element})
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
	all := slices.Clone(listed)
	for _, c := range e.store.Claims {
		all = append(all, claimRefs{elements: e.elementRefs(c)})
	}
	seen := map[ElementRef]bool{}
	for _, c := range all {
		if len(c.elements) > 0 && !seen[c.elements[0]] {
			seen[c.elements[0]] = true
			claims = append(claims, c)
		}
	}
	return claims
}

// readClaims reads the elements that deleteOwned needs, in one look-up.
func (e *edit) readClaims(claims []claimRefs) error {
	var refs []ElementRef
	for _, c := range claims {
		refs = append(refs, c.elements...)
		if c.listed() {
			refs = append(refs, displacedRef(c.elements[0], 0))
		}
	}
	return e.read(refs...)
}

// readOwnerMaps returns the claims of an owner that are in the owner maps.
func (e *edit) readOwnerMaps(owner string) (claims []claimRefs, err error) {
	for _, k := range e.store.Kinds {
		more, err := e.readOwnerMap(k, owner)
		if err != nil {
			return nil, err
		}
		claims = append(claims, more...)
	}
	return claims, nil
}

// readOwnerMap returns the claims of an owner that are in one owner map. The keys of an owner are
// numbered, and all numbers up to the highest are in use. So readOwnerMap reads more and more keys
// until the last one does not exist. It begins with one more than the claims of the store, and
// with two at least.
func (e *edit) readOwnerMap(k ClaimKind, owner string) (claims []claimRefs, err error) {
	key, claimCount := ownerKeys(owner), 0
	for _, c := range e.store.Claims {
		if c.OwnerMap == k.OwnerMap {
			claimCount++
		}
	}
	for first, count := 0, max(2, claimCount+1); ; first, count = first+count, first+count {
		refs := make([]ElementRef, count)
		for i := range refs {
			refs[i] = ElementRef{k.OwnerMap, key(first + i)}
		}
		if err := e.read(refs...); err != nil {
			return nil, err
		}
		claims = append(claims, e.claimsIn(k, owner, refs)...)
		if e.before[refs[count-1]].Key == "" {
			return claims, nil
		}
	}
}

// claimsIn returns the claims of the owner in these elements of its owner map.
func (e *edit) claimsIn(k ClaimKind, owner string, ownerEntries []ElementRef) (claims []claimRefs) {
	for _, r := range ownerEntries {
		if element := e.after[r]; element.Comment == owner {
			claims = append(claims, claimRefs{r, k.elementRefs(element.Data)})
		}
	}
	return claims
}

// claimInOwnerMap reads the elements of the owner's claim to a primary element, and returns where
// they are. It returns nil if the claim is not in an owner map.
func (e *edit) claimInOwnerMap(owner string, primary ElementRef) ([]ElementRef, error) {
	if e.claims[owner] == nil {
		listed, err := e.readOwnerMaps(owner)
		if err != nil {
			return nil, err
		}
		e.claims[owner] = map[ElementRef]claimRefs{}
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
// claims included. If nobody has the element then, the newest displaced claim is restored. A
// displaced claim that is not in an owner map is deleted instead.
func (e *edit) deleteClaims(primary ElementRef, loses func(owner string) bool) error {
	if loses(e.after[primary].Comment) {
		e.remove(primary)
	}
	displaced, err := e.readDisplaced(primary)
	if err != nil {
		return err
	}
	kept := withoutOwners(displaced, loses)
	for len(kept) > 0 && e.after[primary].Key == "" {
		newest := len(kept) - 1
		e.restore(kept[newest])
		kept = kept[:newest]
	}
	return e.replaceDisplaced(displaced, kept)
}

// addClaims adds the claims of the store. It returns the primary elements that other owners had.
func (e *edit) addClaims() (replaced []SetElement, err error) {
	owner, claims := Owner(e.store.Owner), e.store.completeClaims()
	var refs []ElementRef
	for _, c := range claims {
		refs = append(refs, ElementRef{c.OwnerMap, c.OwnerEntry.Key})
		refs = append(refs, e.elementRefs(c)...)
	}
	if err := e.read(refs...); err != nil {
		return nil, err
	}
	for _, c := range claims {
		e.put(ElementRef{c.OwnerMap, c.OwnerEntry.Key}, c.OwnerEntry)
		refs := e.elementRefs(c)
		if len(refs) == 0 {
			continue
		}
		if primary := e.before[refs[0]]; primary.Key != "" && primary.Comment != owner {
			replaced = append(replaced, SetElement{refs[0].Set, primary})
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
func (e *edit) elementRefs(c Claim) []ElementRef {
	i := slices.IndexFunc(e.store.Kinds, func(k ClaimKind) bool { return k.OwnerMap == c.OwnerMap })
	return e.store.Kinds[i].elementRefs(c.OwnerEntry.Data)
}

// deleteStale deletes all claims of owners that are stale. It reads all elements.
func (e *edit) deleteStale(stale func(owner string) bool) error {
	isPrimary, err := e.readAllSets()
	if err != nil {
		return err
	}
	var staleRefs, primaries []ElementRef
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
		errs = append(errs, e.readSet(k.OwnerMap))
		for _, set := range k.PrimarySets {
			isPrimary[set] = true
		}
		for _, set := range slices.Concat(k.PrimarySets, k.OtherSets) {
			errs = append(errs, e.readSet(set), e.readSet(set+displacedSuffix))
		}
	}
	return isPrimary, errors.Join(errs...)
}
