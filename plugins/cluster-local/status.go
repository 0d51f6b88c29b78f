package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/pkg/engine"
	"github.com/plumb-cni/plumb/pkg/pool"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/types"
)

// checkFree returns an error if a reservation cannot be written or, with failStatusWhenFull, if a range
// set has no free address, neither among the owned ones nor in the engine.
func (n *network) checkFree() error {
	exhausted := make([]bool, len(n.sets))
	for i := range exhausted {
		exhausted[i] = true // unless the folder exists, and the node owns one
	}
	var seen int64
	err := n.Status(func(se *pool.Session) (pool.Choice, error) {
		st, _, err := n.read(se)
		if err != nil {
			return pool.Choice{}, err
		}
		seen = st.seen
		free, err := se.Free(st.addrs())
		for _, ip := range free {
			if set := n.setOf(ip); set != noSet {
				exhausted[set] = false
			}
		}
		return pool.Among(free), err
	})
	if !n.FailStatusWhenFull() || err != nil && !isNoneFree(err) {
		return err
	}
	if !slices.Contains(exhausted, true) {
		return nil
	}
	return n.keepAnswer(fmt.Sprint(n.scope, n.sets, exhausted), func() error {
		for set := range n.sets {
			if !exhausted[set] {
				continue
			}
			if err := n.checkEngine(set, seen); err != nil {
				return err
			}
		}
		return nil
	})
}

// keepFor is how long the next calls of STATUS use an answer of the engine. Runtimes call STATUS every few
// seconds on each node, and all nodes ask at the same time when the pool is full.
const keepFor = 30 * time.Second

// An answerKept is the content of the file "status": what came of asking the engine.
type answerKept struct {
	Boot    string        `json:"boot"`
	About   string        `json:"about"`
	At      time.Duration `json:"at"`      // since boot
	Failure string        `json:"failure"` // empty: an address is free
}

// Validate returns nil: an answer that no call has kept has another boot, or is about something else.
func (answerKept) Validate() error { return nil }

// keepAnswer calls ask, or returns what came of it in an earlier call with the same text about. The answer
// is not kept before the first ADD, or if the file cannot be written.
func (n *network) keepAnswer(about string, ask func() error) error {
	path := n.PrivatePath("status")
	file := statefile.File{Dir: filepath.Dir(path), Name: filepath.Base(path), Owner: types.Attachment{Network: filepath.Base(path)}, Trace: n.request.Trace}
	next, last := answerKept{About: about, At: n.host.Now()}, answerKept{}
	_ = n.Lock(func(se *pool.Session) error {
		next.Boot = se.Boot()
		return file.Load(&last)
	})
	if last.Boot == next.Boot && next.Boot != "" && last.About == about && last.At <= next.At && next.At < last.At+keepFor {
		if last.Failure != "" {
			return fmt.Errorf("%s (%s ago)", last.Failure, (next.At - last.At).Round(time.Second))
		}
		return nil
	}
	asked := ask()
	if asked != nil {
		next.Failure = asked.Error()
	}
	_ = n.Lock(func(*pool.Session) error { return file.Save(next) })
	return asked
}

// statusLimit is how long STATUS waits for the engine. It is shorter than the interval at which runtimes
// call STATUS.
const statusLimit = 2 * time.Second

// checkEngine returns an error if the engine would not give an address of the set.
func (n *network) checkEngine(set int, seen int64) error {
	req := n.about(engine.Status, set)
	req.Seen = seen
	a, err := n.call(req, statusLimit)
	switch {
	case err != nil:
		return err
	case a.Frozen != "":
		return fmt.Errorf("segment %s is frozen since %s", n.segment, a.Frozen)
	case a.Free == 0:
		return fmt.Errorf("no address of range set %d is free in segment %s", set+1, n.segment)
	}
	return nil
}
