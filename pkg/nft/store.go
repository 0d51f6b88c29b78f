package nft

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// A Kind is one kind of claim that attachments have in a table.
//
// Owners is a map from the OwnerKeys of an attachment to the names of its claims. Held
// lists the sets in which a claim has the element that decides who holds it, With the
// sets of the elements that go with that one. Refs returns where the elements of the
// claim of that name are, the deciding one first. A kind without Refs is a list alone.
type Kind struct {
	Owners string
	Held   []string
	With   []string
	Refs   func(name Key) []Ref
}

func (k Kind) refs(name Key) []Ref {
	if k.Refs == nil {
		return nil
	}
	return k.Refs(name)
}

// A Claim is something of which a table has one for each key, such as a port of the
// node: elements that one attachment can have at a time.
type Claim struct {
	About    fmt.Stringer // the claim in words
	Owners   string       // the Kind
	Listed   Element      // in Owners; its Data is the claim's name
	Elements []Entry      // at the refs of the name
}

// An Entry is an element and the set it is in.
type Entry struct {
	Set string
	Element
}

// Ref returns where the entry is.
func (e Entry) Ref() Ref { return Ref{e.Set, e.Key} }

// A Store keeps the claims of one attachment in a table.
//
// The newest ADD that claims a key holds it. The elements of the former holder are
// displaced: they move to maps of their own, "<set>-displaced", whose keys are those of
// the set with a number behind them, the newest with the highest. When the holder's
// claim is deleted, it goes back to the newest displaced one whose owner still lists it.
// Those maps are made when they are first needed. A release of plumb that does not know
// them deletes no displaced claim of its attachments; nobody lists those any more.
//
// Each change is one transaction, and what it rests on was read in the generation that it
// changes. Nothing but GC reads more than the keys that it is about.
type Store struct {
	Conn   Elements
	Layout Layout // of which the table, and the types of the sets, are used
	Kinds  []Kind
	Owner  types.Attachment
	Claims []Claim
	What   string // the claims in words: "masquerade of net1/cid1/eth0"

	// Ensure makes what the elements need. It is called again when that went away meanwhile.
	Ensure func() error
	// Make puts what only this attachment needs into the transaction of Add; nil: nothing.
	Make func(tx *Tx)
	// Warn tells a person of each claim that is taken over; nil: nobody.
	Warn func(format string, args ...any)
}

// Elements are the operations that a Store needs. *Conn has them.
type Elements interface {
	Lookup(t Table, refs []Ref) ([]Element, error)
	Elements(t Table, set string) ([]Element, error)
	Commit(what string, tx *Tx) error
	Atomically(what string, f func(tx *Tx) error) error
}

// Add makes the elements of all claims, and pushes the inverse, also where the outcome is
// not known. Claims of others are taken over, with a warning each.
func (s *Store) Add(u *undo.Stack, inverse func() error) error {
	const attempts = 10
	var former []Entry
	var err error
	for range attempts {
		if err := s.Ensure(); err != nil {
			return err
		}
		if former, err = s.add(); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err == nil || outcomeUnknown(err) {
		u.Push("delete "+s.What, inverse)
	}
	if err != nil {
		return explain(s.Layout.Table, err)
	}
	s.warn(former)
	return nil
}

// add makes the elements. It returns those of former holders.
func (s *Store) add() (former []Entry, err error) {
	err = s.Conn.Atomically("nft add "+s.What, func(tx *Tx) error {
		if s.Make != nil {
			s.Make(tx)
		}
		d := s.draft()
		if _, err := d.release(); err != nil {
			return err
		}
		former, err = d.take()
		d.flush(tx)
		return err
	})
	return former, err
}

// listed returns the claims with their keys in the maps from owners.
func (s *Store) listed() []Claim {
	key, count := OwnerKeys(s.Owner), map[string]int{}
	all := make([]Claim, 0, len(s.Claims))
	for _, c := range s.Claims {
		c.Listed.Key, c.Listed.Comment = key(count[c.Owners]), Owner(s.Owner)
		c.Elements = c.Elements[:len(c.Elements):len(c.Elements)]
		count[c.Owners]++
		all = append(all, c)
	}
	return all
}

func (s *Store) warn(former []Entry) {
	if s.Warn == nil {
		return
	}
	holder := map[Ref]string{}
	for _, e := range former {
		holder[e.Ref()] = e.Comment
	}
	for _, c := range s.Claims {
		if len(c.Elements) > 0 && holder[c.Elements[0].Ref()] != "" {
			s.Warn("%s was held by %s, and is taken over", c.About, OwnerName(holder[c.Elements[0].Ref()]))
		}
	}
}

// Delete puts into tx the deletion of all that the owner has, and gives each claim back
// to the newest displaced one. Claims are found by the owner's lists; s.Claims are hints,
// of which Owners and the name count. It returns the deleted elements.
func (s *Store) Delete(tx *Tx) (gone []Entry, err error) {
	d := s.draft()
	gone, err = d.release()
	d.flush(tx)
	return gone, err
}

// GC is Delete for all owners of the network that are not to be kept. It reads all
// elements.
func (s *Store) GC(tx *Tx, network string, keep types.Set) error {
	kept := map[string]bool{}
	for a := range keep {
		kept[Owner(a)] = true
	}
	d := s.draft()
	err := d.collect(func(owner string) bool {
		return strings.HasPrefix(owner, NetworkPrefix(network)) && !kept[owner]
	})
	d.flush(tx)
	return err
}

// Check names each element that is missing, leads elsewhere or belongs to another
// attachment.
func (s *Store) Check() error {
	d := s.draft()
	claims := s.listed()
	var refs []Ref
	for _, c := range claims {
		for _, e := range append(c.Elements, Entry{c.Owners, c.Listed}) {
			refs = append(refs, e.Ref())
		}
	}
	if err := d.read(refs...); err != nil {
		return err
	}
	var errs []error
	lists := map[Entry]bool{}
	for _, c := range claims {
		if have := d.is[Ref{c.Owners, c.Listed.Key}]; have.Comment == c.Listed.Comment {
			lists[Entry{c.Owners, Element{Data: have.Data, Jump: have.Jump}}] = true
		}
	}
	for _, c := range claims {
		errs = append(errs, d.checkClaim(c))
		if !lists[Entry{c.Owners, Element{Data: c.Listed.Data, Jump: c.Listed.Jump}}] {
			errs = append(errs, s.unlisted(c, d.is[Ref{c.Owners, c.Listed.Key}]))
		}
	}
	return errors.Join(errs...)
}

// checkClaim names an owner once, although several elements go with each other.
func (d *draft) checkClaim(c Claim) error {
	var errs []error
	holder := ""
	for _, want := range c.Elements {
		have := d.is[want.Ref()]
		switch {
		case have == want.Element:
		case have.Key == "":
			errs = append(errs, fmt.Errorf("map %s of table %s has no element for %s", want.Set, d.s.Layout.Table, c.About))
		case have.Comment == want.Comment:
			errs = append(errs, fmt.Errorf("in map %s of table %s, %s leads elsewhere", want.Set, d.s.Layout.Table, c.About))
		case have.Comment != holder:
			holder = have.Comment
			errs = append(errs, fmt.Errorf("%s belongs to %s now", c.About, OwnerName(holder)))
		}
	}
	return errors.Join(errs...)
}

// unlisted is the error for a claim that DEL would not find by the owner.
func (s *Store) unlisted(c Claim, have Element) error {
	err := fmt.Errorf("map %s of table %s has no element that lists %s for its owner", c.Owners, s.Layout.Table, c.About)
	if have.Key != "" && have.Comment != c.Listed.Comment {
		err = fmt.Errorf("%w: the element belongs to %s", err, OwnerName(have.Comment))
	}
	return err
}

// OwnerName returns the attachment that an element's comment names, in words.
func OwnerName(comment string) string {
	if _, ok := types.ParseAttachment(comment); ok {
		return comment
	}
	return "an unknown owner (" + comment + ")"
}
