package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/datastore"
	"github.com/plumb-cni/plumb/pkg/types"
)

// Limits of a request. By default (--max-txn-ops) etcd accepts 128 operations in a transaction, and each range and each
// exclusion is one operation of the first transaction.
const (
	maxRequest   = 16 << 20 // bytes
	maxRanges    = 100      // ranges and exclusions
	maxWant      = 256
	maxRequested = 16
)

// A request is a checked request.
type request struct {
	datastore.Request
	config config
	pool   pool
}

// decode decodes and checks a request. An error names all invalid values, but only if the text is valid JSON.
func decode(text []byte) (*request, error) {
	r := &request{}
	if err := decodeStrictly(text, &r.Request); err != nil {
		return nil, failf(types.CodeDecode, datastore.ReasonRequest, "decode request: %w", err)
	}
	if len(r.Datastore) == 0 {
		r.Datastore = json.RawMessage("{}")
	}
	if err := decodeStrictly(r.Datastore, &r.config); err != nil {
		return nil, failf(types.CodeDecode, datastore.ReasonRequest, "decode datastore: %w", err)
	}
	var errs []error
	r.check(types.ProblemsInto(&errs))
	errs = append(errs, r.config.check()...)
	pool, err := newPool(r.Ranges, r.Exclude)
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, failf(types.CodeConfig, datastore.ReasonRequest, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	r.pool = pool
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

// needsNode lists the verbs that act for the node of the request, and therefore need its machine and boot.
var needsNode = []string{datastore.Claim, datastore.Release, datastore.Register, datastore.Resync}

// check reports what is wrong with the request, except ranges and the datastore's configuration.
func (r *request) check(problem func(wrong bool, format string, args ...any)) {
	_, known := verbs[r.Verb]
	problem(!known, "verb %q is unknown", r.Verb)
	problem(!datastore.IsName(r.Segment), "segment %q must consist of letters, digits, '.', '_' and '-', and begin with a letter or digit", r.Segment)
	acts, removeNode := slices.Contains(needsNode, r.Verb), r.Verb == datastore.RemoveNode
	problem((acts || r.Node != "") && !isNode(r.Node), "node %q must be a name, or two names with ':' between them; names consist of letters, digits, '.', '_' and '-', and begin with a letter or digit", r.Node)
	for _, f := range []struct{ key, value string }{{"machine", r.Machine}, {"boot", r.Boot}} {
		problem(removeNode && f.value == "", "%s is missing; set it to what verb list prints for node %s", f.key, r.Target)
		problem((acts || removeNode && f.value != "") && !isWord(f.value), "%s %q must be 1 to %d characters without white space", f.key, f.value, datastore.MaxName)
	}
	problem((removeNode || r.Target != "") && !isNode(r.Target), "target %q must be the name of a node", r.Target)
	problem(r.LastRevision < 0, "lastRevision %d must not be negative", r.LastRevision)
	if r.Verb == datastore.Claim {
		r.checkClaim(problem)
	}
	for a, claim := range r.Addresses {
		problem(!isAddress(a), "addresses: %q must be an address, not IPv4-mapped and without a zone", a)
		problem(r.Verb == datastore.Release && !isWord(claim), "addresses: claim %q of %v must be 1 to %d characters without white space", claim, a, datastore.MaxName)
	}
}

func (r *request) checkClaim(problem func(wrong bool, format string, args ...any)) {
	problem(len(r.Requested) > 0 && r.Want != 0, "want and requested cannot be combined")
	problem(len(r.Requested) == 0 && (r.Want < 1 || r.Want > maxWant), "want %d must be from 1 to %d", r.Want, maxWant)
	problem(len(r.Requested) == 0 && len(r.Ranges) == 0, "ranges is missing")
	problem(len(r.Requested) > maxRequested, "requested: want at most %d addresses, got %d", maxRequested, len(r.Requested))
	for i, a := range r.Requested {
		problem(!isAddress(a), "requested[%d]: %q must be an address, not IPv4-mapped and without a zone", i, a)
		problem(slices.Contains(r.Requested[:i], a), "requested[%d]: %v is listed twice", i, a)
	}
}

// isAddress reports whether a is an address with one text form only.
func isAddress(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }

// isNode reports whether s can be the name of a node, which is a name, or two names with a colon between them.
func isNode(s string) bool {
	first, second, two := strings.Cut(s, ":")
	return datastore.IsName(first) && (!two || datastore.IsName(second)) && len(s) <= datastore.MaxName
}

// isWord reports whether s consists of printable ASCII characters without white space.
func isWord(s string) bool {
	return s != "" && len(s) <= datastore.MaxName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// identity returns the value of the registration with the machine and boot of the request.
func (r *request) identity() string { return fmt.Sprintf("%s %s", r.Machine, r.Boot) }
