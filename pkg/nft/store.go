package nft

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// A ClaimKind describes one kind of claims in a table.
//
// OwnerMap is the name of the owner map. Its keys are the OwnerKeys of attachments, its values
// are the names of their claims. ElementRefs returns where the elements of the claim with that
// name are. The first of them is the primary element: the owner of that element holds the claim.
// PrimarySets are the sets of primary elements, OtherSets are the sets of the other elements. If
// ElementRefs is nil, the only element of a claim is that in the owner map.
type ClaimKind struct {
	OwnerMap    string
	PrimarySets []string
	OtherSets   []string
	ElementRefs func(name Key) []ElementRef
}

func (k ClaimKind) elementRefs(name Key) []ElementRef {
	if k.ElementRefs == nil {
		return nil
	}
	return k.ElementRefs(name)
}

// A Claim is something in a table that one attachment at a time can have, such as a port of the
// node. A claim without Elements is only in the owner map, and any number of attachments can have
// the same one.
type Claim struct {
	Description fmt.Stringer // describes the claim in errors and warnings
	OwnerMap    string       // the owner map of the ClaimKind
	OwnerEntry  Element      // the element in the owner map; its Data is the name of the claim
	Elements    []SetElement // at the ElementRefs of the ClaimKind, the primary element first
	// PerContainer: it is not a conflict if another attachment of the same container holds the claim.
	PerContainer bool
}

// mayHold reports whether holder may hold the claim of owner. Both are comments of elements.
func (c Claim) mayHold(holder, owner string) bool {
	of, _ := types.ParseAttachment(owner)
	by, _ := types.ParseAttachment(holder)
	return c.PerContainer && of != by && of.ContainerID == by.ContainerID
}

// A SetElement is an element with the set or map that it is in.
type SetElement struct {
	Set string
	Element
}

// Ref returns where the element is.
func (e SetElement) Ref() ElementRef { return ElementRef{e.Set, e.Key} }

// setName names the set or map in errors.
func (e SetElement) setName() string {
	if e.Data == "" && e.Jump == "" {
		return "set " + e.Set
	}
	return "map " + e.Set
}

// A Store adds, checks and deletes the claims of one attachment in a table.
//
// If two attachments claim the same key, the one that was added last holds the claim. The
// elements of the former holder are displaced: they move to maps with the name "<set>-displaced",
// under the key of the set with a number after it. The highest number is the newest. When the
// holder's claim is deleted, the newest displaced claim that is in an owner map gets its elements
// back. The maps are made when they are needed. A release of plumb that does not know these maps
// does not delete displaced elements. Because it deletes the claim from the owner map, they are
// not restored.
//
// Each change is one transaction. It is made in the generation of the ruleset in which the
// elements were read. Only GC reads all elements of a set.
type Store struct {
	Conn        *Conn
	Layout      Layout // only its table and the types of its sets are used
	Kinds       []ClaimKind
	Owner       types.Attachment
	Claims      []Claim
	Description string // describes the claims in steps and errors: "masquerade of net1/cid1/eth0"

	// Ensure makes the sets and chains that the elements need. Add calls it again if they were
	// deleted meanwhile.
	Ensure func() error
	// AddToTx adds what only this attachment needs to the transaction of Add. It may be nil.
	AddToTx func(tx *Tx) error
	// Warn gets a warning for each claim that Add takes from another owner. It may be nil.
	Warn func(format string, args ...any)
}

// Add adds all claims, deletes those that the owner had before, and pushes inverse, which deletes
// the new ones. It pushes inverse also if it fails and the kernel may have added them. Claims that
// other owners hold are displaced, with a warning each.
func (s *Store) Add(u *undo.Stack, inverse func() error) error {
	const attempts = 10
	var replaced []SetElement
	var err error
	for range attempts {
		if err := s.Ensure(); err != nil {
			return err
		}
		err = s.commitAdd(s.addNew)
		if errors.Is(err, fs.ErrExist) {
			err = s.commitAdd(func(tx *Tx) (err error) {
				replaced, err = s.replace(tx)
				return err
			})
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err == nil || outcomeUnknown(err) {
		u.Push("delete "+s.Description, inverse)
	}
	if err != nil {
		return addAdvice(s.Layout.Table, err)
	}
	s.warn(replaced)
	return nil
}

// commitAdd makes the transaction of Add with the changes that add puts into it.
func (s *Store) commitAdd(add func(tx *Tx) error) error {
	return s.Conn.Atomically("nft add "+s.Description, func(tx *Tx) error {
		if s.AddToTx != nil {
			if err := s.AddToTx(tx); err != nil {
				return err
			}
		}
		return add(tx)
	})
}

// addNew adds the claims to tx if the owner has no claims and no owner holds one of them, which is
// the usual case. Otherwise it returns fs.ErrExist.
//
// It looks up the first key of the owner in each owner map, and the primary elements: without
// these, the other elements do not exist either. If somebody deleted a part of the elements by
// hand, one may exist. Then the kernel refuses the transaction with fs.ErrExist, or keeps the
// element if it has the same data.
func (s *Store) addNew(tx *Tx) error {
	var refs []ElementRef
	for _, k := range s.Kinds {
		refs = append(refs, ElementRef{k.OwnerMap, OwnerKey(s.Owner, 0)})
	}
	claims := s.completeClaims()
	for _, c := range claims {
		if len(c.Elements) > 0 {
			refs = append(refs, c.Elements[0].Ref())
		}
	}
	elements, err := s.Conn.Lookup(s.Layout.Table, refs)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(elements, func(e Element) bool { return e.Key != "" }) {
		return fs.ErrExist
	}
	for _, c := range claims {
		tx.AddElement(s.Layout.Table, c.OwnerMap, c.OwnerEntry)
		for _, e := range c.Elements {
			tx.AddElement(s.Layout.Table, e.Set, e.Element)
		}
	}
	return nil
}

// replace adds the claims to tx, in place of those that the owner has and those that other owners
// hold. It returns the primary elements of other owners.
func (s *Store) replace(tx *Tx) (replaced []SetElement, err error) {
	e := s.newEdit()
	if _, err := e.deleteOwned(); err != nil {
		return nil, err
	}
	replaced, err = e.addClaims()
	e.addTo(tx)
	return replaced, err
}

// completeClaims returns the claims with key and comment of their elements in the owner maps.
func (s *Store) completeClaims() []Claim {
	key, count := OwnerKeys(s.Owner), map[string]int{}
	claims := make([]Claim, 0, len(s.Claims))
	for _, c := range s.Claims {
		c.OwnerEntry.Key, c.OwnerEntry.Comment = key(count[c.OwnerMap]), Owner(s.Owner)
		c.Elements = c.Elements[:len(c.Elements):len(c.Elements)]
		count[c.OwnerMap]++
		claims = append(claims, c)
	}
	return claims
}

// warn warns of each claim whose primary element another owner had.
func (s *Store) warn(replaced []SetElement) {
	if s.Warn == nil {
		return
	}
	holder := map[ElementRef]string{}
	for _, e := range replaced {
		holder[e.Ref()] = e.Comment
	}
	for _, c := range s.Claims {
		if len(c.Elements) == 0 {
			continue
		}
		if former := holder[c.Elements[0].Ref()]; former != "" && !c.mayHold(former, Owner(s.Owner)) {
			s.Warn("%s was held by %s, and is taken over", c.Description, OwnerName(former))
		}
	}
}

// Delete adds the deletion of all claims of the owner to tx, and returns the deleted elements.
// Each claim that the owner held goes to the newest displaced one. Chains to which only the deleted
// elements jumped are deleted as well, because this was the last attachment that used them.
//
// The claims are found by the owner maps. Those in s.Claims are deleted, too, if the owner has
// them; of these only OwnerMap and the name are used.
func (s *Store) Delete(tx *Tx) (deleted []SetElement, err error) {
	e := s.newEdit()
	deleted, err = e.deleteOwned()
	e.addTo(tx)
	return deleted, errors.Join(err, e.deleteUnusedChains(tx))
}

// GC adds the deletion of the claims of all owners in the network that are not in keep to tx. It
// reads all elements.
func (s *Store) GC(tx *Tx, network string, keep types.Set) error {
	kept := map[string]bool{}
	for a := range keep {
		kept[Owner(a)] = true
	}
	e := s.newEdit()
	err := e.deleteStale(func(owner string) bool {
		return strings.HasPrefix(owner, NetworkPrefix(network)) && !kept[owner]
	})
	e.addTo(tx)
	return err
}

// Check returns an error that names each element of the claims that is missing, has another
// value or belongs to another owner.
func (s *Store) Check() error {
	e := s.newEdit()
	claims := s.completeClaims()
	var refs []ElementRef
	for _, c := range claims {
		for _, element := range append(c.Elements, SetElement{c.OwnerMap, c.OwnerEntry}) {
			refs = append(refs, element.Ref())
		}
	}
	if err := e.read(refs...); err != nil {
		return err
	}
	var errs []error
	inOwnerMaps := e.valuesInOwnerMaps(claims)
	for _, c := range claims {
		errs = append(errs, e.checkElements(c))
		if !inOwnerMaps[SetElement{c.OwnerMap, Element{Data: c.OwnerEntry.Data, Jump: c.OwnerEntry.Jump}}] {
			errs = append(errs, s.notInOwnerMap(c, e.after[ElementRef{c.OwnerMap, c.OwnerEntry.Key}]))
		}
	}
	return errors.Join(errs...)
}

// valuesInOwnerMaps returns the elements in owner maps at the keys of the claims, without their
// keys and comments: an ADD with the claims in another order is as good.
func (e *edit) valuesInOwnerMaps(claims []Claim) map[SetElement]bool {
	values := map[SetElement]bool{}
	for _, c := range claims {
		if element := e.after[ElementRef{c.OwnerMap, c.OwnerEntry.Key}]; element.Comment == c.OwnerEntry.Comment {
			values[SetElement{c.OwnerMap, Element{Data: element.Data, Jump: element.Jump}}] = true
		}
	}
	return values
}

// checkElements returns an error for each element of the claim that is not as it should be, and
// one for each other owner.
func (e *edit) checkElements(c Claim) error {
	var errs []error
	if len(c.Elements) > 0 && c.mayHold(e.after[c.Elements[0].Ref()].Comment, Owner(e.store.Owner)) {
		return nil
	}
	holder := ""
	for _, want := range c.Elements {
		got := e.after[want.Ref()]
		switch {
		case got == want.Element:
		case got.Key == "":
			errs = append(errs, fmt.Errorf("%s of table %s has no element for %s", want.setName(), e.store.Layout.Table, c.Description))
		case got.Comment == want.Comment:
			errs = append(errs, fmt.Errorf("in %s of table %s, %s leads elsewhere", want.setName(), e.store.Layout.Table, c.Description))
		case got.Comment == "":
			errs = append(errs, fmt.Errorf("in %s of table %s, the element for %s has no owner: another program has made it", want.setName(), e.store.Layout.Table, c.Description))
		case got.Comment != holder:
			holder = got.Comment
			errs = append(errs, fmt.Errorf("%s belongs to %s now", c.Description, OwnerName(holder)))
		}
	}
	return errors.Join(errs...)
}

// notInOwnerMap returns the error for a claim that a DEL would not find by its owner. element is
// the one at the claim's key.
func (s *Store) notInOwnerMap(c Claim, element Element) error {
	err := fmt.Errorf("map %s of table %s has no element that lists %s for its owner", c.OwnerMap, s.Layout.Table, c.Description)
	if element.Key != "" && element.Comment != c.OwnerEntry.Comment {
		err = fmt.Errorf("%w: the element belongs to %s", err, OwnerName(element.Comment))
	}
	return err
}

// OwnerName returns the owner that the comment of an element names, for errors and warnings.
func OwnerName(comment string) string {
	if _, ok := types.ParseAttachment(comment); ok {
		return comment
	}
	return "an unknown owner (" + comment + ")"
}
