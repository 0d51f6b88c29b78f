// Package claims adds, checks and deletes the nftables elements that belong to attachments. The comment
// of an element names its owner (nft.Owner).
//
// Two attachments can claim the same key, for example because a container died without a DEL. In that
// case, the attachment that was added last owns the elements. The elements of the former owner move to
// sets with the name "<set>-former", and move back when the newer claim is deleted. Only one former
// owner is remembered for each key.
package claims

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// A Group lists sets and maps whose elements belong together. The keys of the elements in the first
// set are the keys of claims, and the keys of the elements in the other sets start with them.
type Group []string

// A Claim is the claim of an attachment to one key of a Group. Only one attachment at a time owns the key.
type Claim struct {
	Description string // describes the claim in errors and warnings
	// Elements lists one element of the first set of a group, and after it elements of the group's
	// other sets. Their comments may be empty.
	Elements []nft.SetElement
	// Entry is the value of the claim's element in the map Store.Index. It is empty if there is no such map.
	Entry nft.Key
	// PerContainer allows another attachment of the same container to own the key, without a conflict.
	PerContainer bool
}

// mayBelong reports whether other may own the key of the claim instead of owner. Both are comments of
// elements.
func (c Claim) mayBelong(other, owner string) bool {
	a, _ := types.ParseAttachment(owner)
	b, _ := types.ParseAttachment(other)
	return c.PerContainer && a != b && a.ContainerID == b.ContainerID
}

// A Store adds, checks and deletes the claims of one attachment in a table.
//
// Each change is one transaction, which is committed only in the generation of the ruleset in which
// the elements were read. Usually, Add and Delete look up only the keys of the claims. They read whole
// sets if another attachment owns a key, or owned it before, if an element is missing, and if neither
// the index nor the caller of Delete knows the keys. GC always reads whole sets.
type Store struct {
	Conn        *nft.Conn
	Layout      nft.Layout
	Groups      []Group
	Owner       types.Attachment
	Claims      []Claim
	Description string // describes the claims in steps and errors: "masquerade of net1/cid1/eth0"

	// Index is the map of the Layout that lists the claims of each owner (index.go). It is empty if Claims always contains
	// all claims of the owner.
	Index string
	// ClaimOf returns the claim with this Entry. Its elements contain only keys.
	ClaimOf func(entry nft.Key) Claim

	// Ensure creates the sets and chains that the elements need. Add calls it again if they were
	// deleted in the meantime. If Ensure is nil, Conn.Ensure creates the Layout.
	Ensure func() error
	// Chains lists the kinds of chains that the attachments of a network share (see nft.NetworkChain).
	// GC deletes the chains of these kinds to which nothing jumps.
	Chains []string
	// LongChains lists those of them that can have more than maxSharedRules rules.
	LongChains []string
	// OnlyFree limits Add to the claims of which no other owner has an element. Add then pushes no undo.
	OnlyFree bool
	// Allowed returns the claims that Add may add, or an error, with which Add ends. Add calls it in each transaction. If
	// Allowed is nil, Add may add all claims.
	Allowed func() ([]Claim, error)
	// Warn prints a warning for each claim that Add takes over from another owner. It may be nil.
	Warn func(format string, args ...any)
}

// Add adds all claims, deletes other claims of the owner in the index, and pushes Remove. It pushes Remove even if it fails, provided that the kernel may
// have added the claims. Add takes over the keys of other owners, and warns of each.
func (s *Store) Add(u *undo.Stack) error {
	const attempts = 10
	ensure := s.Ensure
	if ensure == nil {
		ensure = func() error { return s.Conn.Ensure(s.Layout) }
	}
	var replaced []nft.SetElement
	var err error
	for range attempts {
		if err := ensure(); err != nil {
			return err
		}
		add := (*Store).addNew
		if s.OnlyFree {
			add = (*Store).addFree
		}
		err = s.addAllowed(add)
		if errors.Is(err, fs.ErrExist) && !s.OnlyFree {
			err = s.addAllowed(func(s *Store, tx *nft.Tx, allowed []Claim) (err error) {
				replaced, err = s.replace(tx, allowed)
				return err
			})
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if !s.OnlyFree && (err == nil || nft.OutcomeUnknown(err)) {
		u.Push("delete "+s.Description, s.Remove)
	}
	if err != nil {
		return nft.AddAdvice(s.Layout.Table, err)
	}
	s.warn(replaced)
	return nil
}

// addAllowed calls add in a transaction, with the claims that Add may add.
func (s *Store) addAllowed(add func(s *Store, tx *nft.Tx, allowed []Claim) error) error {
	return s.Conn.Atomically("nft add "+s.Description, func(tx *nft.Tx) (err error) {
		allowed := s.Claims
		if s.Allowed != nil {
			if allowed, err = s.Allowed(); err != nil {
				return err
			}
		}
		return add(s, tx, allowed)
	})
}

// addNew adds the claims to tx if their keys are free and the index lists no claim of the owner, which is the usual
// case. Otherwise it returns fs.ErrExist.
func (s *Store) addNew(tx *nft.Tx, allowed []Claim) error {
	var refs []nft.ElementRef
	for _, c := range allowed {
		refs = append(refs, c.first())
	}
	if s.Index != "" {
		refs = append(refs, s.indexRef(0))
	}
	elements, err := s.Conn.Lookup(s.Layout.Table, refs)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(elements, func(e nft.Element) bool { return e.Key != "" }) {
		return fs.ErrExist
	}
	e := s.newEdit()
	e.putAll(s.elements(allowed))
	e.putAll(s.indexElements())
	e.addTo(tx)
	return nil
}

// addFree adds to tx the missing elements of the claims of which no other owner has an element, and deletes the claims
// that only the index lists.
func (s *Store) addFree(tx *nft.Tx, allowed []Claim) error {
	e := s.newEdit()
	elements := s.elements(allowed)
	indexed, err := s.indexed()
	if err == nil {
		err = e.read(refsOf(slices.Concat(elements, s.indexElements()))...)
	}
	if err == nil && len(difference(indexed, s.Claims)) > 0 {
		if err = e.readSets(); err == nil {
			e.deleteOwners(s.isOwn, s.Claims...)
		}
	}
	if err != nil {
		return err
	}
	for _, c := range allowed {
		own := elements[:len(c.Elements)]
		elements = elements[len(c.Elements):]
		if !slices.ContainsFunc(own, e.isOfOther) {
			e.putAll(own)
		}
	}
	e.putAll(s.indexElements())
	e.addTo(tx)
	return e.deleteUnusedChains(tx)
}

// isOfOther reports whether another owner, or another program, has an element at the ref of the owner's element.
func (e *edit) isOfOther(own nft.SetElement) bool {
	got := e.after[own.Ref()]
	return got.Key != "" && got.Comment != own.Comment
}

func refsOf(elements []nft.SetElement) []nft.ElementRef {
	refs := make([]nft.ElementRef, len(elements))
	for i, e := range elements {
		refs[i] = e.Ref()
	}
	return refs
}

// elements returns the elements of the claims, with their comments.
func (s *Store) elements(of []Claim) (all []nft.SetElement) {
	for _, c := range of {
		all = append(all, c.Elements...)
	}
	for i := range all {
		all[i].Comment = nft.Owner(s.Owner)
	}
	return all
}

// warn warns of each claim whose key Add took over from another owner.
func (s *Store) warn(replaced []nft.SetElement) {
	if s.Warn == nil {
		return
	}
	owners := map[nft.ElementRef]string{}
	for _, e := range replaced {
		owners[e.Ref()] = e.Comment
	}
	for _, c := range s.Claims {
		former, ok := owners[c.first()]
		if ok && !c.mayBelong(former, nft.Owner(s.Owner)) {
			s.Warn("%s was held by %s, and is taken over", c.Description, ownerName(former))
		}
	}
}

// Remove deletes the claims as Delete does, in a separate transaction.
func (s *Store) Remove() error {
	return s.Conn.Atomically("nft delete "+s.Description, func(tx *nft.Tx) error {
		_, err := s.Delete(tx)
		return err
	})
}

// RemoveUnusedChains deletes the chains of the claims to which nothing jumps. If Allowed fails in a transaction of Add,
// Ensure has already created them.
func (s *Store) RemoveUnusedChains() error {
	var chains []string
	for _, e := range s.elements(s.Claims) {
		if e.Jump != "" {
			chains = append(chains, e.Jump)
		}
	}
	return s.Conn.Atomically("nft delete unused chains of "+s.Description, func(tx *nft.Tx) error {
		return s.newEdit().deleteUnusedChains(tx, chains...)
	})
}

// Delete adds the deletion of all claims of the owner to tx, and returns the deleted elements. It finds the claims in the
// index and in s.Claims. If neither lists a claim, or if an element of a claim is missing, for example because the MAC
// address in prevResult has changed since ADD, it reads whole sets. Keys move back to their former owners. Delete also
// deletes the chains to which only the deleted elements jumped, because this was the last attachment that used them.
func (s *Store) Delete(tx *nft.Tx) (deleted []nft.SetElement, err error) {
	e := s.newEdit()
	indexed, err := s.indexed()
	if err != nil {
		return nil, err
	}
	all := append(difference(s.Claims, indexed), indexed...)
	refs, err := s.refsOfOwner(all, len(indexed))
	if err != nil {
		return nil, err
	}
	if err := e.read(refs...); err != nil {
		return nil, err
	}
	hasFormer := slices.ContainsFunc(refs, func(r nft.ElementRef) bool { return isFormer(r) && e.after[r].Key != "" })
	indexLost := s.Index != "" && len(indexed) == 0
	isIncomplete := func(c Claim) bool { return s.isOwn(e.after[c.first()].Comment) && (indexLost || e.isIncomplete(c)) }
	if hasFormer || slices.ContainsFunc(all, isIncomplete) {
		if err := e.readSets(); err != nil {
			return nil, err
		}
	}
	deleted = e.deleteOwners(s.isOwn)
	e.addTo(tx)
	return deleted, e.deleteUnusedChains(tx)
}

// DeleteUnusedChains adds to tx the deletion of the network's chains to which nothing jumps. Call it if Delete has found nothing of
// an attachment whose ADD may have been killed between Ensure and the transaction that adds the elements.
func (s *Store) DeleteUnusedChains(tx *nft.Tx) error {
	chains, err := s.sharedChains(s.Owner.Network)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	return s.newEdit().deleteUnusedChains(tx, chains...)
}

// isOwn reports whether the comment names the owner.
func (s *Store) isOwn(comment string) bool { return comment == nft.Owner(s.Owner) }

// refsOfOwner returns the refs of the elements of these claims and of their elements in the index, and the refs under
// which the first sets of the groups may contain elements of former owners. Without claims, it finds the owner's elements
// by their comments.
func (s *Store) refsOfOwner(all []Claim, indexed int) (refs []nft.ElementRef, err error) {
	for i := range indexed {
		refs = append(refs, s.indexRef(i))
	}
	for _, c := range all {
		refs = append(refs, FormerRef(c.first()))
		refs = append(refs, refsOf(c.Elements)...)
	}
	if len(all) > 0 {
		return refs, nil
	}
	for _, g := range s.groups() {
		count := len(refs)
		for i, set := range g {
			if i > 0 && len(refs) == count { // the group contains nothing of the owner
				break
			}
			more, err := s.refsIn(set)
			if err != nil {
				return nil, err
			}
			refs = append(refs, more...)
		}
	}
	return refs, nil
}

// refsIn returns the refs of the owner's elements in a set and in its set for former owners. For each
// element in the first of these sets, it also returns the ref that a former owner's element would have.
func (s *Store) refsIn(set string) (refs []nft.ElementRef, err error) {
	for _, name := range []string{set, set + FormerSuffix} {
		elements, err := s.Conn.ElementsOf(s.Layout.Table, name, nft.Owner(s.Owner))
		if types.IgnoreNotExist(err) != nil {
			return nil, err
		}
		for _, e := range elements {
			r := nft.ElementRef{Set: name, Key: e.Key}
			if refs = append(refs, r); !isFormer(r) {
				refs = append(refs, FormerRef(r))
			}
		}
	}
	return refs, nil
}

// GC adds to tx the deletion of the claims of all owners in the network that are not in keep, and of
// the network's chains to which nothing jumps afterwards. It returns the deleted elements.
func (s *Store) GC(tx *nft.Tx, network string, keep types.Set) (deleted []nft.SetElement, err error) {
	e := s.newEdit()
	if err := e.readSets(); err != nil {
		return nil, err
	}
	deleted = e.deleteOwners(nft.StaleOwner(network, keep))
	e.addTo(tx)
	shared, err := s.sharedChains(network)
	if err != nil {
		return nil, err
	}
	return deleted, e.deleteUnusedChains(tx, shared...)
}

// sharedChains returns the names of the chains that the attachments of the network share.
func (s *Store) sharedChains(network string) (names []string, err error) {
	if len(s.Chains) == 0 {
		return nil, nil
	}
	chains, err := s.Conn.Chains(s.Layout.Table)
	for _, ch := range chains {
		if slices.ContainsFunc(s.Chains, func(kind string) bool { return strings.HasPrefix(ch.Name, nft.NetworkChain(kind, network, "")) }) {
			names = append(names, ch.Name)
		}
	}
	return names, err
}

// Check returns an error that lists the elements of the claims that are missing, map to another value
// or belong to another owner. If there are none, the error lists the differences of the index.
func (s *Store) Check() error {
	elements, err := s.Conn.Lookup(s.Layout.Table, refsOf(s.elements(s.Claims)))
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range s.Claims {
		errs = append(errs, s.checkClaim(c, elements[:len(c.Elements)]))
		elements = elements[len(c.Elements):]
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.checkIndex()
}

// checkClaim compares one claim with the elements at its refs. It names each other owner once.
func (s *Store) checkClaim(c Claim, elements []nft.Element) error {
	var errs []error
	own := nft.Owner(s.Owner)
	if c.mayBelong(elements[0].Comment, own) {
		return nil
	}
	other := ""
	for i, got := range elements {
		want := c.Elements[i]
		want.Comment = own
		switch {
		case got == want.Element:
		case got.Key == "":
			errs = append(errs, s.problem(c, types.ProblemMissing).Errorf("%s of table %s has no element for %s", setName(want), s.Layout.Table, c.Description))
		case got.Comment == own:
			p := s.problem(c, types.ProblemDiffers)
			p.Want, p.Got = s.value(want), s.value(nft.SetElement{Set: want.Set, Element: got})
			errs = append(errs, p.Errorf("%s of table %s: want %s for %s, got %s", setName(want), s.Layout.Table, p.Want, c.Description, p.Got))
		case got.Comment == "":
			p := s.problem(c, types.ProblemDiffers)
			p.Repair = types.RepairNever
			if i := slices.IndexFunc(s.Layout.Sets, func(set nft.Set) bool { return set.Name == want.Set }); i >= 0 {
				p.Fix = s.Layout.Sets[i].DeleteCommand(s.Layout.Table, want.Key)
			}
			errs = append(errs, p.Errorf("%s of table %s contains an element of another program for %s", setName(want), s.Layout.Table, c.Description))
		case got.Comment != other:
			other = got.Comment
			errs = append(errs, types.Conflict(c.Description, ownerName(other)).Errorf("%s belongs to %s now", c.Description, ownerName(other)))
		}
	}
	return errors.Join(errs...)
}

// problem returns a problem of the claim's elements.
func (s *Store) problem(c Claim, kind string) types.Problem {
	return types.Problem{Object: c.Description, Kind: kind, Table: s.Layout.Table.String()}
}

// setName describes the set or map of an element in errors.
func setName(e nft.SetElement) string {
	if e.Data == "" && e.Jump == "" {
		return "set " + e.Set
	}
	return "map " + e.Set
}

// value returns the value of an element in a map for errors.
func (s *Store) value(e nft.SetElement) string {
	switch {
	case e.Jump != "":
		return "chain " + e.Jump
	case e.Data == "":
		return "no chain"
	}
	i := slices.IndexFunc(s.Layout.Sets, func(set nft.Set) bool { return set.Name == e.Set })
	return e.Data.Text(s.Layout.Sets[i].Data)
}

// ownerName describes the owner of an element with this comment in errors and warnings.
func ownerName(comment string) string {
	if _, ok := types.ParseAttachment(comment); ok {
		return comment
	}
	return "an unknown owner (" + comment + ")"
}
