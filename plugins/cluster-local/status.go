package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/owned"
)

// checkFree returns an error if ADD could not write a reservation. If the key failStatusWhenFull is set, it also
// returns an error if neither the node nor the segment has a free address of a range set.
func (n *network) checkFree() error {
	exhausted := make([]bool, len(n.sets))
	for i := range exhausted {
		exhausted[i] = true // stays true if the directory does not exist, or the node owns no free address of the set
	}
	var known owned.State
	err := n.Status(func(se *pool.Session) (pool.Choice, error) {
		st, _, err := n.read(se)
		if err != nil {
			return pool.Choice{}, err
		}
		known = *st
		free, err := se.Free(st.Addresses())
		for _, ip := range free {
			if set := n.setIndex(ip); set != noSet {
				exhausted[set] = false
			}
		}
		return pool.OnlyAddresses(free), err
	})
	if !n.FailStatusWhenFull || err != nil && !isNoneFree(err) {
		return err
	}
	if !slices.Contains(exhausted, true) {
		return nil
	}
	return n.askOrUseLast(fmt.Sprint(n.scope, n.sets, exhausted), func() error {
		for set := range n.sets {
			if !exhausted[set] {
				continue
			}
			if err := n.checkDatastore(set, known); err != nil {
				return err
			}
		}
		return nil
	})
}

// cacheTime is how long calls of STATUS use the last answer of the datastore. Runtimes call STATUS every few seconds on
// each node. Without the cache, all nodes would ask each time when the pool is full.
const cacheTime = 30 * time.Second

// A cachedStatus is the content of the file "status", which records the last answer of the datastore to STATUS.
type cachedStatus struct {
	Boot    string        `json:"boot"`    // the ID of the boot in which the datastore answered
	About   string        `json:"about"`   // the configuration and state that the answer depends on
	At      time.Duration `json:"at"`      // when the datastore answered, since boot
	Failure string        `json:"failure"` // the text of the error, or "" if an address is free
}

// Validate returns nil, because askOrUseLast ignores a status with another Boot or About.
func (cachedStatus) Validate() error { return nil }

// askOrUseLast calls ask and returns its error. If an earlier call with the same text about called ask within
// cacheTime, askOrUseLast returns the error of that call, or nil if it succeeded, and does not call ask. It always calls ask if the file cannot be
// written, for example because its directory does not exist before the first ADD.
func (n *network) askOrUseLast(about string, ask func() error) error {
	path := n.PrivatePath("status")
	file := statefile.File{Dir: filepath.Dir(path), Name: filepath.Base(path), Owner: types.Attachment{Network: filepath.Base(path)}, Trace: n.request.Trace}
	next, last := cachedStatus{About: about, At: n.host.Now()}, cachedStatus{}
	_ = n.Lock(func(se *pool.Session) error {
		next.Boot = se.Boot()
		return file.Load(&last)
	})
	if last.Boot == next.Boot && next.Boot != "" && last.About == about && last.At <= next.At && next.At < last.At+cacheTime {
		if last.Failure != "" {
			return fmt.Errorf("%s (%s ago)", last.Failure, (next.At - last.At).Round(time.Second))
		}
		return nil
	}
	err := ask()
	if err != nil {
		next.Failure = err.Error()
	}
	_ = n.Lock(func(*pool.Session) error { return file.Save(next) })
	return err
}

// statusLimit is the longest time that STATUS waits for the datastore. It is shorter than the interval at which runtimes
// call STATUS.
const statusLimit = 2 * time.Second

// checkDatastore asks the datastore, and returns an error if no node can claim an address of the set.
func (n *network) checkDatastore(set int, known owned.State) error {
	req := n.newRequest(datastore.Status, set)
	req.LastRevision, req.Store = known.LastRevision, known.Store
	a, err := n.call(req, statusLimit)
	switch {
	case err != nil:
		return err
	case a.Frozen != "":
		return fmt.Errorf("segment %s has been frozen since %s", n.segment, a.Frozen)
	case a.Free == 0:
		return fmt.Errorf("%s: no address is free in segment %s", n.sets[set].Key, n.segment)
	}
	return nil
}
