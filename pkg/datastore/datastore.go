// Package datastore has the requests and answers of a datastore: an executable that keeps, for all nodes of a
// segment, which node owns which address. One call is one process: it reads a Request as JSON from stdin,
// and prints an Answer as JSON to stdout. Its exit status is 0, or 1 if the answer has an error.
// datastore/README.md is the page for somebody who writes a datastore.
package datastore

import (
	"encoding/json"
	"net/netip"
)

// The verbs of a request.
const (
	Claim      = "claim"       // makes the node the owner of free addresses
	Release    = "release"     // gives addresses of the node back
	Register   = "register"    // registers the node, and gives new claims for all addresses that it owns
	List       = "list"        // tells nodes and owners
	RemoveNode = "remove-node" // removes the registration of another node, and gives back its addresses
	Status     = "status"      // tells how many addresses are free, and whether the segment is frozen
	Freeze     = "freeze"      // refuses claim and register until Thaw
	Thaw       = "thaw"        // ends Freeze
	Resync     = "resync"      // makes the datastore agree with what the node owns, after a restore from a backup
)

// A Request is what a datastore reads from stdin. Machine and Boot are texts without white space that
// are unequal for two machines, and for two boots of one machine.
type Request struct {
	Verb         string                `json:"verb"`
	Segment      string                `json:"segment"`                // the nodes on one wire, between which addresses are unique
	Node         string                `json:"node,omitempty"`         // of the caller
	Machine      string                `json:"machine,omitempty"`      // of the caller; remove-node: of the target, as list told it
	Boot         string                `json:"boot,omitempty"`         // of the caller; remove-node: of the target, as list told it
	Registered   bool                  `json:"registered,omitempty"`   // register: this boot has registered before, so that another one in the registration is an error
	Ranges       []Range               `json:"ranges,omitempty"`       // the pool of claim; what "free" counts
	Exclude      []netip.Prefix        `json:"exclude,omitempty"`      // are in no range
	Want         int                   `json:"want,omitempty"`         // claim: how many addresses, at most
	Requested    []netip.Addr          `json:"requested,omitempty"`    // claim: these, all or none, instead of Want
	Addresses    map[netip.Addr]string `json:"addresses,omitempty"`    // release, resync: addresses with their claims
	Target       string                `json:"target,omitempty"`       // remove-node: which node; list: of which node only
	LastRevision int64                 `json:"lastRevision,omitempty"` // the highest revision that the node has seen
	Store        string                `json:"store,omitempty"`        // the ID of the store that the node has seen last
	Datastore    json.RawMessage       `json:"datastore,omitempty"`    // the configuration of the datastore: its own keys, and "type"
}

// MaxParts is how many ranges and exclusions a request may contain.
const MaxParts = 100

// A Range is the addresses from First to Last, with both.
type Range struct {
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
}

// An Answer is what a datastore prints to stdout. An answer with an error has no addresses.
type Answer struct {
	Addresses map[netip.Addr]string `json:"addresses,omitempty"` // with their claims; see the verbs in datastore/README.md
	Conflicts map[netip.Addr]string `json:"conflicts,omitempty"` // resync: addresses that another node has, with its name
	Free      uint64                `json:"free"`                // free addresses in the ranges of the request
	Revision  int64                 `json:"revision,omitempty"`  // of the datastore's data; grows with each change
	Store     string                `json:"store,omitempty"`     // the ID of the segment's data; no other store has it
	Frozen    string                `json:"frozen,omitempty"`    // since when, and by which node
	Nodes     map[string]Node       `json:"nodes,omitempty"`     // list; remove-node: the registration that took the place of the removed one
	Owners    map[netip.Addr]Owner  `json:"owners,omitempty"`    // list
	Error     *Error                `json:"error,omitempty"`
}

// A Node is a registered node. LastCall is for people: no decision depends on a clock.
type Node struct {
	Machine  string `json:"machine"`
	Boot     string `json:"boot"`
	LastCall string `json:"lastCall,omitempty"` // RFC 3339
}

// An Owner is the node that an address belongs to. It has no claim, so that nobody can register an address
// by reading.
type Owner struct {
	Node  string `json:"node"`
	Since string `json:"since,omitempty"` // RFC 3339
}

// An Error says why a call failed. Code is a code of package types, for the runtime; Reason is for the
// caller; Msg is for people, and says what to do.
type Error struct {
	Code   uint   `json:"code"`
	Reason string `json:"reason"`
	Msg    string `json:"msg"`
}

func (e *Error) Error() string { return e.Msg }

// The reasons of an error. After each, except ReasonUnknown, the call has changed nothing for the caller's
// addresses.
const (
	ReasonRequest      = "request"      // the request or the datastore's configuration is wrong
	ReasonUnreachable  = "unreachable"  // the datastore's store did not answer in time
	ReasonUnknown      = "unknown"      // the store did not answer a change: it may happen, even later. Register
	ReasonDenied       = "denied"       // the store refuses this client
	ReasonFull         = "full"         // no address is free
	ReasonTaken        = "taken"        // a requested address belongs to another node
	ReasonOwn          = "own"          // a requested address belongs to this node, which does not know it. Register
	ReasonUnregistered = "unregistered" // the node was never registered, or has been removed. Register
	ReasonBoot         = "boot"         // the node is registered with another boot. Register, unless this one has
	ReasonMachine      = "machine"      // another machine is registered with the name of this node; remove-node: of the target
	ReasonFrozen       = "frozen"       // see Freeze
	ReasonBehind       = "behind"       // the store's revision is below Seen, or its ID is not Store: another state was restored. Resync
	ReasonInternal     = "internal"     // any other
)
