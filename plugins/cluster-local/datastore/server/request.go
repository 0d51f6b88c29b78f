package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// Limits of a request.
const (
	maxRequest   = 16 << 20 // size of the request, in bytes
	maxWant      = 256      // largest value of want
	maxRequested = 16       // number of addresses in requested
)

// A Request is a decoded and checked datastore.Request.
type Request struct {
	datastore.Request
	Pool Pool // the addresses of Ranges without Exclude
}

// decode decodes and checks a request. It decodes the object "datastore" into config. An error names all invalid values,
// but only if the text is valid JSON.
func decode(text []byte, config Config, window uint64) (*Request, error) {
	r := &Request{}
	if err := decodeStrictly(text, &r.Request); err != nil {
		return nil, Errorf(types.CodeDecode, datastore.ReasonRequest, "decode request: %w", err)
	}
	if len(r.Datastore) == 0 {
		r.Datastore = json.RawMessage("{}")
	}
	if err := decodeStrictly(r.Datastore, config); err != nil {
		return nil, Errorf(types.CodeDecode, datastore.ReasonRequest, "decode datastore: %w", err)
	}
	var errs []error
	r.check(types.ProblemsInto(&errs))
	errs = append(errs, config.Check()...)
	pool, err := newPool(r.Ranges, r.Exclude, window)
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, Errorf(types.CodeConfig, datastore.ReasonRequest, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	r.Pool = pool
	return r, nil
}

// decodeStrictly decodes a JSON value into out. Unknown keys, and text after the value, are errors.
func decodeStrictly(text []byte, out any) error {
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(out); err != nil {
		return err
	}
	if dec.More() {
		return errors.New("there is more than one value")
	}
	return nil
}

// verbs lists all verbs.
var verbs = []string{datastore.Claim, datastore.Release, datastore.Register, datastore.List, datastore.RemoveNode, datastore.Status, datastore.Freeze, datastore.Thaw, datastore.Resync}

// nodeVerbs lists the verbs that act for the node of the request, and therefore need its machine and boot.
var nodeVerbs = []string{datastore.Claim, datastore.Release, datastore.Register, datastore.Resync}

// check reports each invalid value of the request, except in the ranges and in the datastore's configuration.
func (r *Request) check(reportIf func(wrong bool, format string, args ...any)) {
	reportIf(!slices.Contains(verbs, r.Verb), "verb %q is unknown", r.Verb)
	reportIf(!datastore.IsName(r.Segment), "segment %q must consist of letters, digits, '.', '_' and '-', and begin with a letter or digit", r.Segment)
	actsForNode, removeNode := slices.Contains(nodeVerbs, r.Verb), r.Verb == datastore.RemoveNode
	reportIf((actsForNode || r.Node != "") && !isNode(r.Node), "node %q must be a name, or two names with ':' between them; names consist of letters, digits, '.', '_' and '-', and begin with a letter or digit", r.Node)
	for _, f := range []struct{ key, value string }{{"machine", r.Machine}, {"boot", r.Boot}} {
		reportIf(removeNode && f.value == "", "%s is missing; set it to what verb list prints for node %s", f.key, r.Target)
		reportIf((actsForNode || removeNode && f.value != "") && !IsWord(f.value), "%s %q must be 1 to %d characters without white space", f.key, f.value, datastore.MaxName)
	}
	reportIf((removeNode || r.Target != "") && !isNode(r.Target), "target %q must be the name of a node", r.Target)
	reportIf(r.LastRevision < 0, "lastRevision %d must not be negative", r.LastRevision)
	if r.Verb == datastore.Claim {
		r.checkClaim(reportIf)
	}
	for a, claim := range r.Addresses {
		reportIf(!isAddress(a), "addresses: %q must be an address, not IPv4-mapped and without a zone", a)
		reportIf(r.Verb == datastore.Release && !IsWord(claim), "addresses: claim %q of %v must be 1 to %d characters without white space", claim, a, datastore.MaxName)
	}
}

func (r *Request) checkClaim(reportIf func(wrong bool, format string, args ...any)) {
	reportIf(len(r.Requested) > 0 && r.Want != 0, "want and requested cannot be combined")
	reportIf(len(r.Requested) == 0 && (r.Want < 1 || r.Want > maxWant), "want %d must be from 1 to %d", r.Want, maxWant)
	reportIf(len(r.Requested) == 0 && len(r.Ranges) == 0, "ranges is missing")
	reportIf(len(r.Requested) > maxRequested, "requested: want at most %d addresses, got %d", maxRequested, len(r.Requested))
	for i, a := range r.Requested {
		reportIf(!isAddress(a), "requested[%d]: %q must be an address, not IPv4-mapped and without a zone", i, a)
		reportIf(slices.Contains(r.Requested[:i], a), "requested[%d]: %v is listed twice", i, a)
	}
}

// isAddress reports whether a is an address without a zone and not IPv4-mapped.
func isAddress(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }

// isNode reports whether s can be the name of a node, which is a name, or two names with a colon between them.
func isNode(s string) bool {
	first, second, two := strings.Cut(s, ":")
	return datastore.IsName(first) && (!two || datastore.IsName(second)) && len(s) <= datastore.MaxName
}

// IsWord reports whether s consists of printable ASCII characters without white space.
func IsWord(s string) bool {
	return s != "" && len(s) <= datastore.MaxName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// Identity returns the machine and boot of the request, with a space between them.
func (r *Request) Identity() string { return fmt.Sprintf("%s %s", r.Machine, r.Boot) }
