// Package datastore defines the requests and answers of a datastore. A datastore is an executable that records in a store
// which node of a segment owns which address. One call is one process. It reads a Request as JSON from stdin, and
// prints an Answer as JSON to stdout. Its exit status is 0, or 1 if the answer contains an error. datastore/README.md
// describes how to write a datastore.
package datastore

import (
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// MaxName is the largest length of a name in bytes.
const MaxName = 253

// IsName reports whether s can be the name of a segment, or of a node in one network.
func IsName(s string) bool { return types.IsID(s) && len(s) <= MaxName }

// The verbs of a request.
const (
	Claim      = "claim"       // assigns free addresses to the node
	Release    = "release"     // frees addresses of the node
	Register   = "register"    // registers the node, and gives new claims for all addresses that it owns
	List       = "list"        // answers with nodes and owners
	RemoveNode = "remove-node" // removes the registration of another node, and frees its addresses
	Status     = "status"      // answers with the number of free addresses, and whether the segment is frozen
	Freeze     = "freeze"      // lets Claim and Register fail until Thaw
	Thaw       = "thaw"        // ends Freeze
	Resync     = "resync"      // updates the store to what the node owns, after a restore from a backup
)

// A Request is what a datastore reads from stdin. Machine and Boot are texts without white space that differ between
// two machines, and between two boots of one machine.
type Request struct {
	Verb         string                `json:"verb"`
	Segment      string                `json:"segment"`                // the nodes of one L2 segment, between which addresses are unique
	Node         string                `json:"node,omitempty"`         // the node of the caller
	Machine      string                `json:"machine,omitempty"`      // machine of the caller or, for remove-node, of the target as list returned it
	Boot         string                `json:"boot,omitempty"`         // boot of the caller or, for remove-node, of the target as list returned it
	Registered   bool                  `json:"registered,omitempty"`   // whether this boot has registered before (only register)
	Ranges       []Range               `json:"ranges,omitempty"`       // the addresses that claim can assign, and among which an answer counts the free addresses
	Exclude      []netip.Prefix        `json:"exclude,omitempty"`      // addresses to leave out of the ranges
	Want         int                   `json:"want,omitempty"`         // the largest number of addresses to claim (only claim)
	Requested    []netip.Addr          `json:"requested,omitempty"`    // addresses to claim together instead of Want (only claim)
	Addresses    map[netip.Addr]string `json:"addresses,omitempty"`    // addresses with their claims (only release and resync)
	Target       string                `json:"target,omitempty"`       // the node to remove (remove-node), or the only node to list (list)
	LastRevision int64                 `json:"lastRevision,omitempty"` // the highest Answer.Revision that the node has seen
	Store        string                `json:"store,omitempty"`        // the last Answer.Store that the node has seen
	Datastore    json.RawMessage       `json:"datastore,omitempty"`    // the configuration of the datastore, including the key "type"
}

// MaxParts is how many ranges and exclusions a request may contain.
const MaxParts = 100

// A Range contains the addresses from First to Last, inclusive.
type Range struct {
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
}

// An Answer is what a datastore prints to stdout. An answer with an error contains no addresses.
type Answer struct {
	Addresses map[netip.Addr]string `json:"addresses,omitempty"` // addresses with their claims; see the verbs in datastore/README.md
	Conflicts map[netip.Addr]string `json:"conflicts,omitempty"` // addresses that another node owns, with its name (only resync)
	Free      uint64                `json:"free"`                // free addresses in the ranges of the request
	Revision  int64                 `json:"revision,omitempty"`  // the revision of the store, which grows with each change
	Store     string                `json:"store,omitempty"`     // the ID of the segment's data, which differs between stores
	Frozen    string                `json:"frozen,omitempty"`    // time and node of Freeze, or "" if the segment is not frozen
	Nodes     map[string]Node       `json:"nodes,omitempty"`     // all nodes (list), or a new registration of the target (remove-node)
	Owners    map[netip.Addr]Owner  `json:"owners,omitempty"`    // the owners of the addresses (only list)
	Warnings  []string              `json:"warnings,omitempty"`  // what the datastore found in the store that no datastore has written
	Error     *Error                `json:"error,omitempty"`
}

// A Node is a registered node. No decision depends on LastCall.
type Node struct {
	Machine  string `json:"machine"`
	Boot     string `json:"boot"`
	LastCall string `json:"lastCall,omitempty"` // time of the last call (RFC 3339)
}

// An Owner is the node that an address belongs to. It does not contain the claim, so that a caller cannot take over an
// address by reading.
type Owner struct {
	Node  string `json:"node"`
	Since string `json:"since,omitempty"` // time since which the node owns the address (RFC 3339)
}

// An Error describes why a call failed. Code is a code of package types for the runtime, Reason is for the caller, and Msg
// tells the operator what to do.
type Error struct {
	Code   uint   `json:"code"`
	Reason string `json:"reason"`
	Msg    string `json:"msg"`
}

func (e *Error) Error() string { return e.Msg }

// The reasons of an error. After each reason except ReasonUnknown, the caller's addresses are unchanged.
const (
	ReasonRequest      = "request"      // the request or the datastore's configuration is wrong
	ReasonUnreachable  = "unreachable"  // the store did not answer in time
	ReasonUnknown      = "unknown"      // the store did not confirm a change, which may happen later; call Register
	ReasonDenied       = "denied"       // the store rejects this client
	ReasonFull         = "full"         // no address is free
	ReasonTaken        = "taken"        // a requested address belongs to another node
	ReasonOwn          = "own"          // a requested address belongs to this node, which did not know it; call Register
	ReasonUnregistered = "unregistered" // the node was never registered, or was removed; call Register
	ReasonBoot         = "boot"         // the node is registered with another boot; call Register, unless this boot has registered before
	ReasonMachine      = "machine"      // another machine is registered with the node's name or, in remove-node, with the target's name
	ReasonFrozen       = "frozen"       // the segment is frozen; see Freeze
	ReasonBehind       = "behind"       // the store was restored to another state (see LastRevision and Store); call Resync
	ReasonInternal     = "internal"     // any other error
)

// IsAddress reports whether ip is an address without a zone and not IPv4-mapped.
func IsAddress(ip netip.Addr) bool { return ip.IsValid() && ip.Zone() == "" && !ip.Is4In6() }

// IsClaim reports whether s can be a claim. A claim contains at least 128 random bits, as printable ASCII characters
// without white space.
func IsClaim(s string) bool {
	const minClaim, maxClaim = 16, 253 // lengths in bytes
	return len(s) >= minClaim && len(s) <= maxClaim && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
