package nft

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
)

// A draft is elements of a table as they are, and as they are to be.
type draft struct {
	s       *Store
	was, is map[Ref]Element // one that does not exist has no key
	order   []Ref
	whole   map[string]bool         // sets of which everything was read
	claims  map[string]map[Ref]held // by owner and deciding element
}

// held is a claim as its owner lists it: where that is, and where its elements are.
type held struct {
	list Ref
	refs []Ref
}

func (s *Store) draft() *draft {
	return &draft{s: s, was: map[Ref]Element{}, is: map[Ref]Element{}, whole: map[string]bool{}, claims: map[string]map[Ref]held{}}
}

// read looks up what is not known yet.
func (d *draft) read(refs ...Ref) error {
	var asked []Ref
	for _, r := range refs {
		if _, known := d.was[r]; known {
			continue
		}
		d.note(r, Element{})
		if !d.whole[r.Set] {
			asked = append(asked, r)
		}
	}
	found, err := d.s.Conn.Lookup(d.s.Layout.Table, asked)
	for i, e := range found {
		d.was[asked[i]], d.is[asked[i]] = e, e
	}
	return err
}

func (d *draft) note(r Ref, e Element) {
	d.was[r], d.is[r] = e, e
	d.order = append(d.order, r)
}

// readAll reads a set, which may be missing.
func (d *draft) readAll(set string) error {
	all, err := d.s.Conn.Elements(d.s.Layout.Table, set)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.whole[set] = true
	for _, e := range all {
		d.note(Ref{set, e.Key}, e)
	}
	return nil
}

// put has an element at a place that was read, or none: the zero Element.
func (d *draft) put(r Ref, e Element) {
	if e != (Element{}) {
		e.Key = r.Key
	}
	d.is[r] = e
}

// flush puts the differences into the transaction.
func (d *draft) flush(tx *Tx) {
	table := d.s.Layout.Table
	for _, r := range d.order {
		if d.was[r].Key != "" && d.was[r] != d.is[r] {
			tx.DelElement(table, r.Set, r.Key)
		}
	}
	made := map[string]bool{}
	for _, r := range d.order {
		if d.is[r].Key == "" || d.was[r] == d.is[r] {
			continue
		}
		if of, ok := strings.CutSuffix(r.Set, displacedSuffix); ok && !made[r.Set] {
			made[r.Set] = true
			tx.EnsureSet(table, d.s.Layout.displacedSet(of))
		}
	}
	for _, r := range d.order {
		if d.is[r].Key != "" && d.was[r] != d.is[r] {
			tx.AddElement(table, r.Set, d.is[r])
		}
	}
}

const displacedSuffix = "-displaced"

// displacedSet returns the map for displaced elements of a set.
func (l Layout) displacedSet(of string) Set {
	i := slices.IndexFunc(l.Sets, func(s Set) bool { return s.Name == of })
	s := l.Sets[i]
	return Set{Name: of + displacedSuffix, Key: append(s.Key[:len(s.Key):len(s.Key)], InetService), Data: s.Data}
}

// displaced returns where the n-th displaced element of a ref is.
func displaced(r Ref, n int) Ref {
	return Ref{r.Set + displacedSuffix, Concat(r.Key, PortKey(uint16(n)))}
}

// displacedFrom is the inverse of displaced.
func displacedFrom(r Ref) (of Ref, ok bool) {
	set, ok := strings.CutSuffix(r.Set, displacedSuffix)
	if !ok || len(r.Key) < 4 {
		return Ref{}, false
	}
	return Ref{set, r.Key[:len(r.Key)-4]}, true
}

// release takes away all that the owner of the store has, and returns the elements that
// it held.
func (d *draft) release() (gone []Entry, err error) {
	owner := Owner(d.s.Owner)
	listed, err := d.list(owner)
	if err != nil {
		return nil, err
	}
	claims, err := d.unsettled(d.own(listed))
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		for _, r := range c.refs {
			if e := d.is[r]; e.Comment == owner {
				gone = append(gone, Entry{r.Set, e})
				d.put(r, Element{})
			}
		}
		if err := d.settle(c.refs[0], func(o string) bool { return o == owner }); err != nil {
			return nil, err
		}
	}
	for _, h := range listed {
		d.put(h.list, Element{})
	}
	return gone, nil
}

// unsettled reads the elements of claims. It returns the claims that something may be left
// of: they are listed, or somebody holds them.
func (d *draft) unsettled(claims []held) (left []held, err error) {
	var refs []Ref
	for _, c := range claims {
		if refs = append(refs, c.refs...); c.list != (Ref{}) {
			refs = append(refs, displaced(c.refs[0], 0))
		}
	}
	if err := d.read(refs...); err != nil {
		return nil, err
	}
	for _, c := range claims {
		if c.list != (Ref{}) || d.is[c.refs[0]].Key != "" {
			left = append(left, c)
		}
	}
	return left, nil
}

// own returns the listed claims and those of the store, each once.
func (d *draft) own(listed []held) (claims []held) {
	seen := map[Ref]bool{}
	put := func(h held) {
		if len(h.refs) > 0 && !seen[h.refs[0]] {
			seen[h.refs[0]] = true
			claims = append(claims, h)
		}
	}
	for _, h := range listed {
		put(h)
	}
	for _, c := range d.s.Claims {
		put(held{refs: d.refs(c)})
	}
	return claims
}

// list reads the lists of an owner. Each is expected to be as long as that of the store's
// own claims, and ends where an element is missing.
func (d *draft) list(owner string) (all []held, err error) {
	key, open := ownerKeys(owner), d.s.Kinds
	expected := map[string]int{}
	for _, c := range d.s.Claims {
		expected[c.Owners]++
	}
	for begin := map[string]int{}; len(open) > 0; {
		var asked []Ref
		for _, k := range open {
			for n := range max(2, expected[k.Owners]+1, begin[k.Owners]) {
				asked = append(asked, Ref{k.Owners, key(begin[k.Owners] + n)})
			}
		}
		if err := d.read(asked...); err != nil {
			return nil, err
		}
		var longer []Kind
		for _, k := range open {
			ended := false
			for _, r := range asked {
				if r.Set != k.Owners {
					continue
				}
				begin[k.Owners]++
				ended = d.was[r].Key == ""
				if d.is[r].Comment == owner {
					all = append(all, held{r, k.refs(d.is[r].Data)})
				}
			}
			if !ended {
				longer = append(longer, k)
			}
		}
		open = longer
	}
	return all, nil
}

// standing returns where the elements of an owner's claim to the deciding element are;
// nil: the owner does not list it.
func (d *draft) standing(owner string, at Ref) ([]Ref, error) {
	if d.claims[owner] == nil {
		listed, err := d.list(owner)
		if err != nil {
			return nil, err
		}
		d.claims[owner] = map[Ref]held{}
		for _, h := range listed {
			if len(h.refs) > 0 {
				d.claims[owner][h.refs[0]] = h
			}
		}
	}
	h, ok := d.claims[owner][at]
	if !ok || d.is[h.list].Comment != owner {
		return nil, nil
	}
	return h.refs, d.read(h.refs...)
}

// A waiting claim is a displaced one. Without its owner's list only the deciding element
// is known.
type waiting struct {
	owner    string
	stands   bool
	refs     []Ref
	elements []Element
}

// owners returns the owners of the displaced claims to an element, the oldest first.
func (d *draft) owners(at Ref) (owners []string, err error) {
	for n, step := 0, 1; n < 2*maxDisplaced; n, step = n+step, min(2*step, 32) {
		var asked []Ref
		for i := range step {
			asked = append(asked, displaced(at, n+i))
		}
		if err := d.read(asked...); err != nil {
			return nil, err
		}
		for _, r := range asked {
			if d.is[r].Key == "" {
				return owners, nil
			}
			owners = append(owners, d.is[r].Comment)
		}
	}
	return owners, nil
}

// maxDisplaced is how many claims wait for one element. One more, and the oldest is
// forgotten: a runtime that never calls DEL must not make ADD ever slower.
const maxDisplaced = 256

// waiting returns the first n displaced claims to an element.
func (d *draft) waiting(at Ref, n int) (all []waiting, err error) {
	for i := range n {
		w, err := d.waitingAt(at, i)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

func (d *draft) waitingAt(at Ref, n int) (waiting, error) {
	w := waiting{owner: d.is[displaced(at, n)].Comment}
	refs, err := d.standing(w.owner, at)
	w.refs, w.stands = refs, refs != nil
	if !w.stands {
		w.refs = []Ref{at}
	}
	for _, r := range w.refs {
		err = errors.Join(err, d.read(displaced(r, n)))
		w.elements = append(w.elements, d.is[displaced(r, n)])
	}
	return w, err
}

// settle takes an element, and the displaced claims to it, from those who go. If nobody
// holds it then, the newest claim that stands gets it.
func (d *draft) settle(at Ref, goes func(owner string) bool) error {
	if goes(d.is[at].Comment) {
		d.put(at, Element{})
	}
	owners, err := d.owners(at)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(owners, goes) {
		old, err := d.waiting(at, len(owners))
		if err != nil {
			return err
		}
		now := slices.DeleteFunc(slices.Clone(old), func(w waiting) bool { return goes(w.owner) })
		if err := d.rewrite(at, old, now); err != nil {
			return err
		}
		owners = owners[:len(now)]
	}
	for n := len(owners) - 1; n >= 0 && d.is[at].Key == ""; n-- {
		w, err := d.waitingAt(at, n)
		if err != nil {
			return err
		}
		for i, r := range w.refs {
			d.put(displaced(r, n), Element{})
			if w.stands {
				d.put(r, w.elements[i])
			}
		}
	}
	return nil
}

// rewrite puts other displaced claims in the place of those that there are.
func (d *draft) rewrite(at Ref, old, now []waiting) error {
	for n, w := range old {
		for _, r := range w.refs {
			d.put(displaced(r, n), Element{})
		}
	}
	for n, w := range now {
		for i, r := range w.refs {
			if err := d.read(displaced(r, n)); err != nil {
				return err
			}
			d.put(displaced(r, n), w.elements[i])
		}
	}
	return nil
}

// take gives the owner of the store its claims, and returns the deciding elements that
// others had.
func (d *draft) take() (former []Entry, err error) {
	owner, claims := Owner(d.s.Owner), d.s.listed()
	var refs []Ref
	for _, c := range claims {
		refs = append(refs, Ref{c.Owners, c.Listed.Key})
		refs = append(refs, d.refs(c)...)
	}
	if err := d.read(refs...); err != nil {
		return nil, err
	}
	for _, c := range claims {
		d.put(Ref{c.Owners, c.Listed.Key}, c.Listed)
		refs := d.refs(c)
		if len(refs) == 0 {
			continue
		}
		if was := d.was[refs[0]]; was.Key != "" && was.Comment != owner {
			former = append(former, Entry{refs[0].Set, was})
		}
		if err := d.displace(refs[0]); err != nil {
			return nil, err
		}
		for _, r := range refs { // also what a former holder had besides
			d.put(r, Element{})
		}
		for _, e := range c.Elements {
			d.put(e.Ref(), e.Element)
		}
	}
	return former, nil
}

// refs returns where the elements of a claim of the store are.
func (d *draft) refs(c Claim) []Ref {
	i := slices.IndexFunc(d.s.Kinds, func(k Kind) bool { return k.Owners == c.Owners })
	return d.s.Kinds[i].refs(c.Listed.Data)
}

// displace moves the claim of whoever holds the element, if the owner still lists it.
func (d *draft) displace(at Ref) error {
	holder := d.is[at].Comment
	if d.is[at].Key == "" {
		return nil
	}
	refs, err := d.standing(holder, at)
	if err != nil || refs == nil {
		return err
	}
	owners, err := d.owners(at)
	if err != nil {
		return err
	}
	n := len(owners)
	if n >= maxDisplaced || slices.Contains(owners, holder) {
		old, err := d.waiting(at, n)
		if err != nil {
			return err
		}
		now := slices.DeleteFunc(slices.Clone(old), func(w waiting) bool { return w.owner == holder })
		now = now[max(0, len(now)-maxDisplaced+1):]
		if err := d.rewrite(at, old, now); err != nil {
			return err
		}
		n = len(now)
	}
	return d.move(holder, refs, n)
}

// move makes the elements that the owner has at refs the n-th displaced ones.
func (d *draft) move(owner string, refs []Ref, n int) error {
	for _, r := range refs {
		if err := d.read(displaced(r, n)); err != nil {
			return err
		}
		e := d.is[r]
		if e.Comment != owner {
			e = Element{}
		}
		d.put(displaced(r, n), e)
		d.put(r, Element{})
	}
	return nil
}

// collect takes away all that stale owners have.
func (d *draft) collect(stale func(owner string) bool) error {
	deciding := map[string]bool{}
	var errs []error
	for _, k := range d.s.Kinds {
		errs = append(errs, d.readAll(k.Owners))
		for _, set := range k.Held {
			deciding[set] = true
		}
		for _, set := range slices.Concat(k.Held, k.With) {
			errs = append(errs, d.readAll(set), d.readAll(set+displacedSuffix))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var left, touched []Ref
	for _, r := range d.order {
		if !stale(d.is[r].Comment) {
			continue
		}
		left = append(left, r)
		of, ok := displacedFrom(r)
		if !ok {
			of = r
		}
		if deciding[of.Set] {
			touched = append(touched, of)
		}
	}
	for _, at := range touched {
		if err := d.settle(at, stale); err != nil {
			return err
		}
	}
	for _, r := range left { // the lists last: they tell what belongs to a displaced claim
		if stale(d.is[r].Comment) {
			d.put(r, Element{})
		}
	}
	return nil
}
