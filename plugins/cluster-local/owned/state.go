// Package owned is the format of the file in which a node records which addresses it owns.
package owned

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// A State is the content of the file, as far as the node knows.
// It is valid for one boot and one scope. Without a valid state, the node registers, and the datastore answers with
// what it owns. Processes read the file while they hold the pool's lock, and write it while they also hold the lock
// "datastore".
type State struct {
	Boot         string
	ID           uint64 // random, to distinguish two nodes with the same boot ID
	Scope        string // segment, node and datastore
	LastRevision int64  // the highest revision in an answer of the datastore
	Store        string // the ID of the store in the last answer of the datastore
	// Registered is true if the node has registered with this boot and id. If the store contains another registration
	// afterwards, a second machine has the identity of this one, and Second becomes true. It stays true in later boots.
	Registered, Second bool
	// Unsettled is true if a change has been requested from the datastore and its outcome is not known.
	Unsettled bool
	Failed    time.Duration         // when the last return of a surplus failed, since boot, or zero if it did not fail
	Free      map[netip.Addr]uint64 // the free addresses of the segment in a range set, by the first address of the set
	Claims    map[netip.Addr]string // the owned addresses
	Calls     Calls
}

// Calls counts the calls of the datastore that can change the store, for plumb metrics.
type Calls struct {
	Total, Failed uint64
	LastSuccess   int64 // in seconds since 1970, or 0
}

// New returns a state without addresses and with a random ID.
func New(boot, scope string, lastRevision int64) *State {
	return &State{Boot: boot, ID: rand.Uint64(), Scope: scope, LastRevision: lastRevision, Free: map[netip.Addr]uint64{}, Claims: map[netip.Addr]string{}}
}

// BootID returns the boot in a request to the datastore.
func (st *State) BootID() string { return fmt.Sprintf("%s/%016x", st.Boot, st.ID) }

// Node returns the name of this node in the datastore, or "" if the state contains none.
func (st *State) Node() string {
	words := strings.Fields(st.Scope) // the datastore, the segment, the node and the prefix
	if len(words) < 3 {
		return ""
	}
	return words[2]
}

// Text returns the content of the file. Its lines are the boot ID, the other values, and the addresses, one per line.
func (st *State) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nid %d\nscope %s\nlastRevision %d\n", st.Boot, st.ID, st.Scope, st.LastRevision)
	if st.Store != "" {
		fmt.Fprintf(&b, "store %s\n", st.Store)
	}
	for _, flag := range []struct {
		word string
		set  bool
	}{{"registered", st.Registered}, {"second", st.Second}, {"unsettled", st.Unsettled}} {
		if flag.set {
			b.WriteString(flag.word + "\n")
		}
	}
	if st.Failed != 0 {
		fmt.Fprintf(&b, "failed %s\n", st.Failed)
	}
	if c := st.Calls; c.Total != 0 {
		fmt.Fprintf(&b, "calls %d %d %d\n", c.Total, c.Failed, c.LastSuccess)
	}
	for _, first := range slices.SortedFunc(maps.Keys(st.Free), netip.Addr.Compare) {
		fmt.Fprintf(&b, "free %s %d\n", first, st.Free[first])
	}
	for _, ip := range st.Addresses() {
		fmt.Fprintf(&b, "%s %s\n", ip, st.Claims[ip])
	}
	return b.String()
}

// Parse returns the state in a file, and false if the file is damaged.
func Parse(text string) (*State, bool) {
	lines := strings.Split(text, "\n")
	if len(lines) < 2 || lines[0] == "" || lines[len(lines)-1] != "" {
		return nil, false
	}
	st := New(lines[0], "", 0)
	for _, line := range lines[1 : len(lines)-1] {
		if !st.parseLine(line) {
			return nil, false
		}
	}
	return st, true
}

// parseLine adds a line of the file to the state, and reports whether the line is valid.
func (st *State) parseLine(line string) (ok bool) {
	word, rest, _ := strings.Cut(line, " ")
	var err error
	switch word {
	case "scope":
		st.Scope = rest
	case "id":
		st.ID, err = strconv.ParseUint(rest, 10, 64)
	case "lastRevision":
		st.LastRevision, err = strconv.ParseInt(rest, 10, 64)
	case "store":
		st.Store = rest
	case "registered":
		st.Registered = true
	case "second":
		st.Second = true
	case "unsettled":
		st.Unsettled = true
	case "failed":
		st.Failed, err = time.ParseDuration(rest)
	case "calls":
		_, err = fmt.Sscan(rest, &st.Calls.Total, &st.Calls.Failed, &st.Calls.LastSuccess)
	case "free":
		first, count, _ := strings.Cut(rest, " ")
		var ip netip.Addr
		if ip, err = netip.ParseAddr(first); err == nil {
			st.Free[ip], err = strconv.ParseUint(count, 10, 64)
		}
	default:
		ip, parseErr := netip.ParseAddr(word)
		st.Claims[ip] = rest
		return parseErr == nil && datastore.IsAddress(ip) && datastore.IsClaim(rest)
	}
	return err == nil
}

// Addresses returns the owned addresses, sorted.
func (st *State) Addresses() []netip.Addr {
	return slices.SortedFunc(maps.Keys(st.Claims), netip.Addr.Compare)
}
