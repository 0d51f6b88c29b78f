package claims

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A store with an index finds the claims of an attachment without the configuration of its ADD, and without reading the
// claims of other attachments. The index is a map with one element for each claim:
//
//	"<hash of the owner>" . <number> comment "<owner>" : <entry of the claim>
//
// The numbers of an owner begin at 0. The transaction that adds a claim also adds its element in the index. If a claim is
// lost, for example because two other attachments took its key over, the index still lists it.

// IndexKey returns the types of a key in an index.
func IndexKey() []nft.Type { return []nft.Type{nft.IfName, nft.InetService} }

// indexRef returns the ref of the owner's element with this number.
func (s *Store) indexRef(number int) nft.ElementRef {
	const digits = 15 // the longest name of an interface, as which nft prints the hash
	return nft.ElementRef{Set: s.Index, Key: nft.Concat(nft.IfNameKey(types.ShortHash(nft.Owner(s.Owner))[:digits]), nft.PortKey(uint16(number)))}
}

// indexElements returns the elements that the index must contain for the owner.
func (s *Store) indexElements() (all []nft.SetElement) {
	if s.Index == "" {
		return nil
	}
	for i, c := range s.Claims {
		r := s.indexRef(i)
		all = append(all, nft.SetElement{Set: r.Set, Element: nft.Element{Key: r.Key, Data: c.Entry, Comment: nft.Owner(s.Owner)}})
	}
	return all
}

// indexed returns the claims that the index lists for the owner. It looks up a few more elements than the caller expects,
// because a request with several look-ups takes hardly longer than a request with one.
func (s *Store) indexed() (all []Claim, err error) {
	if s.Index == "" {
		return nil, nil
	}
	refs := make([]nft.ElementRef, max(len(s.Claims)+1, 8))
	for {
		for i := range refs {
			refs[i] = s.indexRef(len(all) + i)
		}
		elements, err := s.Conn.Lookup(s.Layout.Table, refs)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			if !s.isOwn(e.Comment) {
				return all, nil
			}
			all = append(all, s.ClaimOf(e.Data))
		}
	}
}

// checkIndex returns an error that lists how the index differs from the claims.
func (s *Store) checkIndex() error {
	indexed, err := s.indexed()
	if err != nil || s.Index == "" {
		return err
	}
	where := fmt.Sprintf("map %s of table %s", s.Index, s.Layout.Table)
	if missing := difference(s.Claims, indexed); len(missing) > 0 {
		return s.problem(missing[0], types.ProblemMissing).Errorf("%s does not list %s", where, descriptions(missing))
	}
	if other := difference(indexed, s.Claims); len(other) > 0 {
		return s.problem(other[0], types.ProblemDiffers).Errorf("%s lists %s, which the configuration does not contain", where, descriptions(other))
	}
	return nil
}

func descriptions(of []Claim) string {
	var all []string
	for _, c := range of {
		all = append(all, c.Description)
	}
	return strings.Join(all, ", ")
}

// first returns the ref of the claim's first element.
func (c Claim) first() nft.ElementRef { return c.Elements[0].Ref() }

// difference returns the claims in a whose keys are not in b.
func difference(a, b []Claim) []Claim {
	inB := make(map[nft.ElementRef]bool, len(b))
	for _, c := range b {
		inB[c.first()] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(c Claim) bool { return inB[c.first()] })
}

// groups returns the groups of the store. The index is a group of its own.
func (s *Store) groups() []Group {
	if s.Index == "" {
		return s.Groups
	}
	return append(slices.Clone(s.Groups), Group{s.Index})
}
