package claims

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// An edit reads elements of a store's table, records which elements the table must contain, and
// adds the differences to a transaction. The zero Element stands for an element that does not exist.
type edit struct {
	store  *Store
	before map[nft.ElementRef]nft.Element // the elements as they were read
	after  map[nft.ElementRef]nft.Element // the elements as they must be after the transaction
	order  []nft.ElementRef               // all refs, in the order in which they were read or put
}

func (s *Store) newEdit() *edit {
	return &edit{store: s, before: map[nft.ElementRef]nft.Element{}, after: map[nft.ElementRef]nft.Element{}}
}

func (e *edit) read(refs ...nft.ElementRef) error {
	elements, err := e.store.Conn.Lookup(e.store.Layout.Table, refs)
	for i, element := range elements {
		e.record(refs[i], element)
	}
	return err
}

// isIncomplete reports whether the owner lacks an element of a claim with another key than the first element. An element
// with the same key is optional.
func (e *edit) isIncomplete(c Claim) bool {
	return slices.ContainsFunc(c.Elements, func(s nft.SetElement) bool {
		return s.Key != c.first().Key && !e.store.isOwn(e.after[s.Ref()].Comment)
	})
}

// record notes an element that was read.
func (e *edit) record(r nft.ElementRef, element nft.Element) {
	e.put(r, element)
	e.before[r] = element
}

// readSets reads all elements of all groups and of the index. A set need not exist.
func (e *edit) readSets() error {
	for _, set := range slices.Concat(e.store.groups()...) {
		for _, name := range []string{set, set + FormerSuffix} {
			elements, err := e.store.Conn.Elements(e.store.Layout.Table, name)
			if types.IgnoreNotExist(err) != nil {
				return err
			}
			for _, element := range elements {
				e.record(nft.ElementRef{Set: name, Key: element.Key}, element)
			}
		}
	}
	return nil
}

// put sets the element at r. The zero Element deletes it.
func (e *edit) put(r nft.ElementRef, element nft.Element) {
	if _, known := e.after[r]; !known {
		e.order = append(e.order, r)
	}
	e.after[r] = element
}

// FormerSuffix ends the name of a set that contains former owners' elements.
const FormerSuffix = "-former"

// FormerRef returns the ref at which the element at r is kept for its former owner.
func FormerRef(r nft.ElementRef) nft.ElementRef {
	return nft.ElementRef{Set: r.Set + FormerSuffix, Key: r.Key}
}

func isFormer(r nft.ElementRef) bool { return strings.HasSuffix(r.Set, FormerSuffix) }

// refsByKey returns the refs of each key of a group, including the refs in the sets for former owners.
// The key of the result is the ref in the first set of the group.
func (e *edit) refsByKey() map[nft.ElementRef][]nft.ElementRef {
	firstSets, keySizes := map[string]string{}, map[string]int{}
	for _, s := range e.store.Layout.Sets {
		keySizes[s.Name] = s.KeySize()
	}
	for _, g := range e.store.groups() {
		for _, set := range g {
			firstSets[set], firstSets[set+FormerSuffix] = g[0], g[0]
		}
	}
	refs := map[nft.ElementRef][]nft.ElementRef{}
	for _, r := range e.order {
		first := firstSets[r.Set]
		p := nft.ElementRef{Set: first, Key: r.Key[:min(keySizes[first], len(r.Key))]}
		refs[p] = append(refs[p], r)
	}
	return refs
}

// replace adds the claims to tx, in place of all elements with the same keys and of all other claims of the owner in the
// index. It returns the elements of other owners. It also deletes the chains that only the replaced elements used.
func (s *Store) replace(tx *nft.Tx, allowed []Claim) (replaced []nft.SetElement, err error) {
	e := s.newEdit()
	if err := e.readSets(); err != nil {
		return nil, err
	}
	if s.Index != "" {
		e.deleteOwners(s.isOwn, s.Claims...)
	}
	refs := e.refsByKey()
	for _, c := range allowed {
		replaced = append(replaced, e.moveToFormer(refs[c.first()])...)
	}
	e.putAll(s.elements(allowed))
	e.putAll(s.indexElements())
	e.addTo(tx)
	return replaced, e.deleteUnusedChains(tx)
}

// moveToFormer removes all elements of a key. It moves the elements of another owner to the sets for
// former owners, and returns them.
func (e *edit) moveToFormer(refs []nft.ElementRef) (replaced []nft.SetElement) {
	for _, r := range refs {
		if element := e.after[r]; !isFormer(r) && element.Key != "" && !e.store.isOwn(element.Comment) {
			replaced = append(replaced, nft.SetElement{Set: r.Set, Element: element})
		}
	}
	for _, r := range refs {
		if !isFormer(r) || len(replaced) > 0 || e.store.isOwn(e.after[r].Comment) {
			e.put(r, nft.Element{})
		}
	}
	for _, r := range replaced {
		if r.Comment != "" { // otherwise another program added it, and no DEL would delete it
			e.put(FormerRef(r.Ref()), r.Element)
		}
	}
	return replaced
}

// deleteOwners deletes the elements of the owners for which match returns true, except elements with the keys of the
// kept claims. If no other element of a key remains, the elements of the former owner move back. It returns the deleted
// elements, except elements in the sets for former owners.
func (e *edit) deleteOwners(match func(owner string) bool, kept ...Claim) (deleted []nft.SetElement) {
	byKey := e.refsByKey()
	for _, c := range kept {
		delete(byKey, c.first())
	}
	for _, refs := range byKey {
		var former []nft.ElementRef
		remaining, changed := 0, false
		for _, r := range refs {
			element := e.after[r]
			switch {
			case element.Key == "":
			case match(element.Comment):
				e.put(r, nft.Element{})
				if changed = true; !isFormer(r) {
					deleted = append(deleted, nft.SetElement{Set: r.Set, Element: element})
				}
			case isFormer(r):
				former = append(former, r)
			default:
				remaining++
			}
		}
		if remaining > 0 || !changed {
			continue
		}
		for _, r := range former {
			e.put(nft.ElementRef{Set: strings.TrimSuffix(r.Set, FormerSuffix), Key: r.Key}, e.after[r])
			e.put(r, nft.Element{})
		}
	}
	return deleted
}

func (e *edit) putAll(elements []nft.SetElement) {
	for _, element := range elements {
		e.put(element.Ref(), element.Element)
	}
}

// addTo adds the differences to the transaction, in the order deletions, sets for former owners, new
// elements. The elements of one set follow each other, so that few messages contain them.
func (e *edit) addTo(tx *nft.Tx) {
	table := e.store.Layout.Table
	slices.SortStableFunc(e.order, func(x, y nft.ElementRef) int { return strings.Compare(x.Set, y.Set) })
	var added []nft.ElementRef
	for _, r := range e.order {
		if e.before[r] == e.after[r] {
			continue
		}
		if e.before[r].Key != "" {
			tx.DelElement(table, r.Set, r.Key)
		}
		if e.after[r].Key != "" {
			added = append(added, r)
		}
	}
	for _, s := range e.store.Layout.Sets {
		s.Name += FormerSuffix
		if slices.ContainsFunc(added, func(r nft.ElementRef) bool { return r.Set == s.Name }) {
			tx.EnsureSet(table, s)
		}
	}
	for _, r := range added {
		tx.AddElement(table, r.Set, e.after[r])
	}
}

// maxSharedRules is the largest number of rules in a chain that the attachments of a network share, except LongChains. The
// use count of a chain includes its own rules. Therefore, if the count after tx exceeds maxSharedRules,
// something jumps to the chain, and deleteUnusedChains need not list the chain's rules, which would take
// most of the time.
const maxSharedRules = 3

// deleteUnusedChains adds to tx the deletion of chains to which nothing jumps after tx. It looks at the
// candidates, and at the chains to which an element or a deleted chain jumped before tx.
func (e *edit) deleteUnusedChains(tx *nft.Tx, candidates ...string) error {
	table, jumps := e.store.Layout.Table, map[string]int{} // the number of jumps that tx adds
	for _, r := range e.order {
		jumps[e.before[r].Jump]--
		jumps[e.after[r].Jump]++
	}
	deleted := map[string]bool{"": true} // Jump is empty in an element or rule without a jump
	for chains := append(slices.Sorted(maps.Keys(jumps)), candidates...); len(chains) > 0; chains = chains[1:] {
		chain := chains[0]
		if jumps[chain] >= 0 && !slices.Contains(candidates, chain) || deleted[chain] {
			continue
		}
		use, err := e.store.Conn.ChainUse(table, chain)
		if errors.Is(err, fs.ErrNotExist) { // another call has just deleted it, and therefore the commit fails and is tried again
			continue
		}
		if err != nil {
			return err
		}
		isLong := func(kind string) bool { return strings.HasPrefix(chain, kind+"/") }
		if use+jumps[chain] > maxSharedRules && !slices.ContainsFunc(e.store.LongChains, isLong) {
			continue
		}
		rules, err := e.store.Conn.Rules(table, chain)
		if err != nil {
			return err
		}
		if use+jumps[chain] > len(rules) {
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
