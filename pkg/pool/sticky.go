package pool

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"iter"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// With the key sticky, a new container of a workload gets the address of the workload's former container, if the address
// is free. The release of an address records its workload in the directory
//
//	<dataDir>/.plumb/.sticky/<network>
//
// The directory contains a file per address, with the name of the workload, and an index file per workload, with its
// addresses. The name of an index file is a hash of the workload, so that ADD need not read all records. ADD uses a line of
// an index file only if the file of the address names the workload. A record does not reserve its address. Until it expires,
// other workloads get the address only if no other one is free. The directory is not privateDir, because a reboot does not
// end the records.

const (
	defaultStickyFor = 24 * time.Hour
	maxRemembered    = 1 << 16 // the largest number of records of a range set
	maxIndexLines    = 16      // the largest number of addresses in an index file
	// countName is the name of a file whose size in bytes is the number of new records, so that most calls need not count
	// the records (see pruneIfDue).
	countName = "count"
)

// stickyValues contains the values of the key sticky.
var stickyValues = []string{"pod", "mac"}

// A stickiness is the part of a configuration that determines which addresses are remembered.
type stickiness struct {
	by       string        // an element of stickyValues, or "" if no address is remembered
	keepFor  time.Duration // the time from the release of an address until its record expires, or 0 if records never expire
	workload string        // the name of the request's workload, or "" if the runtime does not name it
}

// stickiness checks the keys sticky and stickyFor, and returns the workload of the request. The name of a workload contains no
// white space.
func (in *input) stickiness() (stickiness, error) {
	s := stickiness{keepFor: defaultStickyFor}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	if in.keys.Sticky != nil {
		s.by = *in.keys.Sticky
		reportIf(!slices.Contains(stickyValues, s.by), "ipam.sticky %q must be pod or mac", s.by)
	}
	if seconds := in.keys.StickyFor; seconds != nil {
		reportIf(s.by == "", "ipam.stickyFor has no effect without sticky; set sticky, or remove stickyFor")
		reportIf(*seconds < 0 || *seconds > maxCooldown, "ipam.stickyFor %d must be between 0 and %d seconds", *seconds, maxCooldown)
		s.keepFor = time.Duration(min(*seconds, maxCooldown)) * time.Second
	}
	var id string
	switch namespace, pod := in.args["K8S_POD_NAMESPACE"], in.args["K8S_POD_NAME"]; {
	case s.by == "pod" && types.IsID(pod) && (namespace == "" || types.IsID(namespace)): // podman passes no namespace
		id = namespace + "/" + pod
	case s.by == "mac":
		mac, err := types.FirstMAC(in.runtime.RuntimeConfig.MAC, in.runtime.Args.CNI.MAC, in.args, "")
		reportIf(err != nil, "%w", err)
		id = mac.String()
	}
	if id != "" {
		s.workload = s.by + "/" + id + "/" + in.ifName
	}
	return s, errors.Join(errs...)
}

// isWorkload reports whether s can be the name of a workload.
func isWorkload(s string) bool {
	by, rest, _ := strings.Cut(s, "/")
	return slices.Contains(stickyValues, by) && strings.Contains(rest, "/") &&
		!strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' })
}

// parseStickiness returns the stickiness without a workload, for DEL and GC. It ignores invalid values.
func parseStickiness(sticky, stickyFor json.RawMessage) stickiness {
	s := stickiness{keepFor: defaultStickyFor}
	if json.Unmarshal(sticky, &s.by) != nil || !slices.Contains(stickyValues, s.by) {
		return stickiness{}
	}
	var seconds int64
	if json.Unmarshal(stickyFor, &seconds) == nil && string(stickyFor) != "null" {
		s.keepFor = time.Duration(min(max(seconds, 0), maxCooldown)) * time.Second
	}
	return s
}

// warnWithoutPod warns if the runtime does not name the pod, because the pod's address will not be remembered.
func (p *Pool) warnWithoutPod(r *skel.Request) {
	if p.sticky.by == "pod" && p.sticky.workload == "" {
		r.Warn("sticky: CNI_ARGS contains no valid K8S_POD_NAME, or an invalid K8S_POD_NAMESPACE; the address will not be remembered")
	}
}

// A record is a file in the directory of records.
type record struct {
	name    string
	addr    netip.Addr // the remembered address, or the zero Addr if it is another file
	modTime time.Time
}

func (d directory) record(name string) (record, error) {
	st, err := d.stat(name)
	ip, ok := parseName(name)
	if !ok {
		ip = netip.Addr{}
	}
	return record{name, ip, time.Unix(st.Mtim.Unix())}, err
}

func compareAge(a, b record) int { return cmp.Or(a.modTime.Compare(b.modTime), a.addr.Compare(b.addr)) }

func (s stickiness) isExpired(r record) bool {
	return s.keepFor > 0 && time.Since(r.modTime) >= s.keepFor
}

// openRecords opens the directory of the records, and reports whether it is open. Without the key sticky, it does nothing.
func (se *Session) openRecords() bool {
	if se.store.sticky.by != "" && se.records.fd < 0 {
		if d, err := openDirectory(se.store.PrivatePath("sticky"), unix.O_NOFOLLOW); err == nil {
			se.records = d
		}
	}
	return se.records.fd >= 0
}

// remember records the workload of a reservation that will be removed. The workload is in the address file of the
// reservation's owner, because DEL and GC may not get CNI_ARGS.
func (se *Session) remember(res reservation) error {
	if se.store.sticky.by == "" {
		return nil
	}
	workload := res.workload
	for _, line := range se.addressFiles.readAddressFile(res.owner.addressFileName()) {
		if line.addr == res.addr {
			workload = cmp.Or(workload, line.workload)
		}
	}
	if !isWorkload(workload) {
		return nil
	}
	return se.store.trace.Do("remember "+res.addr.String(), func() error {
		if !se.openRecords() {
			if err := os.MkdirAll(se.store.PrivatePath("sticky"), 0o700); err != nil {
				return err
			}
			se.openRecords() // if that fails, writeRecord fails as well
		}
		return se.records.writeRecord(res.addr, workload)
	})
}

// writeRecord writes the file of the address, adds the address to the index file of the workload, and counts a new record.
func (d directory) writeRecord(ip netip.Addr, workload string) error {
	index := types.ShortHash(workload)
	lines := slices.DeleteFunc(d.readAddressFile(index), func(l addressLine) bool { return !l.addr.IsValid() || l.addr == ip })
	var text strings.Builder
	for _, line := range append(lines[max(0, len(lines)-maxIndexLines+1):], addressLine{addr: ip}) {
		text.WriteString(line.addr.String() + "\n")
	}
	_, statErr := d.stat(ip.String())
	err := d.replace(ip.String(), []byte(workload))
	if err == nil {
		err = d.replace(index, []byte(text.String()))
	}
	if err != nil || statErr == nil { // an old record does not count again
		return err
	}
	f, err := d.open(countName, unix.O_APPEND|unix.O_CREAT)
	if err == nil {
		_, err = f.WriteString("+")
		err = errors.Join(err, f.Close())
	}
	return err
}

// remembered returns the addresses of the request's workload, beginning with the one that was released last. It warns of a
// damaged record, which the next release replaces.
func (se *Session) remembered() (addrs []netip.Addr) {
	workload := se.store.sticky.workload
	if workload == "" || !se.openRecords() {
		return nil
	}
	for _, line := range slices.Backward(se.records.readAddressFile(types.ShortHash(workload))) {
		name := line.addr.String()
		content, st, err := se.records.read(name)
		switch {
		case !line.addr.IsValid(), err == nil && !isWorkload(string(content)), errors.Is(err, errUnreadable):
			se.store.warn("sticky: a record of %s in %s is damaged and has no effect", workload, se.records.path)
		case err == nil && string(content) == workload && !se.store.sticky.isExpired(record{modTime: time.Unix(st.Mtim.Unix())}):
			addrs = append(addrs, line.addr)
		}
	}
	return addrs
}

// unrememberedFirst returns the addresses of free in another order, with the addresses without a valid record first. The
// others follow, beginning with the oldest record.
func (se *Session) unrememberedFirst(free iter.Seq2[netip.Addr, error]) iter.Seq2[netip.Addr, error] {
	if !se.openRecords() {
		return free
	}
	return func(yield func(netip.Addr, error) bool) {
		var later []record
		for ip, err := range free {
			if err == nil {
				r, statErr := se.records.record(ip.String())
				if statErr == nil && !se.store.sticky.isExpired(r) {
					later = append(later, r)
					continue
				}
			}
			if !yield(ip, err) || err != nil {
				return
			}
		}
		slices.SortFunc(later, compareAge)
		for _, r := range later {
			if !yield(r.addr, nil) {
				return
			}
		}
	}
}

// maxRecords returns the largest number of records of the set, which is half of its addresses, but at most maxRemembered.
func (s rangeSet) maxRecords() int {
	var size uint64
	for _, r := range s {
		for _, part := range r.subtract(r.excluded) {
			size = min(size+part.Size(), 2*maxRemembered)
		}
	}
	return int(size / 2)
}

// pruneIfDue calls prune if a set may contain too many records. If prune removes records, it leaves seven eighths of the
// limit, so that the next call is due only after as many new records as the last eighth contains.
func (se *Session) pruneIfDue(sets []rangeSet) {
	if !se.openRecords() {
		return
	}
	st, err := se.records.stat(countName)
	due := func(s rangeSet) bool { return st.Size > int64(s.maxRecords()/8) }
	if err == nil && slices.ContainsFunc(sets, due) {
		err = se.prune(sets)
	}
	if types.IgnoreNotExist(err) != nil {
		se.store.warn("sticky: %v", err)
	}
}

// dropRecords removes all records to free space, and reports whether it has removed some.
func (se *Session) dropRecords() bool {
	if !se.openRecords() {
		return false
	}
	names, _ := se.records.names()
	for _, name := range names {
		_ = se.records.remove(name) // after an error, the reservation is written to the full disk, which fails again
	}
	return len(names) > 0
}

// prune removes the expired records and, if a set contains too many others, its oldest ones. Without sets, the largest number
// is maxRemembered.
func (se *Session) prune(sets []rangeSet) error {
	names, err := se.records.names()
	bySet, oldest := map[int][]record{}, time.Now()
	var indexes, drop []record
	count := 0
	for _, name := range names {
		r, err := se.records.record(name)
		switch {
		case err != nil:
		case r.name == countName:
		case !r.addr.IsValid():
			indexes = append(indexes, r)
		case se.store.sticky.isExpired(r):
			drop = append(drop, r)
		default:
			n := findSet(sets, r.addr)
			bySet[n] = append(bySet[n], r)
		}
	}
	for n, records := range bySet {
		limit := maxRemembered
		if n >= 0 {
			limit = sets[n].maxRecords()
		}
		slices.SortFunc(records, compareAge)
		if len(records) > limit {
			surplus := len(records) - limit + limit/8
			drop, records = append(drop, records[:surplus]...), records[surplus:]
		}
		if len(records) > 0 && records[0].modTime.Before(oldest) {
			oldest = records[0].modTime
		}
		count = max(count, len(records)-limit+limit/8)
	}
	for _, r := range indexes { // an index file is not older than the file of its last address
		if r.modTime.Before(oldest) {
			drop = append(drop, r)
		}
	}
	for _, r := range drop {
		err = cmp.Or(err, se.records.remove(r.name))
	}
	if len(sets) > 0 {
		err = cmp.Or(err, se.records.replace(countName, bytes.Repeat([]byte("+"), count)))
	}
	return err
}
