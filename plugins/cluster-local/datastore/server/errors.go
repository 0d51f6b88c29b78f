package server

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// Errorf returns an error of an answer. It formats as fmt.Errorf does, but wraps nothing.
func Errorf(code uint, reason, format string, args ...any) *datastore.Error {
	return &datastore.Error{Code: code, Reason: reason, Msg: fmt.Errorf(format, args...).Error()}
}

// CheckMachine returns an error with datastore.ReasonMachine if the node is registered by another machine. registered is
// "", or the machine and boot of the registration with a space between them, as Identity returns them.
func (r *Request) CheckMachine(registered string) error {
	machine, _, _ := strings.Cut(registered, " ")
	if registered == "" || machine == r.Machine {
		return nil
	}
	return Errorf(types.CodeConfig, datastore.ReasonMachine,
		"node %s of segment %s is registered by machine %s, and this is machine %s; give each machine its own name, or remove the node with remove-node if the other machine is gone",
		r.Node, r.Segment, machine, r.Machine)
}

// CheckBoot returns an error with datastore.ReasonBoot if the node is registered with another boot. The caller must not
// call it while the segment is frozen, because a backup may have been restored, and the node has to resync.
func (r *Request) CheckBoot(registered string) error {
	if registered == "" || registered == r.Identity() {
		return nil
	}
	return Errorf(types.CodeTryAgain, datastore.ReasonBoot,
		"node %s is registered with another boot (%s); register, but if boot %s has registered before, a second machine has the identity of this one, or an older state was restored",
		r.Node, registered, r.Boot)
}

// CheckRegistered returns an error with datastore.ReasonUnregistered if the node is not registered.
func (r *Request) CheckRegistered(registered string) error {
	if registered != "" {
		return nil
	}
	return Errorf(types.CodeTryAgain, datastore.ReasonUnregistered,
		"node %s is not registered in segment %s: it is new, or it was removed; register", r.Node, r.Segment)
}

// CheckRemoval returns an error with datastore.ReasonMachine if the target of remove-node is registered with another
// machine or boot than the request names.
func (r *Request) CheckRemoval(registered string) error {
	if registered == r.Identity() {
		return nil
	}
	return Errorf(types.CodeConfig, datastore.ReasonMachine,
		"node %s of segment %s is registered with machine and boot %q, and the request names %q; run verb list to see what is registered now",
		r.Target, r.Segment, registered, r.Identity())
}

// CheckFrozen returns an error with datastore.ReasonFrozen unless since is "".
func (r *Request) CheckFrozen(since string) error {
	if since == "" {
		return nil
	}
	return Errorf(types.CodeTryAgain, datastore.ReasonFrozen, "segment %s has been frozen since %s; resync on each node, then thaw", r.Segment, since)
}

// FrozenText returns when the segment was frozen and by which node, or "" if since is "".
func FrozenText(since, node string) string {
	if node != "" {
		return since + " by " + node
	}
	return since
}

// IsBehind reports whether a store with this revision and ID contains an older state than the node has seen, or is
// another store.
func (r *Request) IsBehind(revision int64, id string) bool {
	return revision < r.LastRevision || r.Store != "" && r.Store != id
}

// CheckStore returns an error with datastore.ReasonBehind if IsBehind. store is the name of the store for the message.
func (r *Request) CheckStore(store string, revision int64, id string) error {
	if !r.IsBehind(revision, id) {
		return nil
	}
	known := ""
	if r.Store != "" {
		known = fmt.Sprintf(" with the ID %q", r.Store)
	}
	return Errorf(types.CodeTryAgain, datastore.ReasonBehind,
		"want %s at revision %d or later%s, as node %s has seen it, got revision %d and ID %q: an older state was restored, or this is another %[1]s; resync on each node, then thaw",
		store, r.LastRevision, known, r.Node, revision, id)
}

// BusyError returns the error for a call during which other calls kept changing what it has read.
func (r *Request) BusyError() error {
	return Errorf(types.CodeTryAgain, datastore.ReasonUnreachable, "other calls of segment %s keep changing what the call for node %s needs; try again", r.Segment, r.Node)
}

// FullError returns the error for a segment without a free address.
func (r *Request) FullError() error {
	return Errorf(types.CodeTryAgain, datastore.ReasonFull, "no address of segment %s is free in the ranges of node %s; run verb list to see which nodes own them", r.Segment, r.Node)
}

// OwnedError returns the error for a requested address that node owns. since may be "".
func (r *Request) OwnedError(a netip.Addr, node, since string) error {
	if node == r.Node {
		return Errorf(types.CodeTryAgain, datastore.ReasonOwn, "%v already belongs to this node (%s); register", a, node)
	}
	if since != "" {
		since = " since " + since
	}
	return Errorf(types.CodeTryAgain, datastore.ReasonTaken, "%v belongs to node %s%s", a, node, since)
}

// ChangingError returns the error for requested addresses whose owners other calls changed in each attempt.
func (r *Request) ChangingError() error {
	return Errorf(types.CodeTryAgain, datastore.ReasonTaken, "other calls changed the owners of %v %d times meanwhile; try again", r.Requested, MaxRounds)
}
