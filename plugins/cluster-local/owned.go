package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A state is the content of the file "owned", which records which addresses this node owns, as far as the node knows.
// It is valid for one boot and one scope. Without a valid state, the node registers, and the datastore answers with
// what it owns. Processes read the file while they hold the pool's lock, and write it while they also hold the lock
// "datastore".
type state struct {
	boot         string
	id           uint64 // random, to distinguish two nodes with the same boot ID
	scope        string // segment, node and datastore
	lastRevision int64  // the highest revision in an answer of the datastore
	store        string // the ID of the store in the last answer of the datastore
	// registered is true if the node has registered with this boot and id. If the store contains another registration
	// afterwards, a second machine has the identity of this one, and second becomes true. It stays true in later boots.
	registered, second bool
	// unsettled is true if a change has been requested from the datastore and its outcome is not known.
	unsettled bool
	failed    time.Duration         // when the last return of a surplus failed, since boot, or zero if it did not fail
	free      map[netip.Addr]uint64 // the free addresses of the segment in a range set, by the first address of the set
	claims    map[netip.Addr]string // the owned addresses
	calls     calls
}

// calls counts the calls of the datastore that can change the store. Only plumb metrics reads it.
type calls struct {
	total, failed uint64
	lastSuccess   int64 // in seconds since 1970, or 0
}

// ownedPath returns the path of the file.
func (n *network) ownedPath() string { return n.PrivatePath("owned") }

// read returns the state. If there is none for this boot and scope, or if a power failure has damaged the file, valid is
// false and the state contains no addresses.
func (n *network) read(se *pool.Session) (st *state, valid bool, err error) {
	if se.Boot() == "" {
		return nil, false, types.Errorf(types.CodeIO, "the ID of the running boot cannot be read, and therefore %s may be outdated; mount /proc", n.ownedPath())
	}
	text, err := statefile.Read(n.ownedPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, statefile.ErrUnreadable) {
		return nil, false, types.Coded(types.CodeIO, err)
	}
	st, ok := parseState(string(text))
	if !ok || st.scope != n.scope {
		st = &state{}
	}
	if valid = st.boot == se.Boot(); valid {
		return st, true, nil
	}
	fresh := newState(se.Boot(), n.scope, st.lastRevision)
	fresh.store, fresh.second, fresh.calls = st.store, st.second, st.calls
	return fresh, false, nil
}

func newState(boot, scope string, lastRevision int64) *state {
	return &state{boot: boot, id: rand.Uint64(), scope: scope, lastRevision: lastRevision, free: map[netip.Addr]uint64{}, claims: map[netip.Addr]string{}}
}

// bootID returns the boot in a request to the datastore.
func (st *state) bootID() string { return fmt.Sprintf("%s/%016x", st.boot, st.id) }

func (n *network) write(st *state) error {
	path := n.ownedPath()
	file := statefile.File{
		Dir: filepath.Dir(path), Name: filepath.Base(path), Owner: types.Attachment{Network: filepath.Base(path)}, Trace: n.request.Trace,
	}
	return file.Write([]byte(st.text()))
}

// text returns the content of the file. Its lines are the boot ID, the other values, and the addresses, one per line.
func (st *state) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nid %d\nscope %s\nlastRevision %d\n", st.boot, st.id, st.scope, st.lastRevision)
	if st.store != "" {
		fmt.Fprintf(&b, "store %s\n", st.store)
	}
	for _, flag := range []struct {
		word string
		set  bool
	}{{"registered", st.registered}, {"second", st.second}, {"unsettled", st.unsettled}} {
		if flag.set {
			b.WriteString(flag.word + "\n")
		}
	}
	if st.failed != 0 {
		fmt.Fprintf(&b, "failed %s\n", st.failed)
	}
	if c := st.calls; c.total != 0 {
		fmt.Fprintf(&b, "calls %d %d %d\n", c.total, c.failed, c.lastSuccess)
	}
	for _, first := range slices.SortedFunc(maps.Keys(st.free), netip.Addr.Compare) {
		fmt.Fprintf(&b, "free %s %d\n", first, st.free[first])
	}
	for _, ip := range st.addrs() {
		fmt.Fprintf(&b, "%s %s\n", ip, st.claims[ip])
	}
	return b.String()
}

// parseState returns the state in a file, and false if the file is damaged.
func parseState(text string) (*state, bool) {
	lines := strings.Split(text, "\n")
	if len(lines) < 2 || lines[0] == "" || lines[len(lines)-1] != "" {
		return nil, false
	}
	st := newState(lines[0], "", 0)
	for _, line := range lines[1 : len(lines)-1] {
		if !st.parseLine(line) {
			return nil, false
		}
	}
	return st, true
}

// parseLine adds a line of the file to the state, and reports whether the line is valid.
func (st *state) parseLine(line string) (ok bool) {
	word, rest, _ := strings.Cut(line, " ")
	var err error
	switch word {
	case "scope":
		st.scope = rest
	case "id":
		st.id, err = strconv.ParseUint(rest, 10, 64)
	case "lastRevision":
		st.lastRevision, err = strconv.ParseInt(rest, 10, 64)
	case "store":
		st.store = rest
	case "registered":
		st.registered = true
	case "second":
		st.second = true
	case "unsettled":
		st.unsettled = true
	case "failed":
		st.failed, err = time.ParseDuration(rest)
	case "calls":
		_, err = fmt.Sscan(rest, &st.calls.total, &st.calls.failed, &st.calls.lastSuccess)
	case "free":
		first, count, _ := strings.Cut(rest, " ")
		var ip netip.Addr
		if ip, err = netip.ParseAddr(first); err == nil {
			st.free[ip], err = strconv.ParseUint(count, 10, 64)
		}
	default:
		ip, parseErr := netip.ParseAddr(word)
		st.claims[ip] = rest
		return parseErr == nil && isAddress(ip) && isClaim(rest)
	}
	return err == nil
}

// isAddress reports whether ip is an address without a zone and not IPv4-mapped.
func isAddress(ip netip.Addr) bool { return ip.IsValid() && ip.Zone() == "" && !ip.Is4In6() }

// isClaim reports whether s can be a claim. A claim contains at least 128 random bits, as printable ASCII characters
// without white space.
func isClaim(s string) bool {
	const minClaim, maxClaim = 16, 253 // lengths in bytes
	return len(s) >= minClaim && len(s) <= maxClaim && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func (st *state) addrs() []netip.Addr {
	return slices.SortedFunc(maps.Keys(st.claims), netip.Addr.Compare)
}

// choose returns the owned addresses that this ADD may allocate. It leaves out the addresses of onRequestOnly that the ADD
// does not request, and all addresses if a second machine allocates them as well. The caller holds the pool's lock.
func (n *network) choose(se *pool.Session) (pool.Choice, error) {
	st, _, err := n.read(se)
	if err != nil {
		return pool.Choice{}, err
	}
	var addresses []netip.Addr
	for ip := range st.claims {
		if !st.second && (!n.isOnRequestOnly(ip) || slices.Contains(n.Requested, ip)) {
			addresses = append(addresses, ip)
		}
	}
	return pool.OnlyAddresses(addresses), nil
}

// checkOwned returns an error if the node does not own an address that is reserved for the attachment, because another
// node may allocate that address. While the node does not know what it owns, checkOwned returns nil.
func (n *network) checkOwned(r *skel.Request) error {
	var errs []error
	err := n.Lock(func(se *pool.Session) error {
		held, err := se.Held(r)
		if err != nil || len(held) == 0 {
			return err
		}
		st, valid, err := n.read(se)
		if err != nil || !valid || st.unsettled {
			return err
		}
		for _, ip := range held {
			if st.claims[ip] == "" {
				errs = append(errs, fmt.Errorf("address %s of %s does not belong to node %s in segment %s: another node may use it; delete the container",
					ip, r.Attachment(), n.node, n.segment))
			}
		}
		return nil
	})
	return errors.Join(types.IgnoreNotExist(err), types.Coded(types.CodeChanged, types.WithRepair(types.RepairNever, errors.Join(errs...))))
}
